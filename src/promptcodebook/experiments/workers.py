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

Outcome = Result | PcoError
"""Of a cell: its result, or why it failed."""
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

    def end(self, cell: Cell, outcome: Outcome) -> None:
        self.ended += 1
        if isinstance(outcome, PcoError):
            self.tell(f"{cell.name} failed: {outcome}")
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
        self, cells: Sequence[Cell], progress: Progress, ended: Callable[[Cell, Outcome], None]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Threads:
    """So many cells at once. One alone is measured in the thread that asks, so that its progress is
    shown."""

    lab: Lab
    width: int = 1

    def measure(
        self, cells: Sequence[Cell], progress: Progress, ended: Callable[[Cell, Outcome], None]
    ) -> None:
        if self.width > 1:
            with ThreadPoolExecutor(self.width, "cell") as pool:
                crew = Crew(self.width, progress, ended, self.lab.relay.interrupt)
                crew.measure(cells, lambda cell: pool.submit(self._attempt, cell))
            return
        waiting = list(cells)
        while (cell := _ready(waiting, ())) is not None:
            waiting.remove(cell)
            progress.begin(cell)
            outcome = self._attempt(cell)
            progress.end(cell, outcome)
            ended(cell, outcome)

    def _attempt(self, cell: Cell) -> Outcome:
        """Its result, or why it failed. Raises Stop."""
        try:
            return cell.measure(self.lab)
        except Stop:
            raise
        except PcoError as error:
            return error


class Crew:
    """Keeps `width` cells at work, and lets the first Stop among them, or Ctrl-C, end the others.

    `interrupt` asks all that are at work to end in order; a second time, at once.
    """

    def __init__(
        self,
        width: int,
        progress: Progress,
        ended: Callable[[Cell, Outcome], None],
        interrupt: Callable[[], None],
    ) -> None:
        self._width, self._progress, self._ended = width, progress, ended
        self._interrupt = interrupt
        self._at_work: dict[Future[Outcome], Cell] = {}
        self._stop: BaseException | None = None

    def measure(self, cells: Sequence[Cell], submit: Callable[[Cell], Future[Outcome]]) -> None:
        """Returns when nothing is at work any more. Raises what ended it early."""
        waiting = list(cells)
        with stop_signals():
            while waiting or self._at_work:
                try:
                    self._send(waiting, submit)
                    done, _ = wait(self._at_work, _LOOK_UP_S, FIRST_COMPLETED)
                    for future in done:
                        self._take(future)
                except KeyboardInterrupt:
                    self._stop = self._stop or Interrupted("interrupted by the user")
                    self._interrupt()
                if self._stop is not None:
                    waiting.clear()
        if self._stop is not None:
            raise self._stop

    def _send(self, waiting: list[Cell], submit: Callable[[Cell], Future[Outcome]]) -> None:
        while len(self._at_work) < self._width:
            cell = _ready(waiting, tuple(self._at_work.values()))
            if cell is None:
                return
            waiting.remove(cell)
            self._progress.begin(cell)
            self._at_work[submit(cell)] = cell

    def _take(self, future: Future[Outcome]) -> None:
        cell = self._at_work.pop(future)
        try:
            outcome = future.result()
            self._progress.end(cell, outcome)
            self._ended(cell, outcome)
        except BaseException as why:
            # A KeyboardInterrupt from there is what the others were interrupted with.
            if self._stop is None:
                self._stop = why
                self._interrupt()


def _ready(waiting: Sequence[Cell], at_work: Sequence[Cell]) -> Cell | None:
    """The first that comes after none of the others."""
    unfinished = {cell.name for cell in (*waiting, *at_work)}
    return next((cell for cell in waiting if not unfinished & set(cell.after)), None)
