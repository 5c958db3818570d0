"""A run as it happens: redrawn by rich's own timer where there is a terminal, else as lines."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from promptcodebook.method.state import entropy, selected_since, utilisation
from promptcodebook.paths import run_reference
from promptcodebook.progress import WINDOW, Lines, Note, ProgressEvent, RunView, Watcher, one_line
from promptcodebook.units import cost_text, count_text, duration, lost_text, number, spent_parts

_PER_SECOND = 4
_LEVELS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_NAME = 12
_ROWS = 8  # rows of instincts wished for; more columns are made of them as the width allows
_CELL = 14
_BROAD = 80


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
    if plain or dumb or not (utf8 and out.isatty()):
        return Lines(out)
    return Screen(Console(file=out, no_color=bool(environment.get("NO_COLOR"))))


class Screen(Watcher):
    """The whole run on a terminal. Outside its context it only remembers the events."""

    def __init__(self, console: Console, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(clock)
        self._console = console
        self._live: Live | None = None
        self._ended = False

    def __enter__(self) -> Screen:
        self._live = Live(
            console=self._console,
            refresh_per_second=_PER_SECOND,
            get_renderable=self.layout,
            redirect_stdout=False,  # results go there, and must arrive as they are
        )
        self._live.start()
        return self

    def close(self) -> None:
        """Draws once more and gives the terminal back, whatever happened."""
        live, self._live = self._live, None
        self._ended = True
        if live is not None:
            with suppress(OSError):  # the terminal is gone
                live.stop()

    def show(self, event: ProgressEvent) -> None:
        if isinstance(event, Note) and self._live is not None:
            self._console.print(Text(one_line(event.text)))

    def layout(self) -> LiveLayout:
        """What the screen shows now."""
        return LiveLayout(self.view, self.clock(), self._ended)


@dataclass(frozen=True, slots=True)
class LiveLayout:
    """The view drawn for a terminal of any width; `now` is its clock."""

    view: RunView
    now: float
    ended: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view, width = self.view, options.max_width
        if self.ended and view.run is None:
            return  # nothing began: the error that follows says all
        head = Text("setting up", style="dim")
        if view.run is not None:
            head = Text(view.run.run_id, style="bold")
            head.append("  simulated" if view.simulated else "", style="yellow")
            head.append(f"  {one_line(view.models)}", style="dim")
        lines = [head, *self._progress(width), Text(), *self._curves(width)]
        lines += [Text(), *self._instincts(width), Text()]
        spend, counts = self._spend(), {"failed": view.failed, **dict(sorted(view.tallies.items()))}
        names = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in counts.items() if n)
        incidents = [_label("incidents").append(names, style="yellow")] if names else []
        room = console.height - len(lines) - len(incidents) - 3
        lines += spend if len(spend) <= room else spend[-1 - bool(view.lost.calls) :]
        for line in (*lines, *incidents):
            line.truncate(width, overflow="ellipsis")
            line.no_wrap = True
            yield line
        if not self.ended:
            name = "RUN" if view.run is None else run_reference(Path(view.run.path))
            yield Text(f"Ctrl-C stops; pco train --resume {name} resumes it", style="dim")

    def _progress(self, width: int) -> list[Text]:
        view, cells = self.view, 24 if width >= _BROAD else 8
        if view.run is None:
            return []
        done, planned = view.step + 1, view.run.steps
        lines: list[Text] = []
        if planned:
            line = _label("step").append(bar(done / planned, cells), style="cyan")
            line.append(f" {done} of {planned}")
            if (left := view.training_left()) and not self.ended:
                line.append(f", at most {duration(left)} left", style="dim")
            lines = [line.append(f", {duration(self.now - view.began)} so far", style="dim")]
        if self.ended:
            return lines
        now = _label("now")
        if (phase := view.phase) is not None:
            now.append(bar(phase.done / max(1, phase.total), cells), style="magenta")
            now.append(f" {one_line(phase.name)}: {phase.done} of {phase.total}")
            left = view.phase_left(self.now)
            now.append(f", {duration(left)} left" if left else "", style="dim")
        elif planned:
            now.append("finishing" if done >= planned else f"training step {done + 1}")
        else:
            now.append("at work")
        return [*lines, now]

    def _curves(self, width: int) -> list[Text]:
        view = self.view
        room = max(8, width - _NAME - 34)
        reward, curve = _label("solved" if view.solved else "reward"), view.solved or view.rewards
        if curve:
            reward.append(f"{curve[-1]:6.3f}  ", style="bold")
            reward.append(sparkline(curve, room), style="green")
        tries = f"  reward of tries {number(view.reward)}" if view.solved else ""
        epsilon = "" if view.epsilon is None else f"  ε {view.epsilon:.2f}"
        reward.append(tries or epsilon, style="dim")
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
        line, counts = _label("routing"), self.view.counts
        if not counts:
            return [line]
        most = math.log2(len(counts[-1])) if len(counts[-1]) > 1 else 0.0
        recent, learned = selected_since(counts[0], counts[-1]), bool(self.view.solved)
        line.append("" if learned else f"{entropy(counts[-1]):6.2f} of {most:.2f} bits, ")
        line.append(f"{100 * utilisation(counts[-1]):.0f} % used")
        now = "" if learned else f"{entropy(recent):.2f} bits, "
        now += f"{100 * utilisation(recent):.0f} % used"
        if width >= _BROAD:
            return [line.append(f"; last {WINDOW} steps {now}", style="dim")]
        return [line, _label(f"last {WINDOW}").append(f"  {now}", style="dim")]

    def _instincts(self, width: int) -> list[Text]:
        counts = self.view.counts[-1] if self.view.counts else ()
        if not counts:
            return []
        columns = max(1, min(math.ceil(len(counts) / _ROWS), width // _CELL))
        rows = math.ceil(len(counts) / columns)
        cells = [self._instinct(k, counts, width // columns) for k in range(len(counts))]
        return [Text().join(cells[row::rows]) for row in range(rows)]

    def _instinct(self, k: int, counts: Sequence[int], cell: int) -> Text:
        view, text_room = self.view, cell - 29
        long = text_room >= 12
        line = Text(f"{k:>2} ", style="dim")
        share = counts[k] / max(1, *counts)
        line.append(bar(share, 10 if long else max(2, cell - 10)), style="cyan")
        line.append(f" {count_text(counts[k]):>5}")
        if long:
            success = "" if view.solved else f"{view.success[k]:.2f}"
            line.append(f" {success:4}  ", style="dim")
            line.append(set_cell_size(one_line(view.texts[k]), text_room))
        return line.append(" " * max(0, cell - cell_len(line.plain)))

    def _spend(self) -> list[Text]:
        view = self.view
        lines: list[Text] = []
        if view.counts and "executor" not in view.usage:
            lines.append(_label("executor").append("not metered"))
        for role, usage in view.usage.items():
            used = f"{count_text(usage.calls):>6} calls {count_text(usage.tokens):>7} tokens"
            cost = f"  {cost_text(usage.cost)}"
            lines.append(_label(str(role)).append(used).append(cost, style="dim"))
        calls, tokens, cost = spent_parts(view.spent, view.limits)
        total = _label("spent").append(f"{calls}, {tokens}").append(f", {cost}", style="dim")
        total.stylize("bold")
        lost = [_label("").append(f"of it {lost_text(view.lost)}")] if view.lost.calls else []
        return [*lines, total, *lost]


def bar(share: float, width: int) -> str:
    """A bar of `width` cells, filled to the eighth of a cell."""
    full, rest = divmod(round(min(1.0, max(0.0, share)) * width * 8), 8)
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


def _label(name: str) -> Text:
    return Text(f"{name:<{_NAME}}", style="dim") + Text("", style="none")
