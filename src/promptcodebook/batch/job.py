"""Rows through a policy: many at once, with results in order and a bounded number in memory.

A row that fails is recorded, and the others continue. Where no answer ever came, or no model can be
asked any more, the last failures are not recorded: the job stops, and the same command asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

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
"""Results that are held back at the most, those included that say nothing of the models."""

Kept = tuple[Record, Result | None]
"""A row, and its result where an earlier batch has brought it."""


class Sink(Protocol):
    """Where results are recorded, in order. `answered` counts those without an error so far."""

    @property
    def answered(self) -> int: ...

    def append(self, results: list[Result]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Landed:
    """A result; `shows` what it says of the models: whether they answer, or nothing where none was
    asked. `failure` says whether anybody could be."""

    result: Result
    shows: Literal["answers", "fails", "nothing"] = "nothing"
    failure: Failure | None = None


def _nobody_counts() -> None:
    pass


async def answer_rows(
    policy: Policy,
    rows: Iterator[Kept],
    sink: Sink,
    at_once: int,
    done: Callable[[], None] = _nobody_counts,
) -> None:
    """Answers every row, so many at once; `done` is called for each that is recorded.

    Raises TooManyFailures, Stop, StoreError or DiskFull; what is recorded by then stays.
    """
    policy.require_program()
    job = _Job(policy, rows, _Order(sink, done), at_once)
    await gather_all(job.work() for _ in range(at_once))
    job.order.finish()


class _Job:
    """Workers that take one row after the other; none reads on where the window is full."""

    def __init__(self, policy: Policy, rows: Iterator[Kept], order: _Order, at_once: int) -> None:
        self.order = order
        self._policy = policy
        self._rows = enumerate(rows)
        self._room = asyncio.Semaphore(_WINDOW * at_once)
        self._ended = False

    async def work(self) -> None:
        try:
            while not self._ended:
                await self._room.acquire()
                if self._ended or (taken := next(self._rows, None)) is None:
                    self._end()
                    return
                number, (record, known) = taken
                landed = _Landed(known) if known is not None else await self._answer(record)
                for _ in range(self.order.land(number, landed)):
                    self._room.release()
        except BaseException as error:
            self._end()
            if isinstance(error, PcoError):
                self._policy.stop(error)  # no other row is worth another call
            raise

    async def _answer(self, record: Record) -> _Landed:
        try:
            rollout = await self._policy.arun(record.values)
        except DataError as error:  # the row's own fault: nobody was asked
            return _Landed(Result(error=f"{type(error).__name__}: {error}"))
        failure = rollout.failure
        return _Landed(Result.of(rollout), "answers" if failure is None else "fails", failure)

    def _end(self) -> None:
        self._ended = True
        self._room.release()  # one that waits wakes, sees it, and wakes the next


class _Order:
    """Puts results that land in any order into theirs, and holds back those that may stop the job.

    Held are failures as long as no row was ever answered, and those at the end of what has landed
    that nobody could be asked for.
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
        before, ready = self._next, list[Result]()
        while (each := self._landed.pop(self._next, None)) is not None:
            self._next += 1
            self._answered_now |= each.shows == "answers"
            self._held.append(each)
            if self._is_harmless(each):
                ready += (held.result for held in self._held)
                self._held.clear()
        self._record(ready)
        if sum(each.failure is not None for each in self._held) >= ENOUGH:
            raise self._hopeless()
        return self._next - before

    def finish(self) -> None:
        """All rows have landed. TooManyFailures where nobody could be asked for any of them."""
        failures = [each.failure for each in self._held if each.failure is not None]
        if failures and not self._answered_now and all(f.unreachable for f in failures):
            raise self._hopeless()
        self._record([each.result for each in self._held])
        self._held.clear()

    def _is_harmless(self, landed: _Landed) -> bool:
        """Whether all that is held may be recorded now."""
        if landed.shows == "nothing":
            suspicious = any(each.failure is not None for each in self._held)
            return not suspicious or len(self._held) >= _MOST_HELD
        if landed.failure is None:
            return True
        answered = self._answered_before or self._answered_now
        return answered and not landed.failure.unreachable

    def _record(self, ready: list[Result]) -> None:
        if ready:
            self._sink.append(ready)
        for _ in ready:
            self._done()

    def _hopeless(self) -> TooManyFailures:
        failures = [each.failure for each in self._held if each.failure is not None]
        first = failures[0]
        rows = "row" if len(failures) == 1 else f"{len(failures)} rows"
        return TooManyFailures(
            f"the last {rows} asked failed, so the batch stops before the rest does too; the "
            f"first, at {first.stage}: {first.kind}: {first.message}",
            hint=first.hint or "pco doctor",
        )
