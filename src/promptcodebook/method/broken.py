"""When to stop: most of a batch failed, and going on would only spend money (decision 15)."""

from __future__ import annotations

from collections.abc import Sequence

from promptcodebook.errors import TooManyFailures
from promptcodebook.types import Failure, Rewrite, Trace

__all__ = ["broken_part", "stop_if_no_updater", "too_many"]

_UNREACHABLE = frozenset(
    {
        *("AuthRefused", "CallTimeout", "EndpointDown", "ModelNotFound"),
        *("RateLimited", "RequestRefused", "ServerFault"),
    }
)
"""Failures of an endpoint. A critic that answers but is not understood is a bad critic, which is
data; one that nobody can ask teaches nothing, however long the run."""


def broken_part(trace: Trace) -> Failure | None:
    """The failure that takes the whole rollout out, or keeps anything from being learned of it."""
    if trace.rollout.failure is not None:
        return trace.rollout.failure
    if trace.failure is not None and trace.failure.kind in _UNREACHABLE:
        return trace.failure
    return None


def too_many(failures: Sequence[Failure], traces: Sequence[Trace], where: str) -> TooManyFailures:
    """The error that quotes the first failure; `where` is '' or ends in ': '."""
    first = failures[0]
    error = TooManyFailures(
        f"{where}{len(failures)} of {len(traces)} rollouts failed; the first, at {first.stage}: "
        f"{first.kind}: {first.message}",
        hint=first.hint or _HINTS.get(first.stage, "pco doctor"),
    )
    error.traces = tuple(traces)
    return error


_GONE = frozenset({"AuthRefused", "EndpointDown", "ModelNotFound", "RequestRefused"})
"""What does not pass by waiting: an updater so refused will rewrite nothing in the next step."""


def stop_if_no_updater(rewrites: Sequence[Rewrite]) -> None:
    """Raises TooManyFailures when nobody could be asked for a single rewrite of a step."""
    refusals = [r.reason for r in rewrites if r.reason.partition(":")[0] in _GONE]
    if not refusals or len(refusals) < len(rewrites):
        return
    raise TooManyFailures(
        f"the updater cannot be asked; the first of {len(refusals)} rewrites: {refusals[0]}",
        hint="pco doctor",
    )


_HINTS = {"execute": "correct the executor", "reward": "correct the reward"}
