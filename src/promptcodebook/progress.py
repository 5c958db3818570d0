"""The progress of a session, event by event, and the listeners that show it: as lines (`Lines`), or
as one line that is redrawn (`ProgressLine`)."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from promptcodebook.base.text import one_line
from promptcodebook.base.units import duration, number, percent, plural, spent_parts
from promptcodebook.calls import Limits, Role, Usage
from promptcodebook.method.state import entropy, utilisation
from promptcodebook.types import Evaluation, Step

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_log = logging.getLogger(__name__)
# A `ProgressLine` shows nothing of what takes less; also the pause between two about a phase.
QUIET_S = 2.0
_PAUSE_S = 10.0  # between two lines where none can be redrawn
_REDRAW_S = 0.2
_WIDTH = 79  # characters of a line where no terminal says how many fit
_BAR = 12
_PACE = 20  # The steps whose time says how long the others take.
# Answers before a pace is known: the first may wait for a model to be loaded.
ENOUGH_ANSWERS = 10


@dataclass(frozen=True, slots=True)
class Began:
    """Id, folder, models by role, and how many steps are planned (0 = it knows no steps)."""

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
    """One update is done and stored; `solved` is the share of training inputs solved so far."""

    step: Step
    seconds: float
    solved: float = 0.0


@dataclass(frozen=True, slots=True)
class ValidationDone:
    """`best` is whether it beats all before it; `finalist`: at the end, to choose what is kept."""

    step: int
    evaluation: Evaluation
    best: bool
    finalist: bool = False


@dataclass(frozen=True, slots=True)
class Spent:
    """So far, by role and by name; `lost` at its highest possible cost. Limits are on both."""

    usage: Mapping[Role, Usage]
    tallies: Mapping[str, int]
    lost: Usage = Usage()
    limits: Limits = Limits()


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


@dataclass(frozen=True, slots=True)
class RunView:
    """What a watcher knows of a run. Each event replaces it as a whole, so that another thread may
    read it at any time. Times are seconds of the watcher's clock; `reward` is the last batch's
    mean, `solved` the share of inputs solved by then where routes are learned from outcomes,
    `counts` how often each instinct was selected, `answers` those of all steps so far."""

    run: Began | None = None
    simulated: bool = False
    step: int = -1
    epsilon: float | None = None
    reward: float | None = None
    solved: float | None = None
    counts: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    answers: int = 0
    validation: float | None = None
    best: tuple[int, float] | None = None
    failed: int = 0
    phase: Phase | None = None
    phase_began: float = 0.0
    phase_first: int = 0
    usage: Mapping[Role, Usage] = field(default_factory=dict[Role, Usage])
    lost: Usage = Usage()
    limits: Limits = Limits()

    @property
    def models(self) -> str:
        """The models of the run's roles, each once."""
        specs = self.run.models.values() if self.run is not None else ()
        return ", ".join(sorted({spec or "your own model" for spec in specs}))

    @property
    def spent(self) -> Usage:
        """All that was paid, or may have been: what was lost to failures included."""
        return sum(self.usage.values(), self.lost)

    def training_left(self) -> float | None:
        """Seconds that the remaining steps take at the recent pace, validations not counted; None
        before ten answers."""
        if self.run is None or self.answers < ENOUGH_ANSWERS:
            return None
        pace = sum(self.seconds) / len(self.seconds)
        return pace * max(0, self.run.steps - self.step - 1)

    def phase_left(self, now: float) -> float | None:
        """Seconds that the present phase still takes, None before its first ten are done."""
        phase = self.phase
        if phase is None or phase.done < self.phase_first + ENOUGH_ANSWERS:
            return None
        pace = (now - self.phase_began) / (phase.done - self.phase_first)
        return pace * (phase.total - phase.done)


def advance(view: RunView, event: ProgressEvent, now: float) -> RunView:
    match event:
        case Began(first=first, simulated=simulated):
            return replace(view, run=event, step=first - 1, simulated=simulated)
        case Phase(name, done, total):
            if view.phase is None or view.phase.name != name:
                view = replace(view, phase_began=now, phase_first=done)
            return replace(view, phase=event if done < total else None)
        case StepDone(step, seconds, solved):
            rewards = [t.rollout.reward for t in step.traces if t.rollout.reward is not None]
            broken = sum((t.rollout.failure or t.failure) is not None for t in step.traces)
            return replace(
                view,
                step=step.index,
                epsilon=step.epsilon if step.ranking is None else None,
                reward=fmean(rewards) if rewards else None,
                solved=None if step.ranking is None else solved,
                counts=step.selected,
                seconds=(*view.seconds, seconds)[-_PACE:],
                answers=view.answers + len(step.traces),
                failed=view.failed + broken,
                phase=None,
            )
        case ValidationDone(step, evaluation, best, finalist) if evaluation.score is not None:
            last = view.validation if finalist else evaluation.score
            won = (step, evaluation.score) if best else view.best
            return replace(view, validation=last, best=won, phase=None)
        case Spent(usage, _, lost, limits):
            return replace(view, usage=usage, lost=lost, limits=limits)
        case _:
            return view


