"""A run as plain lines, for logs and pipes: no colour, no cursor, one line for each thing."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from promptcodebook.cli.amounts import money, short_count, span
from promptcodebook.cli.seen import Seen, heard, printable
from promptcodebook.method.statistics import entropy, utilisation
from promptcodebook.session.events import (
    Began,
    Event,
    Note,
    Phase,
    Spent,
    Stepped,
    Validated,
)

__all__ = ["PAUSE", "LineView"]

PAUSE = 2.0
"""Seconds between two lines about the progress of a phase, at the least."""


class LineView:
    """A Listener that writes lines to a stream; a context manager like the live view."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._seen = Seen()
        self._last = -PAUSE

    def __enter__(self) -> LineView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.flush()

    def __call__(self, event: Event) -> None:
        now = self._clock()
        if isinstance(event, Phase):  # its own end would be forgotten with the state
            self._seen = heard(self._seen, event, now)
            self._progress(event, now)
            return
        self._seen = heard(self._seen, event, now)
        match event:
            case Began():
                self._began(event)
            case Stepped():
                self._say(_step_line(self._seen, event))
            case Validated(step, evaluation, best, finalist):
                score = "none" if evaluation.score is None else f"{evaluation.score:.3f}"
                after = "untrained" if step < 0 else f"after step {step + 1}"
                n = len(evaluation.rollouts)
                what = "choosing what to keep: validation" if finalist else "validation"
                self._say(f"{what} {after}: {score} (n = {n})" + (", best" if best else ""))
            case Note(text):
                self._write(text)
            case Spent():
                pass

    def _began(self, run: Began) -> None:
        models = sorted({model or "your own model" for model in run.models.values()})
        going = f"step {run.first + 1} of {run.steps}" if run.first else f"{run.steps} steps"
        self._say(f"run {run.run_id}: {going}, K = {run.size}, {', '.join(models)}")
        self._write(
            f"in {run.path}; Ctrl-C stops, `pco train --resume {run.run_id}` goes on from there"
        )

    def _progress(self, phase: Phase, now: float) -> None:
        if now - self._last < PAUSE:
            return
        self._last = now
        left = self._seen.phase_left(now)
        said = "" if left is None else f", {span(left)} left"
        self._write(f"{phase.name}: {phase.done}/{phase.total}{said}")

    def _say(self, text: str) -> None:
        """A line with numbers, which says where they come from."""
        run = self._seen.run
        self._write(f"[simulated] {text}" if run is not None and run.simulated else text)

    def _write(self, text: str) -> None:
        self._stream.write(printable(text) + "\n")
        self._stream.flush()


def _step_line(seen: Seen, event: Stepped) -> str:
    step = event.step
    planned = f"/{seen.run.steps}" if seen.run is not None else ""
    reward = "none" if seen.reward is None else f"{seen.reward:.3f}"
    parts = [
        f"step {step.index + 1}{planned}",
        f"reward {reward}",
        f"epsilon {step.epsilon:.2f}",
        f"entropy {entropy(step.selected):.2f} bits",
        f"utilisation {100 * utilisation(step.selected):.0f} %",
    ]
    parts += [f"{seen.failed} failed"] if seen.failed else []
    spent = seen.spent
    if spent.calls:
        parts.append(f"{spent.calls} calls, {short_count(spent.tokens)} tokens")
        parts.append(money(spent.cost))
    left = seen.training_left()
    parts += [f"{span(left)} left"] if left else []
    return "  ".join(parts)
