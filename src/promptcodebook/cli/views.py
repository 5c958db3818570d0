"""How a run is shown: as plain lines, or live where there is a terminal."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, TextIO

from promptcodebook.cli.live import RunView, advance, one_line
from promptcodebook.method.state import entropy, utilisation
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
from promptcodebook.units import duration, number, spent_parts

PAUSE = 2.0
"""Seconds between two lines about the progress of a phase, at the least."""


class View(Protocol):
    """A Listener that holds the terminal while it is entered."""

    def __enter__(self) -> View: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def __call__(self, event: ProgressEvent) -> None: ...


def can_redraw(stream: TextIO, environment: Mapping[str, str] | None = None) -> bool:
    """Whether `stream` is a terminal that shows blocks and moves its cursor."""
    env = os.environ if environment is None else environment
    dumb = env.get("TERM", "") in ("", "dumb")
    utf8 = (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"
    return stream.isatty() and utf8 and not dumb


def make_view(
    stream: TextIO, *, plain: bool = False, environment: Mapping[str, str] | None = None
) -> View:
    """The view for `stream` (stderr): lines with `plain`, or where nothing can be redrawn.

    NO_COLOR takes the colours and leaves the rest.
    """
    env = os.environ if environment is None else environment
    if plain or not can_redraw(stream, env):
        return LineView(stream)
    from rich.console import Console

    from promptcodebook.cli.live import LiveView

    return LiveView(Console(file=stream, no_color=bool(env.get("NO_COLOR"))))


class LineView:
    """A run for logs and pipes: no colour, no cursor, one line for each thing."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._view = RunView()
        self._last = -PAUSE

    def __enter__(self) -> LineView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __call__(self, event: ProgressEvent) -> None:
        now = self._clock()
        self._view = advance(self._view, event, now)
        match event:
            case Began():
                self._write_start(event)
            case Phase():
                self._write_progress(event, now)
            case StepDone():
                self._write_figures(_step_line(self._view, event))
            case ValidationDone():
                self._write_figures(_validation_line(event))
            case Note(text):
                self._write(text)
            case Spent():
                pass

    def _write_start(self, run: Began) -> None:
        steps = f"step {run.first + 1} of {run.steps}" if run.first else f"{run.steps} steps"
        ours = f"{steps}, K = {run.size}, " if run.steps else ""
        self._write_figures(f"run {run.run_id}: {ours}{self._view.models}")
        again = f"pco train --resume {run_reference(Path(run.path))}"
        self._write(f"in {run.path}; Ctrl-C stops, `{again}` resumes it")

    def _write_progress(self, phase: Phase, now: float) -> None:
        if now - self._last < PAUSE:
            return
        self._last = now
        left = self._view.phase_left(now)
        rest = "" if left is None else f", {duration(left)} left"
        self._write(f"{phase.name}: {phase.done} of {phase.total}{rest}")

    def _write_figures(self, text: str) -> None:
        """A line with figures, which says where they come from."""
        run = self._view.run
        self._write(f"[simulated] {text}" if run is not None and run.simulated else text)

    def _write(self, text: str) -> None:
        # A terminal that is gone, or a full disk below a log, must not cost the run.
        with contextlib.suppress(OSError):
            self._stream.write(one_line(text) + "\n")
            self._stream.flush()


def _validation_line(event: ValidationDone) -> str:
    after = "untrained" if event.step < 0 else f"after step {event.step + 1}"
    what = "choosing what to keep: validation" if event.finalist else "validation"
    best = ", best" if event.best else ""
    score = number(event.evaluation.score, missing="none")
    return f"{what} {after}: {score} (n = {len(event.evaluation.rollouts)}){best}"


def _step_line(view: RunView, event: StepDone) -> str:
    step, spent, left = event.step, view.spent, view.training_left()
    planned = f" of {view.run.steps}" if view.run is not None else ""
    parts = [
        f"step {step.index + 1}{planned}",
        f"reward {number(view.reward, missing='none')}",
        f"epsilon {step.epsilon:.2f}",
        f"entropy {entropy(step.selected):.2f} bits",
        f"utilisation {100 * utilisation(step.selected):.0f} %",
    ]
    if view.failed:
        parts.append(f"{view.failed} failed")
    if spent.calls:
        calls, tokens, cost = spent_parts(spent, view.limits)
        parts += [f"{calls}, {tokens}", cost]
    if view.lost.calls:
        parts.append(f"{view.lost.calls} lost")
    if left:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)
