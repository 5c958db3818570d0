"""Broken chains: an error becomes data, and a run stops when too many break (decision 15)."""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from promptcodebook.errors import LMError, Stop, StoreError, TooManyFailures, loop_hint, message_of
from promptcodebook.types import Failure, Rewrite, Rollout, Step, Trace

_T = TypeVar("_T")
# What a failure on the way to a prompt is named after: the call that failed.
_CALLS = {"encoder": "route", "generator": "compose"}
_HINTS = {"execute": "correct the executor", "reward": "correct the reward"}


async def gather_all(chains: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Every chain's result, in order. All end before the first error is raised, a Stop first."""
    results = await asyncio.gather(*chains, return_exceptions=True)
    errors = [r for r in results if isinstance(r, BaseException)]
    if errors:
        raise next((e for e in errors if not isinstance(e, LMError)), errors[0])
    return [r for r in results if not isinstance(r, BaseException)]


async def attempt(
    stage: str, call: Awaitable[_T], caught: type[Exception] = Exception
) -> tuple[_T | None, Failure | None]:
    """The call's result, or its error as data; what ends the run is raised."""
    try:
        return await call, None
    except (Stop, StoreError):
        raise
    except caught as error:
        return None, failure_of(stage, error)


def failure_of(stage: str, error: Exception) -> Failure:
    """An exception as data."""
    # A call that failed says all in its message; a traceback would show our own code alone.
    ours = isinstance(error, LMError) and stage != "execute"
    if stage == "prompt" and isinstance(error, LMError):
        stage = _CALLS.get(error.role, stage)
    return Failure(
        stage=stage,
        kind=type(error).__name__,
        message=message_of(error),
        traceback="" if ours else "".join(traceback.format_exception(error, limit=-6)),
        hint=loop_hint(error) or str(getattr(error, "hint", "")),
        unreachable=isinstance(error, LMError) and not error.answered,
        lasting=isinstance(error, LMError) and error.lasting,
    )


class FailureWatch:
    """Stops a training that only spends money: raises TooManyFailures by the last `window`
    rollouts, critiques or rewrites."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._rollouts: deque[Trace] = deque(maxlen=window)
        self._critiques: deque[Trace] = deque(maxlen=window)
        self._rewrites: deque[Rewrite] = deque(maxlen=window)

    def recall(self, steps: Iterable[Step], asks_about: Callable[[Trace], bool]) -> None:
        """Reads back what came before (`steps`, latest first), for a resumed run."""
        rollouts, critiques, rewrites = list[Trace](), list[Trace](), list[Rewrite]()
        for step in steps:
            rollouts = [*step.traces, *rollouts]
            critiques = [*filter(asks_about, step.traces), *critiques]
            written = (r for r in step.rewrites if r.origin in ("gradient", "safety"))
            rewrites = [*written, *rewrites]
            if min(map(len, (rollouts, critiques, rewrites))) >= self._window:
                break
        self._rollouts.extend(rollouts)  # which keeps the last ones
        self._critiques.extend(critiques)
        self._rewrites.extend(rewrites)

    def see_rollouts(self, traces: Sequence[Trace]) -> None:
        """More than half of a batch failed, or met a critic that cannot be reached."""
        self._rollouts.extend(traces)
        gone = [t.failure if t.failure and t.failure.unreachable else None for t in self._rollouts]
        found = (t.rollout.failure or lost for t, lost in zip(self._rollouts, gone, strict=True))
        failures = [failure for failure in found if failure is not None]
        if len(failures) * 2 > self._window:
            raise too_many_failures(failures, tuple(self._rollouts), "")

    def see_critiques(self, critiqued: Iterable[Trace]) -> None:
        """Most critiques that were asked for taught nothing. The adversary of ψ may fail alone."""
        self._critiques.extend(critiqued)
        found = [t.failure for t in self._critiques]
        failures = [f for f in found if f is not None and f.stage in ("critique", "attribute")]
        if len(failures) * 2 > self._window:
            what = f"{len(failures)} of the last {len(self._critiques)} critiques taught nothing"
            raise _fruitless(what, failures[0], tuple(self._critiques))

    def see_rewrites(self, rewrites: Sequence[Rewrite]) -> None:
        """No rewrite of a step could be asked for, or most brought no text."""
        self._rewrites.extend(rewrites)
        lasting = [r.failure for r in rewrites if r.failure is not None and r.failure.lasting]
        if lasting and len(lasting) == len(rewrites):
            what = f"all {len(lasting)} requests to the updater failed"
            raise _fruitless(what, lasting[0], ())
        failures = [r.failure for r in self._rewrites if r.failure is not None]
        if len(failures) * 2 > self._window:
            what = f"{len(failures)} of the last {len(self._rewrites)} rewrites produced no text"
            raise _fruitless(what, failures[0], ())


def _fruitless(what: str, first: Failure, traces: tuple[Trace, ...]) -> TooManyFailures:
    quoted = f"{what}; the first, at {first.stage}: {first.kind}: {first.message}"
    error = TooManyFailures(quoted, hint=first.hint or "pco doctor")
    error.traces, error.kind = traces, first.kind
    return error


def require_answers(rollouts: Sequence[Rollout], most: int, where: str = "") -> None:
    """Raises TooManyFailures when more than `most` rollouts failed; `where` as below."""
    failures = [r.failure for r in rollouts if r.failure is not None]
    if len(failures) > most:
        raise too_many_failures(failures, tuple(map(Trace, rollouts)), where)


def too_many_failures(
    failures: Sequence[Failure], traces: Sequence[Trace], where: str
) -> TooManyFailures:
    """The error that quotes the first failure; `where` is '' or ends in ': '."""
    first = failures[0]
    hint = first.hint or _HINTS.get(first.stage, "pco doctor")
    what = f"{where}{len(failures)} of {len(traces)} rollouts failed"
    return _fruitless(what, replace(first, hint=hint), tuple(traces))
