"""A run as it happens, in a terminal: redrawn by its own timer, so that the loop never waits.

What a watcher of a run knows of it: a fold over the run's events, for every view.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from promptcodebook.calls import Limits, Role, Usage
from promptcodebook.method.state import entropy, selected_since, utilisation
from promptcodebook.paths import run_reference
from promptcodebook.progress import (
    Began,
    Note,
    Phase,
    ProgressEvent,
    Spent,
    StepDone,
    ValidationDone,
)
from promptcodebook.text import printable
from promptcodebook.types import Step
from promptcodebook.units import cost_text, count_text, duration, lost_text, spent_parts

WINDOW = 10
"""Steps that moving figures look back over."""
_KEPT = 1000
_BREAKS = re.compile(r"[\n\t]")


@dataclass(frozen=True, slots=True)
class RunView:
    """What a watcher knows of a run. Replaced as a whole by each event, so that another thread may
    read it at any time.

    Times are seconds of the view's own clock; `rewards` are batch means of the latest steps,
    `counts` the selection counts before and after the latest steps (the last one is the present).
    """

    run: Began | None = None
    began: float = 0.0
    step: int = -1
    epsilon: float | None = None
    rewards: tuple[float, ...] = ()
    reward: float | None = None
    counts: tuple[tuple[int, ...], ...] = ()
    success: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()
    seconds: tuple[float, ...] = ()
    validations: tuple[tuple[int, float], ...] = ()
    best: tuple[int, float] | None = None
    failed: int = 0
    phase: Phase | None = None
    phase_began: float = 0.0
    usage: Mapping[Role, Usage] = field(default_factory=dict[Role, Usage])
    tallies: Mapping[str, int] = field(default_factory=dict[str, int])
    lost: Usage = Usage()
    limits: Limits = Limits()

    @property
    def models(self) -> str:
        """The models of the run's roles, each once."""
        specs = self.run.models.values() if self.run is not None else ()
        return ", ".join(sorted({spec or "your own model" for spec in specs}))

    @property
    def recent(self) -> tuple[int, ...]:
        """Selections of the last steps."""
        return selected_since(self.counts[0], self.counts[-1]) if self.counts else ()

    @property
    def spent(self) -> Usage:
        """All that was paid, or may have been: what was lost to failures included."""
        return sum(self.usage.values(), self.lost)

    def training_left(self) -> float | None:
        """Seconds that the remaining steps take at the recent pace, validations not counted."""
        if self.run is None or not self.seconds:
            return None
        pace = sum(self.seconds) / len(self.seconds)
        return pace * max(0, self.run.steps - self.step - 1)

    def phase_left(self, now: float) -> float | None:
        """Seconds that the present phase still takes, None before its first unit is done."""
        phase = self.phase
        if phase is None or phase.done == 0:
            return None
        return (now - self.phase_began) / phase.done * (phase.total - phase.done)


def advance(view: RunView, event: ProgressEvent, now: float) -> RunView:
    """What is known after one more event."""
    match event:
        case Began():
            return replace(view, run=event, began=now)
        case Phase(name, done, total):
            new = view.phase is None or view.phase.name != name
            began = now if new else view.phase_began
            return replace(view, phase=event if done < total else None, phase_began=began)
        case StepDone():
            return _advance_step(view, event)
        case ValidationDone(step, evaluation, best, finalist):
            score = evaluation.score
            if score is None:
                return view
            marks = (*view.validations, *([] if finalist else [(step, score)]))[-_KEPT:]
            return replace(
                view, validations=marks, best=(step, score) if best else view.best, phase=None
            )
        case Spent(usage, tallies, lost, limits):
            return replace(view, usage=usage, tallies=tallies, lost=lost, limits=limits)
        case Note():
            return view


