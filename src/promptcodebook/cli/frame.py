"""One frame of the live view: a run's state drawn for a terminal of any width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from promptcodebook.cli.amounts import money, short_count, span
from promptcodebook.cli.seen import WINDOW, Seen, printable
from promptcodebook.method.statistics import entropy, utilisation
from promptcodebook.types import Usage

__all__ = ["Frame", "bar", "sparkline"]

_LEVELS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_NAME = 12
_ROWS = 8
"""Rows of instincts wished for; more columns are made of them as the width allows."""
_CELL = 14
_BROAD = 80


@dataclass(frozen=True, slots=True)
class Frame:
    """A renderable; `now` is the view's clock; an `ended` run has nothing left to do."""

    seen: Seen
    now: float
    ended: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        lines = [*self._head(), *self._progress(width), Text(), *self._curves(width)]
        lines += [Text(), *self._instincts(width), Text()]
        spend, incidents = self._spend(), self._incidents()
        room = console.height - len(lines) - len(incidents) - 3
        lines += spend if len(spend) <= room else spend[-1:]
        for line in (*lines, *incidents):
            line.truncate(width, overflow="ellipsis")
            line.no_wrap = True
            yield line
        if not self.ended:
            yield self._hint()

    def _head(self) -> list[Text]:
        run = self.seen.run
        if run is None:
            return [Text("setting up", style="dim")]
        line = Text(run.run_id, style="bold")
        if run.simulated:
            line.append("  simulated", style="yellow")
        models = sorted({model or "your own model" for model in run.models.values()})
        return [line.append(f"  {printable(', '.join(models))}", style="dim")]

    def _progress(self, width: int) -> list[Text]:
        seen = self.seen
        if seen.run is None:
            return []
        done, planned = seen.step + 1, seen.run.steps
        line = _named("step")
        line.append(bar(done / planned if planned else 0.0, _bar_width(width)), style="cyan")
        line.append(f" {done} of {planned}")
        left = seen.training_left()
        if left and not self.ended:
            line.append(f", at most {span(left)} left", style="dim")
        line.append(f", {span(self.now - seen.began)} so far", style="dim")
        return [line] if self.ended else [line, self._now(width)]

    def _now(self, width: int) -> Text:
        seen, line = self.seen, _named("now")
        phase = seen.phase
        if phase is None:
            run = seen.run
            last = run is not None and seen.step + 1 >= run.steps
            return line.append("finishing" if last else f"training step {seen.step + 2}")
        share = phase.done / phase.total if phase.total else 0.0
        line.append(bar(share, _bar_width(width)), style="magenta")
        line.append(f" {printable(phase.name)} {phase.done} of {phase.total}")
        left = seen.phase_left(self.now)
        return line.append(f", {span(left)} left" if left else "", style="dim")

    def _curves(self, width: int) -> list[Text]:
        seen = self.seen
        room = max(8, width - _NAME - 34)
        reward = _named("reward")
        if seen.reward is not None:
            reward.append(f"{seen.reward:6.3f}  ", style="bold")
            reward.append(sparkline(seen.rewards, room), style="green")
        epsilon = "" if seen.epsilon is None else f"  ε {seen.epsilon:.2f}"
        reward.append(epsilon, style="dim")
        validation = _named("validation")
        if seen.validations:
            validation.append(f"{seen.validations[-1][1]:6.3f}  ", style="bold")
            validation.append(sparkline([y for _, y in seen.validations], room), style="green")
        if seen.best is not None:
            at, score = seen.best
            where = "untrained" if at < 0 else f"at step {at + 1}"
            validation.append(f"  best {score:.3f} {where}", style="dim")
        return [reward, validation, *self._routing(width)]

    def _routing(self, width: int) -> list[Text]:
        line, counts = _named("routing"), self.seen.counts[-1:]
        if not counts:
            return [line]
        most = math.log2(len(counts[0])) if len(counts[0]) > 1 else 0.0
        line.append(f"{entropy(counts[0]):6.2f} of {most:.2f} bits, ")
        line.append(f"{100 * utilisation(counts[0]):.0f} % used")
        recent = self.seen.recent
        now = f"{entropy(recent):.2f} bits, {100 * utilisation(recent):.0f} % used"
        if width >= _BROAD:
            return [line.append(f"; last {WINDOW} steps {now}", style="dim")]
        return [line, _named(f"last {WINDOW}").append(f"  {now}", style="dim")]

    def _instincts(self, width: int) -> list[Text]:
        counts = self.seen.counts[-1] if self.seen.counts else ()
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
        seen, room = self.seen, cell - 1
        text_room = room - 28
        long = text_room >= 12
        width = 10 if long else room - 9
        line = Text(f"{k:>2} ", style="dim")
        line.append(bar(counts[k] / max(1, *counts), max(2, width)), style="cyan")
        line.append(f" {short_count(counts[k]):>5}")
        if long:
            line.append(f" {seen.success[k]:.2f}  ", style="dim")
            line.append(set_cell_size(printable(seen.texts[k]), text_room))
        line.append(" " * max(0, cell - cell_len(line.plain)))
        return line

    def _spend(self) -> list[Text]:
        """A line for each role, the sum last."""
        rows = [(str(role), usage) for role, usage in self.seen.usage.items()]
        lines = [_spent(role, usage) for role, usage in rows]
        lines.append(_spent("spent", self.seen.spent))
        lines[-1].stylize("bold")
        return lines

    def _incidents(self) -> list[Text]:
        found = dict(self.seen.tallies)
        shown = [f"failed {self.seen.failed}"] if self.seen.failed else []
        shown += [f"{name.replace('_', ' ')} {n}" for name, n in sorted(found.items()) if n]
        return [_named("incidents").append(", ".join(shown), style="yellow")] if shown else []

    def _hint(self) -> Text:
        run = self.seen.run
        name = "RUN" if run is None else run.run_id
        return Text(f"Ctrl-C stops; pco train --resume {name} goes on from there", style="dim")


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


def bar(share: float, width: int) -> str:
    """A bar of `width` cells, filled to the eighth of a cell."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[rest] if rest else "")
    return drawn + "░" * (width - len(drawn))


def _bar_width(width: int) -> int:
    return 24 if width >= _BROAD else 8


def _named(name: str) -> Text:
    return Text(f"{name:<{_NAME}}", style="dim") + Text("", style="none")


def _spent(name: str, usage: Usage) -> Text:
    line = _named(name)
    line.append(f"{short_count(usage.calls):>6} calls {short_count(usage.tokens):>7} tokens")
    return line.append(f"  {money(usage.cost)}", style="dim")
