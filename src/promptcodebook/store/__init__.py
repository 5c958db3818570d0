"""Runs on disk: append-only events, the journal of replies, what was paid, and who writes."""

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
from promptcodebook.store.runs import find_run, list_runs, remove_run
from promptcodebook.store.summaries import RunSummary

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