class Watcher:
    """A Listener and context manager that knows how far a run is, and shows it."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, simulated: bool = False
    ) -> None:
        self.clock = clock
        self.view = RunView(simulated=simulated)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, event: ProgressEvent) -> None:
        self.view = advance(self.view, event, self.clock())
        # A terminal that is gone, or a full disk below a log, must not cost the run.
        with suppress(OSError, ValueError):
            self.show(event)

    def show(self, event: ProgressEvent) -> None:
        """Shows what the event changed."""

    def close(self) -> None:
        """Gives the terminal back."""


class Lines(Watcher):
    """For logs and pipes: a line for each thing. No stream = Python's log, which gets no phases."""

    def __init__(self, stream: TextIO | None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._stream = stream
        self._last = -QUIET_S

    def show(self, event: ProgressEvent) -> None:
        view, label, stream = self.view, "[simulated] " if self.view.simulated else "", self._stream
        match event:
            case Began(run_id, path, steps, first, size):
                planned = f"step {first + 1} of {steps}" if first else plural(steps, "step")
                if first >= steps:  # only the verdict is missing
                    planned = f"all {steps} steps are done"
                ours = f"{planned}, K = {size}, " if steps else ""
                self._write(f"{label}run {run_id} in {path}: {ours}{view.models}")
            case Phase(name, done, total):
                now = self.clock()
                if stream is not None and now - self._last >= QUIET_S:
                    self._last = now
                    self._write(f"{name}: {done} of {total}{_left(view.phase_left(now))}")
            case StepDone():
                self._write(label + _step_text(view))
            case ValidationDone(step, evaluation, best, finalist):
                after = "untrained" if step < 0 else f"after step {step + 1}"
                what = "choosing what to keep: validation" if finalist else "validation"
                score, n = number(evaluation.score, missing="none"), len(evaluation.rollouts)
                won = ", best" if best else ""
                self._write(f"{label}{what} {after}: {score} (n = {n}){won}")
            case Note(text) if stream is None:
                _log.warning("%s%s", label, text)
            case Note(text):
                self._write(text)
            case _:
                pass

    def _write(self, text: str) -> None:
        if self._stream is None:
            _log.info("%s", text)
        else:
            self._stream.write(one_line(text) + "\n")
            self._stream.flush()


def _left(seconds: float | None, sign: str = ", ") -> str:
    return f"{sign}{duration(seconds)} left" if seconds else ""


def _step_text(view: RunView) -> str:
    spent = view.spent
    planned = f" of {view.run.steps}" if view.run is not None else ""
    calls, tokens, cost = spent_parts(spent, view.limits)
    parts = [
        f"step {view.step + 1}{planned}",
        "" if view.solved is None else f"{percent(view.solved)} of inputs solved so far",
        f"reward{' of rollouts' * (view.solved is not None)} {number(view.reward, missing='none')}",
        "" if view.epsilon is None else f"epsilon {view.epsilon:.2f}",
        "" if view.epsilon is None else f"entropy {entropy(view.counts):.2f} bits",
        f"utilisation {100 * utilisation(view.counts):.0f} %",
        f"{view.failed} failed" if view.failed else "",
        *((f"{calls}, {tokens}", cost) if spent.calls else ()),
        f"{view.lost.calls} lost" if view.lost.calls else "",
        _left(view.training_left(), ""),
    ]
    return "  ".join(filter(None, parts))


class ProgressLine(Watcher):
    """How far a run or a phase is, and how long it still takes, after two seconds. On a terminal
    rich redraws it, with a bar; elsewhere it is printed now and then."""

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        *,
        simulated: bool = False,
    ) -> None:
        super().__init__(clock, simulated=simulated)
        self._stream = stream
        self._next = clock() + QUIET_S
        self._live: Live | None = None
        self._width = _WIDTH

    def show(self, event: ProgressEvent) -> None:
        now = self.clock()
        if isinstance(event, Note):
            self.close()
        if (self.view.run is None and self.view.phase is None) or now < self._next:
            return
        self._next = now + _REDRAW_S
        if self._live is None and not self._start():
            self._next = now + _PAUSE_S
            self._stream.write(line_text(self.view, now, _WIDTH) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Takes the line away, where it is redrawn; the next event may draw it again."""
        live, self._live = self._live, None
        with suppress(OSError, ValueError):
            if live is not None:
                live.stop()

    def _start(self) -> bool:
        if not self._stream.isatty():
            return False
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._stream)
        if console.is_dumb_terminal:
            return False
        self._width = max(1, console.width - _BAR - 2)
        self._live = Live(
            console=console,
            get_renderable=self._drawn,
            refresh_per_second=1 / _REDRAW_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=console.file is sys.stderr,  # what is printed appears above the line
        )
        self._live.start()
        return True

    def _drawn(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        view, table = self.view, Table.grid(padding=(0, 1))
        steps = view.run.steps if view.run is not None else 0
        phase = view.phase or Phase("", view.step + 1, steps)
        text = line_text(view, self.clock(), self._width)
        bar = ProgressBar(total=phase.total or None, completed=phase.done, width=_BAR)
        table.add_row(bar, Text(text, no_wrap=True))
        return table


class Terminal(ProgressLine):
    """A run on a terminal: its beginning and its notes as lines, and below them the line that is
    redrawn."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines = Lines(stream)

    def show(self, event: ProgressEvent) -> None:
        if isinstance(event, Began | Note):
            self.close()
            self._lines(event)
        super().show(event)


def watch_run(
    *,
    plain: bool = False,
    stream: TextIO | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Watcher:
    """What shows a run on `stream` (None = stderr): lines if `plain` or nothing can be redrawn."""
    out: TextIO = sys.stderr if stream is None else stream
    utf8 = (getattr(out, "encoding", None) or "").lower().replace("-", "") == "utf8"
    dumb = environment.get("TERM", "") in ("", "dumb")
    return Lines(out) if plain or dumb or not (utf8 and out.isatty()) else Terminal(out)


def line_text(view: RunView, now: float, width: int) -> str:
    """How far it is, in at most `width` characters: facts that have no room are left out."""
    label = "pco [simulated]" if view.simulated else "pco"
    if (phase := view.phase) is not None:
        counts = f": {phase.done} of {phase.total}{_left(view.phase_left(now), ', about ')}"
        start = f"{label} {' '.join(one_line(phase.name).split())}"
        return start[: max(0, width - len(counts))] + counts[:width]
    steps, spent = view.run.steps if view.run is not None else 0, view.spent
    at = f"step {view.step + 1} of {steps}{_left(view.training_left(), ', about ')}"
    of = "" if view.limits.calls is None else f" of {view.limits.calls}"
    facts = (
        "" if view.solved is None else f", {percent(view.solved)} of inputs solved so far",
        f", reward {number(view.reward, missing='none')}" if view.seconds else "",
        f", best {view.best[1]:.3f}" if view.best is not None else "",
        f", calls {spent.calls}{of}" if spent.calls else "",
        f", lost {view.lost.calls}" if view.lost.calls else "",
    )
    text = f"{label} {at if steps else 'at work'}"[:width]
    for fact in facts:
        if len(text) + len(fact) > width:
            break
        text += fact
    return text


def counter(tell: Listener, name: str, total: int, before: int = 0) -> Callable[[object], None]:
    """Tells of one more of `total` at each call. `before` are done already."""
    done = before
    tell(Phase(name, done, total))

    def count(_: object) -> None:
        nonlocal done
        done += 1
        tell(Phase(name, done, total))

    return count


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
    """A `counter` that tells a `ProgressLine` on `stream` (None = nowhere)."""
    with ProgressLine(stream or sys.stderr, clock, simulated=simulated) as line:
        yield counter(silent if stream is None else line, name, total, before)


@contextmanager
def watch(listener: Listener | None, stream: TextIO | None) -> Generator[Listener]:
    """Who hears of a run: the user's listener, else the log, and a line on `stream`."""
    log = Lines(None)
    with ProgressLine(stream or sys.stderr) as line:

        def tell(event: ProgressEvent) -> None:
            if stream is not None:
                line(event)
            log(event)

        yield listener or tell
