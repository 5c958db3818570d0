"""Runs on disk: append-only events, the journal of replies, what was paid, and who writes."""

from promptcodebook.store.compare import Difference, check_resumable, differences, digest
from promptcodebook.store.events import (
    Broke,
    Concluded,
    Ended,
    EndReason,
    Event,
    Judged,
    Resumed,
    Scope,
    Started,
    Stepped,
    Validated,
)
from promptcodebook.store.fold import Mark, RunState, fold, fold_event
from promptcodebook.store.header import Header, run_id
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import RunSummary, find_run, list_runs, remove_run

__all__ = [
    "Broke",
    "Concluded",
    "Difference",
    "EndReason",
    "Ended",
    "Event",
    "Header",
    "Judged",
    "Mark",
    "Resumed",
    "RunState",
    "RunStore",
    "RunSummary",
    "Scope",
    "Started",
    "Stepped",
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
