"""An experiment from its cells to its page. Finished cells are not measured again.

Threads of this process measure the cells; they share the lab's model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol

from promptcodebook.errors import (
    ConfigError,
    Interrupted,
    MissingExtra,
    PcoError,
    Stop,
    did_you_mean,
)
from promptcodebook.experiments.experiment import Experiment, Measured, Order
from promptcodebook.experiments.lab import Cell, Lab, Result
from promptcodebook.experiments.page import draw, latex, markdown, plain
from promptcodebook.signals import stop_signals
from promptcodebook.units import duration

Outcome = Result | PcoError
"""Of a cell: its result, or why it failed."""
_LOOK_UP_S = 0.2


@dataclass
class Progress:
    """Says which cells began and ended, of how many, and how long the rest will take. `keep` gets
    each result or error."""

    total: int
    known: int
    tell: Callable[[str], None]
    keep: Callable[[Cell, Outcome], None]
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
        done = self.known + self.ended
        if left := self.total - done:
            rest = duration((time.monotonic() - self.since) / self.ended * left)
            self.tell(f"{done} of {self.total} cells finished, {rest} left")
        self.keep(cell, outcome)


class Workers(Protocol):
    """Measures cells, and hands each to `progress` as it ends.

    Raises the Stop that ended it early, when nothing is at work any more, and KeyboardInterrupt.
    """

    def measure(self, cells: Sequence[Cell], progress: Progress) -> None: ...


@dataclass(frozen=True, slots=True)
class Threads:
    """Measures `width` cells at once. A single one is measured in the calling thread, so that its
    progress is shown."""

    lab: Lab
    width: int = 1

    def measure(self, cells: Sequence[Cell], progress: Progress) -> None:
        if self.width > 1:
            with ThreadPoolExecutor(self.width, "cell") as pool:
                crew = Crew(self.width, progress, self.lab.relay.interrupt)
                crew.measure(cells, lambda cell: pool.submit(self._attempt, cell))
            return
        waiting = list(cells)
        while (cell := _ready(waiting, ())) is not None:
            waiting.remove(cell)
            progress.begin(cell)
            progress.end(cell, self._attempt(cell))

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

    def __init__(self, width: int, progress: Progress, interrupt: Callable[[], None]) -> None:
        self._width, self._progress, self._interrupt = width, progress, interrupt
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
            self._progress.end(cell, future.result())
        except BaseException as why:
            # A KeyboardInterrupt from there is what the others were interrupted with.
            if self._stop is None:
                self._stop = why
                self._interrupt()


def _ready(waiting: Sequence[Cell], at_work: Sequence[Cell]) -> Cell | None:
    """The first that comes after none of the others."""
    unfinished = {cell.name for cell in (*waiting, *at_work)}
    return next((cell for cell in waiting if not unfinished & set(cell.after)), None)


_HOMES: Mapping[str, str] = {
    "main": "main:MAIN",
    "prompt-length": "main:PROMPT_LENGTH",
    "codebook-usage": "variants:USAGE",
    "specialisation": "variants:SPECIALISATION",
    "ablation": "variants:ABLATION",
    "sweep-k": "variants:SWEEP_K",
    "sweep-s": "variants:SWEEP_S",
    "critic": "variants:CRITIC",
    "cost": "main:COST",
    "attribution": "attribution:EXPERIMENT",
    "sensitivity": "variants:SENSITIVITY",
    "init": "variants:INIT",
    "routing": "variants:ROUTING",
    "evolution": "variants:EVOLUTION",
    "prompts": "variants:PROMPTS",
    "theory": "theory:EXPERIMENT",
    "when-it-pays": "when_it_pays:EXPERIMENT",
    "small-real-model": "small_real_model:EXPERIMENT",
}
"""Where each experiment is, in the order of the paper."""


def experiment_names() -> tuple[str, ...]:
    """In the order of the paper."""
    return tuple(_HOMES)


def experiment_named(name: str) -> Experiment:
    """ConfigError for an unknown one."""
    if name not in _HOMES:
        raise ConfigError(
            f"there is nothing to reproduce under the name {name!r}{did_you_mean(name, _HOMES)}",
            hint=f"pco reproduce {' | '.join(_HOMES)}",
        )
    module, _, variable = _HOMES[name].partition(":")
    return getattr(import_module(f"promptcodebook.experiments.{module}"), variable)


def require_preset(experiment: Experiment, preset: str) -> None:
    """ConfigError for one that the experiment does not have."""
    if preset not in experiment.presets:
        raise ConfigError(
            f"{experiment.name} has no preset {preset!r}{did_you_mean(preset, experiment.presets)}",
            hint=f"--preset {' or '.join(experiment.presets)}",
        )


def measure(
    order: Order, lab: Lab, tell: Callable[[str], None], workers: Workers | None = None
) -> Measured:
    """Measures every cell that is not finished, by `workers` (None = one after the other), gates
    first. One that fails is noted and the others continue; a Stop ends all and loses nothing."""
    cells = order.experiment.cells(order, lab.spec)
    found = {cell.name: known for cell in cells if (known := lab.read(cell)) is not None}
    missing: dict[str, str] = {}

    def keep(cell: Cell, outcome: Outcome) -> None:
        if isinstance(outcome, PcoError):
            missing[cell.name] = str(outcome)
            return
        lab.keep(cell, outcome)
        found[cell.name] = outcome

    gates = {cell.gate.name for cell in cells if cell.gate}
    stop: Stop | None = None
    try:
        for of_gates in (True, False):
            part = [cell for cell in cells if (cell.name in gates) == of_gates]
            for cell in part:
                # A cell whose gate is shut comes to what the gate says, unmeasured.
                if cell.name not in found and cell.gate and cell.gate.name in found:
                    instead = cell.gate.instead(found[cell.gate.name])
                    if instead is not None:
                        keep(cell, instead)
            left = [cell for cell in part if cell.name not in found]
            if left:
                progress = Progress(len(part), len(part) - len(left), tell, keep)
                (workers or Threads(lab)).measure(left, progress)
    except Stop as reached:
        stop = reached
    results = {cell.name: found[cell.name] for cell in cells if cell.name in found}
    missing = {c.name: missing.get(c.name, "") for c in cells if c.name not in found}
    return Measured(order, lab, results, missing, stop)


def write_page(out: Path, measured: Measured) -> Path:
    """NAME.md in `out`, and in its folder NAME every table as LaTeX, every figure as SVG and PNG,
    and `results.json`: what the cells came to, and the tables. Where matplotlib is missing the page
    says so in each figure's place; asked for again, the command draws without measuring."""
    name, page = measured.order.experiment.name, measured.order.experiment.page(measured)
    folder, undrawn = out / name, ""
    folder.mkdir(parents=True, exist_ok=True)
    for table in page.tables:
        (folder / f"{table.name}.tex").write_text(latex(table), "utf-8")
    try:
        for figure in page.figures:
            draw(figure, folder)
    except MissingExtra as missing:
        undrawn = f"not drawn ({missing.hint})"
    kept = {
        "experiment": name,
        "preset": measured.order.preset,
        "seeds": measured.order.seeds,
        "model": measured.lab.spec,
        "weights": measured.lab.weights,
        "versions": measured.lab.versions,
        "missing": dict(measured.missing),
        "tables": plain(page),
        "results": dict(measured.results),
    }
    text = json.dumps(kept, ensure_ascii=False, sort_keys=True)
    (folder / "results.json").write_text(text + "\n", "utf-8")
    path = out / f"{name}.md"
    path.write_text(markdown(page, name, undrawn), "utf-8")
    return path
