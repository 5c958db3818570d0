"""Runs on disk: append-only events, the journal of replies, what was paid, and who writes.

Names are looked up when first used, so that a list of runs does not wait for what one run needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from promptcodebook.store.events import (
        Amended,
        Broke,
        Candidate,
        Compared,
        Concluded,
        Ended,
        EndReason,
        Event,
        Mark,
        Resumed,
        RunState,
        Scope,
        Started,
        Stepped,
        Trained,
        Validated,
        fold,
        fold_event,
    )
    from promptcodebook.store.header import (
        Difference,
        Header,
        check_resumable,
        differences,
        digest,
        run_id,
    )
    from promptcodebook.store.run import RunStore
    from promptcodebook.store.runs import RunSummary, find_run, list_runs, remove_run

__all__ = [
    "Amended",
    "Broke",
    "Candidate",
    "Compared",
    "Concluded",
    "Difference",
    "EndReason",
    "Ended",
    "Event",
    "Header",
    "Mark",
    "Resumed",
    "RunState",
    "RunStore",
    "RunSummary",
    "Scope",
    "Started",
    "Stepped",
    "Trained",
    "Validated",
    "check_resumable",
    "differences",
    "digest",
    "find_run",
    "fold",
    "fold_event",
    "list_runs",
    "remove_run",
    "run_id",
]

_HOME = {
    "Difference": "header",
    "Header": "header",
    "check_resumable": "header",
    "differences": "header",
    "digest": "header",
    "run_id": "header",
    "RunStore": "run",
    "find_run": "runs",
    "list_runs": "runs",
    "remove_run": "runs",
    "RunSummary": "runs",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'promptcodebook.store' has no attribute {name!r}")
    module = importlib.import_module(f"promptcodebook.store.{_HOME.get(name, 'events')}")
    return getattr(module, name)
