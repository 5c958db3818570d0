"""Rows through a policy: many at once, with results in order and a bounded number in memory.

A row that fails is recorded, and the others continue. Where no answer ever came, or no model can be
asked any more, the last failures are not recorded: the job stops, and the same command asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from promptcodebook.batch.results import Result
from promptcodebook.data.table import Record
from promptcodebook.errors import DataError, PcoError, TooManyFailures
from promptcodebook.method.failures import gather_all
from promptcodebook.policy.policy import Policy
from promptcodebook.types import Failure

ENOUGH = 16
"""Rows in a row whose failures stop the job."""
_WINDOW = 4
"""Rows read and not yet recorded, for each that is being answered."""
_MOST_HELD = 1024
"""Results that are held back at most, those of rows that were not asked included."""

Kept = tuple[Record, Result | None]
"""A row, and its result where an earlier batch has brought it."""


class Sink(Protocol):
    """Where results are recorded, in order. `answered` counts those without an error so far."""

    @property
    def answered(self) -> int: ...

    def append(self, results: list[Result]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Landed:
    """A result; `failure` is that of a model. Only a row that was `asked` says anything of them."""

    result: Result
    asked: bool = False
    failure: Failure | None = None


async def answer_rows(
    policy: Policy,
    rows: Iterator[Kept],
    sink: Sink,
    at_once: int,
    done: Callable[[], None] = lambda: None,
) -> None:
    """Answers every row, `at_once` of them at a time; calls `done` for each that is recorded.

    Raises TooManyFailures, Stop, StoreError or DiskFull; what is recorded by then stays.
    """
    policy.require_program()
    order, numbered = _Order(sink, done), enumerate(rows)
    room, ended = asyncio.Semaphore(_WINDOW * at_once), asyncio.Event()

    async def work() -> None:
        """Takes one row after the other; waits where the window is full."""
        try:
            while not ended.is_set():
                await room.acquire()
                if ended.is_set() or (taken := next(numbered, None)) is None:
                    return
                number, (record, known) = taken
                landed = _Landed(known) if known is not None else await _answer(policy, record)
                for _ in range(order.land(number, landed)):
                    room.release()
        except PcoError as error:
            policy.stop(error)  # no other row is worth another call
            raise
        finally:
            ended.set()
            room.release()  # one that waits wakes, sees it, and wakes the next

    await gather_all(work() for _ in range(at_once))
    order.finish()


async def _answer(policy: Policy, record: Record) -> _Landed:
    try:
        rollout = await policy.arun(record.values)
    except DataError as error:  # the row's own fault: no model was asked
        return _Landed(Result(error=f"{type(error).__name__}: {error}"))
    return _Landed(Result.of(rollout), asked=True, failure=rollout.failure)


class _Order:
    """Puts results that land in any order into theirs, and holds back those that may stop the job.

    Held are failures as long as no row was ever answered, and those at the end of what has landed
    for which no model could be reached.
    """

    def __init__(self, sink: Sink, done: Callable[[], None]) -> None:
        self._sink = sink
        self._done = done
        self._next = 0
        self._landed: dict[int, _Landed] = {}
        self._held: list[_Landed] = []
        self._answered_before = sink.answered > 0
        self._answered_now = False

    def land(self, number: int, landed: _Landed) -> int:
        """How many rows left the window by this. TooManyFailures."""
        self._landed[number] = landed
        before, ready = self._next, list[_Landed]()
        while (each := self._landed.pop(self._next, None)) is not None:
            self._next += 1
            self._answered_now |= each.asked and each.failure is None
            self._held.append(each)
            if self._is_harmless(each):
                ready += self._held
                self._held = []
        self._record(ready)
        if len(self._failures()) >= ENOUGH:
            raise self._hopeless()
        return self._next - before

    def finish(self) -> None:
        """All rows have landed. TooManyFailures where no model could be reached for any of them."""
        failures = self._failures()
        if failures and not self._answered_now and all(each.unreachable for each in failures):
            raise self._hopeless()
        self._record(self._held)

    def _failures(self) -> list[Failure]:
        return [each.failure for each in self._held if each.failure is not None]

    def _is_harmless(self, landed: _Landed) -> bool:
        """Whether all that is held may be recorded now."""
        if not landed.asked:
            return not self._failures() or len(self._held) >= _MOST_HELD
        if landed.failure is None:
            return True
        answered = self._answered_before or self._answered_now
        return answered and not landed.failure.unreachable

    def _record(self, ready: list[_Landed]) -> None:
        if ready:
            self._sink.append([each.result for each in ready])
        for _ in ready:
            self._done()

    def _hopeless(self) -> TooManyFailures:
        first, *more = self._failures()
        rows = f"{len(more) + 1} rows" if more else "row"
        return TooManyFailures(
            f"the last {rows} asked failed, so the batch stops before the rest does too; the "
            f"first, at {first.stage}: {first.kind}: {first.message}",
            hint=first.hint or "pco doctor",
        )
