"""Ready-made tasks by name: ours, and those of every installed package.

A task is an entry point of the group `promptcodebook.tasks`: its name, and a function
`load(data_dir: Path | None) -> Task`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast

from promptcodebook.errors import PcoError, TaskError, did_you_mean, message_of
from promptcodebook.tasks.task import Task

GROUP = "promptcodebook.tasks"


def task_names() -> tuple[str, ...]:
    """The names `load_task` knows, sorted."""
    return tuple(sorted(entry_points(group=GROUP).names))


def load_task(name: str, data_dir: Path | None = None) -> Task:
    """A ready-made task with its data; `data_dir` is its folder or that folder's parent.

    Without `data_dir` the environment's PCO_DATA is it; without either, what ships is used.
    TaskError for an unknown name, for a package that cannot be loaded or that offers no Task, and
    for data that is not there (it says which file).
    """
    entry = _entry(name)
    named = os.environ.get("PCO_DATA")
    task: object = _loader(entry)(data_dir or (Path(named) if named else None))
    if not isinstance(task, Task):
        raise TaskError(
            f"{entry.value}, which offers the task {name!r}, returned {type(task).__name__}",
            hint="it must return a promptcodebook.tasks.Task",
        )
    return task


def _entry(name: str) -> EntryPoint:
    """The entry point of this name. An installation may list one twice; two different ones are
    refused, since nobody could tell which is meant."""
    offered = {entry.value: entry for entry in entry_points(group=GROUP) if entry.name == name}
    if not offered:
        known = task_names()
        raise TaskError(
            f"unknown task {name!r}{did_you_mean(name, known)}",
            hint=f"ready-made tasks: {', '.join(known)}; or your own data under [data]",
        )
    if len(offered) > 1:
        raise TaskError(
            f"several packages offer a task {name!r}: {', '.join(sorted(offered))}",
            hint="uninstall all but one, or rename a task in its package's entry points",
        )
    return next(iter(offered.values()))


def _loader(entry: EntryPoint) -> Callable[[Path | None], Any]:
    try:
        return cast("Callable[[Path | None], Any]", entry.load())
    except PcoError:
        raise
    except Exception as error:
        raise TaskError(
            f"the task {entry.name!r} ({entry.value}) cannot be loaded: "
            f"{type(error).__name__}: {message_of(error)}",
            hint=f"python -c 'import {entry.module}'",
        ) from error
