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
    "stop_if_critics_fail",
    "stop_if_most_failed",
    "stop_if_no_updater",
    "too_many_failures",
]

_T = TypeVar("_T")
_CALLS = {"encoder": "route", "generator": "compose"}
"""What a failure on the way to a prompt is named after: the call that failed."""
_CREDIT = ("critique", "attribute")
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

    A critic that nobody can ask counts at once; one that answers and is not understood when most
    of its critiques are of that kind (`stop_if_critics_fail`).
    """
    if trace.rollout.failure is not None:
        return trace.rollout.failure
    if trace.failure is not None and trace.failure.unreachable:
        return trace.failure
    return None


def stop_if_critics_fail(latest: Sequence[Trace], window: int) -> None:
    """Most of a batch's worth of critiques taught nothing: a critic or an attribution that is never
    understood only spends money, however long the run.

    `latest` holds the last rollouts that the critic was asked about, `window` at the most. The
    adversary of ψ may fail by itself: what the others learn is learned.
    """
    failures = [t.failure for t in latest if t.failure is not None]
    failures = [failure for failure in failures if failure.stage in _CREDIT]
    if len(failures) * 2 > window:
        what = f"{len(failures)} of the last {len(latest)} critiques taught nothing"
        raise _fruitless(what, failures[0], tuple(latest))


def stop_if_no_updater(latest: Sequence[Rewrite], rewrites: Sequence[Rewrite], window: int) -> None:
    """Raises TooManyFailures when nobody could be asked for a single rewrite of a step, or most of
    the last `window` brought no text."""
    lasting = [r.failure for r in rewrites if r.failure is not None and r.failure.lasting]
    if lasting and len(lasting) == len(rewrites):
        what = f"the updater cannot be asked for any of {len(lasting)} rewrites"
        raise _fruitless(what, lasting[0], ())
    failures = [r.failure for r in latest if r.failure is not None]
    if len(failures) * 2 > window:
        what = f"{len(failures)} of the last {len(latest)} rewrites brought no text"
        raise _fruitless(what, failures[0], ())


def _fruitless(what: str, first: Failure, traces: tuple[Trace, ...]) -> TooManyFailures:
    error = TooManyFailures(
        f"{what}; the first, at {first.stage}: {first.kind}: {first.message}",
        hint=first.hint or "pco doctor",
    )
    error.traces = traces
    return error


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
