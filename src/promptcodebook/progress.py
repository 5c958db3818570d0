"""The progress of a session, event by event, for a live view or a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from promptcodebook.calls import Limits, Role, Usage
from promptcodebook.text import printable
from promptcodebook.types import Evaluation, Step
from promptcodebook.units import duration

if TYPE_CHECKING:
    from rich.console import Console

_log = logging.getLogger(__name__)
_QUIET_S = 2.0
"""A run that takes less shows no progress."""
_PAUSE_S = 10.0
"""Between two lines where none can be redrawn."""
_REDRAW_S = 0.2
_WIDTH = 79
"""Characters of a line where no terminal says how many fit."""
_BAR = 12


@dataclass(frozen=True, slots=True)
class Began:
    """The run is set up: its id, folder, models by role, and how many steps are planned (0 = its
    optimizer knows no steps)."""

    run_id: str
    path: str
    steps: int
    first: int
    size: int
    models: Mapping[Role, str]
    simulated: bool


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run that takes a while: done of total units."""

    name: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """One update is done and stored."""

    step: Step
    seconds: float


@dataclass(frozen=True, slots=True)
class ValidationDone:
    """One validation is done; `best` is whether it beats all before it.

    `finalist`: at the end of the run, on the whole split, to choose what is kept.
    """

    step: int
    evaluation: Evaluation
    best: bool
    finalist: bool = False


@dataclass(frozen=True, slots=True)
class Spent:
    """Usage by role and incidents by name so far; apart from it what was lost to failures, at the
    most it can have cost. The limits are on both together."""

    usage: Mapping[Role, Usage]
    tallies: Mapping[str, int]
    lost: Usage = Usage()
    limits: Limits = Limits()

    @property
    def total(self) -> Usage:
        """All that was paid, or may have been."""
        return sum(self.usage.values(), self.lost)


@dataclass(frozen=True, slots=True)
class Note:
    """Something the user should read."""

    text: str


ProgressEvent = Began | Phase | StepDone | ValidationDone | Spent | Note


class Listener(Protocol):
    """Hears every event, in order, on the session's own loop: it must not block."""

    def __call__(self, event: ProgressEvent) -> None: ...


def silent(event: ProgressEvent) -> None:
    """Hears nothing."""


class ProgressLog:
    """A Listener: one line at the start, after each update and after each validation."""

    def __init__(self) -> None:
        self._label = ""
        self._steps = 0

    def __call__(self, event: ProgressEvent) -> None:
        match event:
            case Began():
                self._label = "[simulated] " if event.simulated else ""
                self._steps = event.steps
                steps = f": {event.steps} steps" if event.steps else ""
                self._say(f"run {event.run_id} in {event.path}{steps}")
            case StepDone(step):
                self._say(f"step {step.index + 1} of {self._steps}: {_figures(step)}")
            case ValidationDone(step, evaluation):
                score = "none" if evaluation.score is None else f"{evaluation.score:.3f}"
                after = "untrained" if step < 0 else f"after step {step + 1}"
                self._say(f"validation {after}: {score} (n = {len(evaluation.rollouts)})")
            case Note(text):
                _log.warning("%s%s", self._label, text)
            case _:
                pass

    def _say(self, text: str) -> None:
        _log.info("%s%s", self._label, text)


def _figures(step: Step) -> str:
    failed = sum(t.rollout.failure is not None or t.failure is not None for t in step.traces)
    mean = _mean_reward(step)
    kept = sum(rewrite.kept for rewrite in step.rewrites)
    broken = f", {failed} failed" if failed else ""
    return f"reward {mean}, epsilon {step.epsilon:.2f}, {_texts(kept)} rewritten{broken}"


def _texts(count: int) -> str:
    return f"{count} text" if count == 1 else f"{count} texts"


