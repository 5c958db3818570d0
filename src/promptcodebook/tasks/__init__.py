"""What a run learns to do, and all that the author of a benchmark needs.

A benchmark of your own is a function `load(data_dir: Path | None) -> Task` in any installed
package, named in its pyproject.toml under the entry-point group `promptcodebook.tasks`:

    [project.entry-points."promptcodebook.tasks"]
    tickets = "my_package.tickets:load"

`pco train --task tickets` then finds it. Names are looked up when first used, so that a worker
process, which needs none of them, starts fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from promptcodebook.tasks.home import BenchmarkRow, jsonl_splits, read_rows, read_seeds
    from promptcodebook.tasks.program import (
        ModuleReply,
        SingleCall,
        ask,
        make_output,
        outside,
        think,
    )
    from promptcodebook.tasks.task import RewardFactory, Task, asks_nobody, load_task, task_names

__all__ = [
    "BenchmarkRow",
    "ModuleReply",
    "RewardFactory",
    "SingleCall",
    "Task",
    "ask",
    "asks_nobody",
    "jsonl_splits",
    "load_task",
    "make_output",
    "outside",
    "read_rows",
    "read_seeds",
    "task_names",
    "think",
]

_HOME = {
    "BenchmarkRow": "home",
    "jsonl_splits": "home",
    "read_rows": "home",
    "read_seeds": "home",
    "RewardFactory": "task",
    "Task": "task",
    "asks_nobody": "task",
    "load_task": "task",
    "task_names": "task",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'promptcodebook.tasks' has no attribute {name!r}")
    module = importlib.import_module(f"promptcodebook.tasks.{_HOME.get(name, 'program')}")
    return getattr(module, name)
