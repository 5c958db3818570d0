"""What a run learns to do, and all that the author of a benchmark needs. A benchmark of your own is
an entry point of the group `promptcodebook.tasks` in any installed package
(docs/how-to/add-a-benchmark.md)."""

from promptcodebook.tasks.home import BenchmarkRow, jsonl_splits, read_rows, read_seeds
from promptcodebook.tasks.program import ModuleReply, SingleCall, ask, make_output, outside, think
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

# The benchmarks lie with the paper. Their public names stay: promptcodebook.tasks.ifbench.score.
__path__.append(f"{__path__[0].removesuffix('tasks')}paper/tasks")
