"""An experiment from its cells to its page. Finished cells are not measured again.

Threads of this process measure the cells, which share the lab's model, or tasks on a Ray cluster
(extra [ray]), one a cell. A task on the lab's own machine works in the lab's folder. Elsewhere it
works in a folder of that machine's cache, and its run comes back with the result, so that the lab
holds them all. Nothing but text and bytes is handed over; keys are read where the task runs.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from promptcodebook.cluster import join_cluster, machine_name, require_version
from promptcodebook.errors import (
    ConfigError,
    Interrupted,
    MissingExtra,
    PcoError,
    Stop,
    did_you_mean,
)
from promptcodebook.experiments.experiment import Experiment, Measured, Order
from promptcodebook.experiments.lab import Cell, Lab, Result, open_lab
from promptcodebook.experiments.page import draw, latex, markdown, plain
from promptcodebook.paths import cache_folder
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


@dataclass(frozen=True, slots=True)
class Crew:
    """Keeps `width` cells at work, and lets the first Stop among them, or Ctrl-C, end the others.

    `interrupt` asks all that are at work to end in order; a second time, at once.
    """

    width: int
    progress: Progress
    interrupt: Callable[[], None]

    def measure(self, cells: Sequence[Cell], submit: Callable[[Cell], Future[Outcome]]) -> None:
        """Returns when nothing is at work any more. Raises what ended it early."""
        waiting, at_work = list(cells), dict[Future[Outcome], Cell]()
        stop: BaseException | None = None
        with stop_signals():
            while waiting or at_work:
                try:
                    while len(at_work) < self.width:
                        cell = _ready(waiting, tuple(at_work.values()))
                        if cell is None:
                            break
                        waiting.remove(cell)
                        self.progress.begin(cell)
                        at_work[submit(cell)] = cell
                    done, _ = wait(at_work, _LOOK_UP_S, FIRST_COMPLETED)
                    for future in done:
                        cell = at_work.pop(future)
                        try:
                            self.progress.end(cell, future.result())
                        except BaseException as why:
                            # A KeyboardInterrupt here is what the others were interrupted with.
                            if stop is None:
                                stop = why
                                self.interrupt()
                except KeyboardInterrupt:
                    stop = stop or Interrupted("interrupted by the user")
                    self.interrupt()
                if stop is not None:
                    waiting.clear()
        if stop is not None:
            raise stop


def _ready(waiting: Sequence[Cell], at_work: Sequence[Cell]) -> Cell | None:
    """The first that comes after none of the others."""
    unfinished = {cell.name for cell in (*waiting, *at_work)}
    return next((cell for cell in waiting if not unfinished & set(cell.after)), None)


_STOPS = ("Stop", "Interrupted", "BudgetReached")
_ORDERED = ("preset", "seeds", "task", "data", "independent", "weak")
"""What an order has beside its experiment."""


@dataclass(frozen=True, slots=True)
class OnRay:
    """`width` cells at once on the cluster at `address`; each may have its share of `concurrency`
    calls in flight. MissingExtra without ray, ConfigError where no cluster answers."""

    order: Order
    lab: Lab
    address: str
    width: int
    concurrency: int

    def measure(self, cells: Sequence[Cell], progress: Progress) -> None:
        ray = join_cluster(self.address, self.width, "running cells on a cluster")
        # A task that died is begun again by the next command, which finds its run.
        remote = ray.remote(max_retries=0)(measure_job)
        at_work: dict[Future[Outcome], Any] = {}
        interrupted = False

        def submit(cell: Cell) -> Future[Outcome]:
            reference, outcome = remote.remote(self._job(cell)), Future[Outcome]()
            at_work[outcome] = reference

            def hand_over(reply: Future[bytes]) -> None:
                at_work.pop(outcome, None)
                try:
                    error = reply.exception()
                    if error is None:
                        outcome.set_result(_unpacked(reply.result(), self.lab.folder))
                        return
                    if interrupted:
                        raise Interrupted("interrupted by the user")
                    why = (str(error).strip() or type(error).__name__).splitlines()[0]
                    outcome.set_result(PcoError(f"its task on the cluster was lost: {why}"))
                except BaseException as error:
                    outcome.set_exception(error)

            reference.future().add_done_callback(hand_over)
            return outcome

        def interrupt() -> None:
            """In order first, and the second time at once."""
            nonlocal interrupted
            for reference in list(at_work.values()):
                ray.cancel(reference, force=interrupted)
            interrupted = True

        try:
            Crew(self.width, progress, interrupt).measure(cells, submit)
        finally:
            ray.shutdown()

    def _job(self, cell: Cell) -> str:
        """Which cell, as JSON: there it is made again from its experiment."""
        order = self.order
        cells = {c.name: c for c in order.experiment.cells(order, self.lab.spec)}
        return json.dumps(
            {
                "experiment": order.experiment.name,
                "order": {k: getattr(order, k) for k in _ORDERED},
                "cell": cell.name,
                "needed": {name: self.lab.read(cells[name]) for name in cell.after},
                "spec": self.lab.spec,
                "command": self.lab.command,
                "folder": str(self.lab.folder.resolve()),
                "machine": machine_name(),
                "concurrency": max(1, self.concurrency // self.width),
                "version": version("promptcodebook"),
            }
        )


def measure_job(job: str) -> bytes:
    """Measures the cell that `OnRay` wrote down, on the machine that it came to: a line of JSON
    with its result or its error, and after it the runs that were made there, as a tar."""
    asked, packed = json.loads(job), io.BytesIO()
    away, folder = asked["machine"] != machine_name(), Path(asked["folder"])
    if away:  # the same command finds the same folder on this machine again
        digest = hashlib.sha256(f"{asked['machine']} {folder}".encode()).hexdigest()[:16]
        folder = cache_folder() / "cells" / digest / asked["cell"].replace("/", "-")
    try:
        require_version(asked["version"])
        answer: dict[str, Any] = {"result": _measured(asked, folder)}
    except PcoError as error:
        answer = {"error": type(error).__name__, "message": str(error), "hint": error.hint}
    if away and "result" in answer:
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for run in sorted(folder.iterdir()):
                if run.is_dir() and run.name != "cells":
                    archive.add(run, run.name)
    return json.dumps(answer).encode() + b"\n" + packed.getvalue()


def _measured(told: Mapping[str, Any], folder: Path) -> Any:
    order = Order(experiment_named(told["experiment"]), **told["order"])
    concurrency = told["concurrency"]
    lab = open_lab(folder, told["spec"], told["command"], concurrency=concurrency)
    try:
        cells = {cell.name: cell for cell in order.experiment.cells(order, lab.spec)}
        for name, result in told["needed"].items():
            if result is not None and lab.read(cells[name]) is None:
                lab.keep(cells[name], result)
        return cells[told["cell"]].measure(lab)
    finally:
        lab.close()


def _unpacked(answer: bytes, folder: Path) -> Outcome:
    """The result, whose runs are in the lab's folder from now on. Raises Stop."""
    line, _, runs = answer.partition(b"\n")
    told = json.loads(line)
    if told.get("error") in _STOPS:
        raise Interrupted(told["message"])
    if "error" in told:
        return PcoError(told["message"], hint=told["hint"])
    if runs:
        with tarfile.open(fileobj=io.BytesIO(runs)) as archive:
            new = [m for m in archive if not (folder / Path(m.name).parts[0]).exists()]
            archive.extractall(folder, members=new, filter="data")
    return told["result"]


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
    "attribution": "studies:ATTRIBUTION",
    "sensitivity": "variants:SENSITIVITY",
    "init": "variants:INIT",
    "routing": "variants:ROUTING",
    "evolution": "variants:EVOLUTION",
    "prompts": "variants:PROMPTS",
    "theory": "studies:THEORY",
    "when-it-pays": "studies:WHEN_IT_PAYS",
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
