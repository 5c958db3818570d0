"""Ready-made tasks by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from promptcodebook.errors import TaskError, did_you_mean
from promptcodebook.tasks.aime.task import load_aime
from promptcodebook.tasks.base import Task
from promptcodebook.tasks.constraints.task import load_constraints
from promptcodebook.tasks.hotpotqa.task import load_hotpotqa
from promptcodebook.tasks.hover.task import load_hover
from promptcodebook.tasks.ifbench.task import load_ifbench
from promptcodebook.tasks.livebench_math.task import load_livebench_math
from promptcodebook.tasks.pupa.task import load_pupa

__all__ = ["load_task", "task_names"]

_LOADERS: dict[str, Callable[[Path | None], Task]] = {
    "aime": load_aime,
    "constraints": load_constraints,
    "hotpotqa": load_hotpotqa,
    "hover": load_hover,
    "ifbench": load_ifbench,
    "livebench_math": load_livebench_math,
    "pupa": load_pupa,
}


def task_names() -> tuple[str, ...]:
    """The names `load_task` knows, sorted."""
    return tuple(sorted(_LOADERS))


def load_task(name: str, data_dir: Path | None = None) -> Task:
    """A ready-made task with its data; `data_dir` is its folder or that folder's parent.

    Without `data_dir` the environment's PCO_DATA is it; without either, what ships is used.
    TaskError for an unknown name, and for data that is not there (it says which file).
    """
    if name not in _LOADERS:
        raise TaskError(
            f"unknown task {name!r}{did_you_mean(name, _LOADERS)}",
            hint=f"ready-made tasks: {', '.join(task_names())}; or your own data under [data]",
        )
    named = os.environ.get("PCO_DATA")
    return _LOADERS[name](data_dir or (Path(named) if named else None))
