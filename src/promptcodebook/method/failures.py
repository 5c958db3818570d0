"""When chains break: an error as data, and when so many broke that the run stops (decision 15)."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from promptcodebook.errors import LMError, TooManyFailures
from promptcodebook.types import Failure, Rewrite, Trace

__all__ = [
    "failure_of",
    "gather_all",
    "stop_if_most_failed",
    "stop_if_no_updater",
    "too_many_failures",
]

_T = TypeVar("_T")
_CALLS = {"encoder": "route", "generator": "compose"}
"""What a failure on the way to a prompt is named after: the call that failed."""
_HINTS = {"execute": "correct the executor", "reward": "correct the reward"}


async def gather_all(chains: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Every chain's result, in order; the chains run side by side.

    When one must stop, the others first bring home what they have already paid for, and no call is
    left running; then the first error is raised, one that ends the run before a model's.
    """
    results = await asyncio.gather(*chains, return_exceptions=True)
    errors = [r for r in results if isinstance(r, BaseException)]
    if errors:
        raise next((e for e in errors if not isinstance(e, LMError)), errors[0])
    return [r for r in results if not isinstance(r, BaseException)]


def failure_of(stage: str, error: Exception) -> Failure:
    """An exception as data: a bad rollout is recorded, not raised."""
    # A call that failed says all in its message; a traceback would show our own code alone.
    ours = isinstance(error, LMError) and stage != "execute"
    if stage == "prompt" and isinstance(error, LMError):
        stage = _CALLS.get(error.role, stage)
    return Failure(
        stage=stage,
        kind=type(error).__name__,
        message=str(error),
        traceback="" if ours else "".join(traceback.format_exception(error, limit=-6)),
        hint=str(getattr(error, "hint", "")),
        unreachable=isinstance(error, LMError) and not error.answered,
        lasting=isinstance(error, LMError) and error.lasting,
    )


def stop_if_most_failed(latest: Sequence[Trace], window: int) -> None:
    """More than half of a batch failed: going on would only spend money.

    `latest` holds the last rollouts, `window` (a batch's worth) at the most: an `online` update is
    one example, and one bad rollout is data.
    """
    failures = [failure for t in latest if (failure := _breaking(t)) is not None]
    if len(failures) * 2 > window:
        raise too_many_failures(failures, tuple(latest), "")


def _breaking(trace: Trace) -> Failure | None:
    """The failure that takes the whole rollout out, or keeps anything from being learned of it.

    A critic that answers but is not understood is a bad critic, which is data; one that nobody can
    ask teaches nothing, however long the run.
    """
    if trace.rollout.failure is not None:
        return trace.rollout.failure
    if trace.failure is not None and trace.failure.unreachable:
        return trace.failure
    return None


def stop_if_no_updater(rewrites: Sequence[Rewrite]) -> None:
    """Raises TooManyFailures when nobody could be asked for a single rewrite of a step."""
    refusals = [r.failure for r in rewrites if r.failure is not None and r.failure.lasting]
    if not refusals or len(refusals) < len(rewrites):
        return
    first = refusals[0]
    raise TooManyFailures(
        f"the updater cannot be asked; the first of {len(refusals)} rewrites: "
        f"{first.kind}: {first.message}",
        hint="pco doctor",
    )


def too_many_failures(
    failures: Sequence[Failure], traces: Sequence[Trace], where: str
) -> TooManyFailures:
    """The error that quotes the first failure; `where` is '' or ends in ': '."""
    first = failures[0]
    error = TooManyFailures(
        f"{where}{len(failures)} of {len(traces)} rollouts failed; the first, at {first.stage}: "
        f"{first.kind}: {first.message}",
        hint=first.hint or _HINTS.get(first.stage, "pco doctor"),
    )
    error.traces = tuple(traces)
    return error