class ProgressLine:
    """A Listener that shows in one line how far a run or a phase is, and how long it still takes.

    On a terminal and in a notebook rich redraws the line, with a bar; elsewhere it is printed now
    and then. Nothing before two seconds have passed. `close` takes it away.
    """

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        *,
        simulated: bool = False,
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._simulated = simulated
        self._next = clock() + _QUIET_S
        self._drawn: _Drawn | None = None
        self._run: Began | None = None
        self._done = 0
        self._seconds = 0.0
        self._phase: Phase | None = None
        self._phase_began, self._phase_first = 0.0, 0
        self._facts: dict[str, str] = {}

    def __call__(self, event: ProgressEvent) -> None:
        match event:
            case Began():
                self._run, self._simulated = event, event.simulated
                self._done = event.first
            case Phase():
                self._enter(event)
            case StepDone(step, seconds):
                self._done, self._phase = step.index + 1, None
                self._seconds += seconds
                self._facts["reward"] = _mean_reward(step)
            case ValidationDone(_, evaluation, best) if best and evaluation.score is not None:
                self._facts["best"] = f"{evaluation.score:.3f}"
            case Spent(_, _, lost, limits):
                of = "" if limits.calls is None else f" of {limits.calls}"
                self._facts["calls"] = f"{event.total.calls}{of}"
                if lost.calls:
                    self._facts["lost"] = str(lost.calls)
            case Note():
                self.close()
            case _:
                pass
        self._show()

    def close(self) -> None:
        """Takes the line away, where there is one that is redrawn; the next event may draw it
        again."""
        drawn, self._drawn = self._drawn, None
        if drawn is not None:
            with suppress(OSError, ValueError):
                drawn.close()

    def _enter(self, phase: Phase) -> None:
        if self._phase is None or self._phase.name != phase.name:
            self._phase_began, self._phase_first = self._clock(), phase.done
        self._phase = phase if phase.done < phase.total else None

    def _show(self) -> None:
        now = self._clock()
        if (self._run is None and self._phase is None) or now < self._next:
            return
        with suppress(OSError, ValueError):  # the reader is gone, and the run continues
            self._drawn = self._drawn or _Drawn.on(self._stream)
            if self._drawn is not None:
                self._next = now + _REDRAW_S
                self._drawn.show(self._text(now, self._drawn.room), *self._share())
            else:
                self._next = now + _PAUSE_S
                self._stream.write(self._text(now, _WIDTH) + "\n")
                self._stream.flush()

    def _share(self) -> tuple[int, int]:
        """What of how many is done; of 0 where that is not known."""
        if self._phase is not None:
            return self._phase.done, self._phase.total
        return self._done, self._run.steps if self._run is not None else 0

    def _text(self, now: float, width: int) -> str:
        """Of at most `width` characters: facts that have no room are left out."""
        label = "pco [simulated]" if self._simulated else "pco"
        if self._phase is not None:
            done, total = self._phase.done, self._phase.total
            spent = now - self._phase_began
            left = _left(spent, done - self._phase_first, total - done)
            counts = f": {done} of {total}{left}"
            start = f"{label} {' '.join(printable(self._phase.name).split())}"
            return start[: max(0, width - len(counts))] + counts[:width]
        assert self._run is not None
        steps = self._run.steps
        left = _left(self._seconds, self._done - self._run.first, steps - self._done)
        at = f"step {self._done} of {steps}{left}"
        text = f"{label} {at if steps else 'at work'}"[:width]
        for name, value in self._facts.items():
            fact = f", {name} {value}"
            if len(text) + len(fact) > width:
                break
            text += fact
        return text


class _Drawn:
    """The line as rich draws it, with a bar: on a terminal by its own timer, in a notebook in one
    place of the output."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._notebook = console.is_jupyter
        self._place: Any = None
        self._progress = Progress(
            BarColumn(bar_width=_BAR),
            TextColumn("{task.description}", markup=False),
            console=console,
            refresh_per_second=1 / _REDRAW_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=console.file is sys.stderr,  # what is printed appears above the line
        )
        self._task = self._progress.add_task("", total=None)
        self.room = max(1, (_WIDTH if self._notebook else console.width) - _BAR - 2)
        if not self._notebook:
            self._progress.start()

    @classmethod
    def on(cls, stream: TextIO) -> _Drawn | None:
        """None where nothing can be redrawn."""
        notebook = type(stream).__module__.startswith("ipykernel")
        if not (notebook or stream.isatty()):
            return None
        from rich.console import Console

        console = Console(file=stream, force_jupyter=notebook)
        return None if console.is_dumb_terminal and not notebook else cls(console)

    def show(self, text: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=text, completed=done, total=total or None)
        if self._notebook:
            self._display(self._progress.make_tasks_table(self._progress.tasks))

    def _display(self, shown: object) -> None:
        """rich gives a notebook its own form of what it draws; IPython puts it in the place of the
        last one."""
        from IPython.display import display  # pyright: ignore

        if self._place is None:
            self._place = display(shown, display_id=True)
        else:
            self._place.update(shown)

    def close(self) -> None:
        if self._notebook:
            from rich.text import Text

            self._display(Text(""))
        else:
            self._progress.stop()


def _left(spent: float, done: int, missing: int) -> str:
    """At the pace so far; '' before there is one."""
    return f", about {duration(spent / done * missing)} left" if done > 0 and missing > 0 else ""


def _mean_reward(step: Step) -> str:
    rewards = [t.rollout.reward for t in step.traces if t.rollout.reward is not None]
    return f"{sum(rewards) / len(rewards):.3f}" if rewards else "none"


@contextmanager
def counting(
    name: str,
    total: int,
    stream: TextIO | None,
    *,
    before: int = 0,
    simulated: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[Callable[[object], None]]:
    """Counts one more of `total` at each call, in a `ProgressLine` on `stream` (None = nowhere).
    `before` are done already, and say nothing of how long one takes."""
    line = None if stream is None else ProgressLine(stream, clock, simulated=simulated)
    done = before - 1

    def count(_: object = None) -> None:
        nonlocal done
        done += 1
        if line is not None:
            line(Phase(name, done, total))

    count()
    try:
        yield count
    finally:
        if line is not None:
            line.close()


@contextmanager
def watch(listener: Listener | None, stream: TextIO | None) -> Generator[Listener]:
    """Who hears of a run: the user's listener, else the log, and a line on `stream` if there is
    one."""
    log = ProgressLog()
    line = ProgressLine(stream) if stream is not None and listener is None else None

    def tell(event: ProgressEvent) -> None:
        if line is not None:
            line(event)
        log(event)

    try:
        yield listener or tell
    finally:
        if line is not None:
            line.close()