def _advance_step(view: RunView, event: StepDone) -> RunView:
    step = event.step
    rewards = [t.rollout.reward for t in step.traces if t.rollout.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    failed = sum(t.rollout.failure is not None or t.failure is not None for t in step.traces)
    return replace(
        view,
        step=step.index,
        epsilon=step.epsilon,
        reward=mean,
        rewards=(*view.rewards, mean)[-_KEPT:] if mean is not None else view.rewards,
        counts=(*(view.counts or (_counts_before(step),)), step.selected)[-WINDOW - 1 :],
        success=step.success,
        texts=step.parameters.codebook.texts,
        seconds=(*view.seconds, event.seconds)[-2 * WINDOW :],
        failed=view.failed + failed,
        phase=None,
    )


def _counts_before(step: Step) -> tuple[int, ...]:
    """The selection counts that the step began with: a run that is resumed, or that goes on from a
    policy, does not begin at 0."""
    known = [t.rollout for t in step.traces if t.rollout.reward is not None]
    picked = Counter(k for r in known if r.route is not None for k in r.route.indices)
    return tuple(max(0, n - picked[k]) for k, n in enumerate(step.selected))


def one_line(text: str) -> str:
    """Printable, its line breaks and tabs as spaces."""
    return _BREAKS.sub(" ", printable(text))


_PER_SECOND = 4
_LEVELS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_NAME = 12
_ROWS = 8
"""Rows of instincts wished for; more columns are made of them as the width allows."""
_CELL = 14
_BROAD = 80


class LiveView:
    """A Listener and context manager. Outside its context it only remembers the events.

    The timer's thread reads one frozen value, which each event replaces: no lock is needed.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._view = RunView()
        self._live: Live | None = None
        self._ended = False

    def __enter__(self) -> LiveView:
        self._live = Live(
            console=self._console,
            refresh_per_second=_PER_SECOND,
            get_renderable=self.layout,
            redirect_stdout=False,  # results go there, and must arrive as they are
        )
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Draws once more and gives the terminal back, whatever happened."""
        live, self._live = self._live, None
        self._ended = True
        if live is not None:
            with contextlib.suppress(OSError):  # the terminal is gone
                live.stop()

    def __call__(self, event: ProgressEvent) -> None:
        self._view = advance(self._view, event, self._clock())
        if isinstance(event, Note) and self._live is not None:
            with contextlib.suppress(OSError):
                self._console.print(Text(one_line(event.text)))

    def layout(self) -> LiveLayout:
        """What the view shows now."""
        return LiveLayout(self._view, self._clock(), self._ended)


@dataclass(frozen=True, slots=True)
class LiveLayout:
    """The view drawn for a terminal of any width. `now` is its clock; an `ended` run has nothing
    left to do."""

    view: RunView
    now: float
    ended: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.ended and self.view.run is None:
            return  # nothing began: the error that follows says all
        width = options.max_width
        lines = [*self._head(), *self._progress(width), Text(), *self._curves(width)]
        lines += [Text(), *self._instincts(width), Text()]
        spend, incidents = self._spend(), self._incidents()
        room = console.height - len(lines) - len(incidents) - 3
        lines += spend if len(spend) <= room else spend[-1 - bool(self.view.lost.calls) :]
        for line in (*lines, *incidents):
            line.truncate(width, overflow="ellipsis")
            line.no_wrap = True
            yield line
        if not self.ended:
            yield self._hint()

    def _head(self) -> list[Text]:
        run = self.view.run
        if run is None:
            return [Text("setting up", style="dim")]
        line = Text(run.run_id, style="bold")
        if run.simulated:
            line.append("  simulated", style="yellow")
        return [line.append(f"  {one_line(self.view.models)}", style="dim")]

    def _progress(self, width: int) -> list[Text]:
        view = self.view
        if view.run is None:
            return []
        done, planned = view.step + 1, view.run.steps
        if not planned:
            return [] if self.ended else [self._now(width)]
        line = _label("step")
        line.append(bar(done / planned, _bar_width(width)), style="cyan")
        line.append(f" {done} of {planned}")
        left = view.training_left()
        if left and not self.ended:
            line.append(f", at most {duration(left)} left", style="dim")
        line.append(f", {duration(self.now - view.began)} so far", style="dim")
        return [line] if self.ended else [line, self._now(width)]

    def _now(self, width: int) -> Text:
        view, line = self.view, _label("now")
        phase = view.phase
        if phase is None:
            if view.run is not None and not view.run.steps:
                return line.append("at work")
            last = view.run is not None and view.step + 1 >= view.run.steps
            return line.append("finishing" if last else f"training step {view.step + 2}")
        share = phase.done / phase.total if phase.total else 0.0
        line.append(bar(share, _bar_width(width)), style="magenta")
        line.append(f" {one_line(phase.name)}: {phase.done} of {phase.total}")
        left = view.phase_left(self.now)
        return line.append(f", {duration(left)} left" if left else "", style="dim")

    def _curves(self, width: int) -> list[Text]:
        view = self.view
        room = max(8, width - _NAME - 34)
        reward = _label("reward")
        if view.reward is not None:
            reward.append(f"{view.reward:6.3f}  ", style="bold")
            reward.append(sparkline(view.rewards, room), style="green")
        epsilon = "" if view.epsilon is None else f"  ε {view.epsilon:.2f}"
        reward.append(epsilon, style="dim")
        validation = _label("validation")
        if view.validations:
            validation.append(f"{view.validations[-1][1]:6.3f}  ", style="bold")
            validation.append(sparkline([y for _, y in view.validations], room), style="green")
        if view.best is not None:
            step, score = view.best
            when = "untrained" if step < 0 else f"after step {step + 1}"
            validation.append(f"  best {score:.3f} {when}", style="dim")
        return [reward, validation, *self._routing(width)]

    def _routing(self, width: int) -> list[Text]:
        line, counts = _label("routing"), self.view.counts[-1:]
        if not counts:
            return [line]
        most = math.log2(len(counts[0])) if len(counts[0]) > 1 else 0.0
        line.append(f"{entropy(counts[0]):6.2f} of {most:.2f} bits, ")
        line.append(f"{100 * utilisation(counts[0]):.0f} % used")
        recent = self.view.recent
        now = f"{entropy(recent):.2f} bits, {100 * utilisation(recent):.0f} % used"
        if width >= _BROAD:
            return [line.append(f"; last {WINDOW} steps {now}", style="dim")]
        return [line, _label(f"last {WINDOW}").append(f"  {now}", style="dim")]

    def _instincts(self, width: int) -> list[Text]:
        counts = self.view.counts[-1] if self.view.counts else ()
        if not counts:
            return []
        columns = max(1, min(-(-len(counts) // _ROWS), width // _CELL))
        rows = -(-len(counts) // columns)
        cell = width // columns
        lines: list[Text] = []
        for row in range(rows):
            line = Text()
            for k in range(row, len(counts), rows):
                line.append_text(self._instinct(k, counts, cell))
            lines.append(line)
        return lines

    def _instinct(self, k: int, counts: Sequence[int], cell: int) -> Text:
        """One instinct in `cell` columns: index, usage bar, count and, with room, r and text."""
        view, room = self.view, cell - 1
        text_room = room - 28
        long = text_room >= 12
        width = 10 if long else room - 9
        line = Text(f"{k:>2} ", style="dim")
        line.append(bar(counts[k] / max(1, *counts), max(2, width)), style="cyan")
        line.append(f" {count_text(counts[k]):>5}")
        if long:
            line.append(f" {view.success[k]:.2f}  ", style="dim")
            line.append(set_cell_size(one_line(view.texts[k]), text_room))
        line.append(" " * max(0, cell - cell_len(line.plain)))
        return line

    def _spend(self) -> list[Text]:
        """A line for each role, then the sum beside its limits, and what of it was lost."""
        view = self.view
        lines = [_usage_line(str(role), usage) for role, usage in view.usage.items()]
        calls, tokens, cost = spent_parts(view.spent, view.limits)
        total = _label("spent").append(f"{calls}, {tokens}").append(f", {cost}", style="dim")
        total.stylize("bold")
        lost = [_label("").append(f"of it {lost_text(view.lost)}")] if view.lost.calls else []
        return [*lines, total, *lost]

    def _incidents(self) -> list[Text]:
        names = [f"failed {self.view.failed}"] if self.view.failed else []
        tallies = sorted(self.view.tallies.items())
        names += [f"{name.replace('_', ' ')} {count}" for name, count in tallies if count]
        return [_label("incidents").append(", ".join(names), style="yellow")] if names else []

    def _hint(self) -> Text:
        run = self.view.run
        name = "RUN" if run is None else run_reference(Path(run.path))
        return Text(f"Ctrl-C stops; pco train --resume {name} resumes it", style="dim")


def bar(share: float, width: int) -> str:
    """A bar of `width` cells, filled to the eighth of a cell."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[rest] if rest else "")
    return drawn + "░" * (width - len(drawn))


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as blocks between their lowest and highest; more than `width` are averaged."""
    if not values:
        return ""
    count = min(len(values), max(1, width))
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return _LEVELS[3] * count
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round((m - low) / (high - low) * top)] for m in means)


def _bar_width(width: int) -> int:
    return 24 if width >= _BROAD else 8


def _label(name: str) -> Text:
    return Text(f"{name:<{_NAME}}", style="dim") + Text("", style="none")


def _usage_line(name: str, usage: Usage) -> Text:
    line = _label(name)
    line.append(f"{count_text(usage.calls):>6} calls {count_text(usage.tokens):>7} tokens")
    return line.append(f"  {cost_text(usage.cost)}", style="dim")
