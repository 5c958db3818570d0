"""Who measures the cells of an experiment: threads of this process, which share the lab's model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Protocol

from promptcodebook.errors import Interrupted, PcoError, Stop
from promptcodebook.experiments.lab import Cell, Lab, Result
from promptcodebook.signals import stop_signals
from promptcodebook.units import duration

__all__ = ["Progress", "Threads", "Workers", "ready"]

_LOOK_UP_S = 0.2


@dataclass
class Progress:
    """Tells which cells began and ended, of how many, and how long the rest will take."""

    total: int
    known: int
    tell: Callable[[str], None]
    begun: int = 0
    ended: int = 0
    since: float = field(default_factory=time.monotonic)

    def begin(self, cell: Cell) -> None:
        self.begun += 1
        self.tell(f"{cell.name} ({self.known + self.begun} of {self.total})")

    def end(self, cell: Cell, error: PcoError | None) -> None:
        self.ended += 1
        if error is not None:
            self.tell(f"{cell.name} failed: {error}")
        left = self.total - self.known - self.ended
        if left:
            each = (time.monotonic() - self.since) / self.ended
            self.tell(
                f"{self.known + self.ended} of {self.total} cells finished, "
                f"{duration(each * left)} left"
            )


class Workers(Protocol):
    """Measures cells, and hands over each as it ends: with its result, or with what failed.

    Raises the Stop that ended it early, when nothing is at work any more, and KeyboardInterrupt.
    """

    def measure(
        self,
        cells: Sequence[Cell],
        progress: Progress,
        ended: Callable[[Cell, Result | PcoError], None],
    ) -> None: ...


def ready(waiting: Sequence[Cell], at_work: Sequence[Cell]) -> Cell | None:
    """The first that comes after none of the others."""
    open_names = {cell.name for cell in (*waiting, *at_work)}
    return next((cell for cell in waiting if not open_names & set(cell.after)), None)


@dataclass(frozen=True, slots=True)
class Threads:
    """So many cells at once. One alone is measured in the thread that asks, so that its progress is
    shown."""

    lab: Lab
    width: int = 1

    def measure(
        self,
        cells: Sequence[Cell],
        progress: Progress,
        ended: Callable[[Cell, Result | PcoError], None],
    ) -> None:
        if self.width > 1:
            _Crew(self, progress, ended).measure(cells)
            return
        waiting = list(cells)
        while (cell := ready(waiting, ())) is not None:
            waiting.remove(cell)
            progress.begin(cell)
            outcome = self.attempt(cell)
            progress.end(cell, outcome if isinstance(outcome, PcoError) else None)
            ended(cell, outcome)

    def attempt(self, cell: Cell) -> Result | PcoError:
        """Its result, or why it failed. Raises Stop."""
        try:
            return cell.measure(self.lab)
        except Stop:
            raise
        except PcoError as error:
            return error


class _Crew:
    """Threads at work, and what the first Stop among them, or Ctrl-C, says to the others."""

    def __init__(
        self,
        threads: Threads,
        progress: Progress,
        ended: Callable[[Cell, Result | PcoError], None],
    ) -> None:
        self._threads, self._progress, self._ended = threads, progress, ended
        self._at_work: dict[Future[Result | PcoError], Cell] = {}
        self._stop: BaseException | None = None

    def measure(self, cells: Sequence[Cell]) -> None:
        waiting = list(cells)
        with ThreadPoolExecutor(self._threads.width, "cell") as pool, stop_signals():
            while waiting or self._at_work:
                try:
                    self._send(waiting, pool)
                    done, _ = wait(self._at_work, _LOOK_UP_S, FIRST_COMPLETED)
                except KeyboardInterrupt:
                    self._end(Interrupted("interrupted by the user"), again=True)
                    waiting.clear()
                    continue
                for future in done:
                    self._take(future)
                if self._stop is not None:
                    waiting.clear()
        if self._stop is not None:
            raise self._stop

    def _send(self, waiting: list[Cell], pool: ThreadPoolExecutor) -> None:
        while len(self._at_work) < self._threads.width:
            cell = ready(waiting, tuple(self._at_work.values()))
            if cell is None:
                return
            waiting.remove(cell)
            self._progress.begin(cell)
            self._at_work[pool.submit(self._threads.attempt, cell)] = cell

    def _take(self, future: Future[Result | PcoError]) -> None:
        cell = self._at_work.pop(future)
        error = future.exception()
        if error is not None:
            self._end(error)
            return
        outcome = future.result()
        self._progress.end(cell, outcome if isinstance(outcome, PcoError) else None)
        try:
            self._ended(cell, outcome)
        except PcoError as unkept:
            self._end(unkept)

    def _end(self, why: BaseException, *, again: bool = False) -> None:
        """The others stop in order; a second Ctrl-C stops them at once."""
        if again or self._stop is None:
            self._threads.lab.relay.interrupt()
        self._stop = self._stop or why
