"""An experiment from its cells to its page. Threads of this process measure the cells, or tasks on
a Ray cluster (extra [ray]), one a cell. A task elsewhere works in a folder of that machine's cache,
and its run comes back. Nothing but text and bytes is handed over; keys are read where it runs."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import zstandard

from promptcodebook import errors
from promptcodebook.base.paths import cache_folder
from promptcodebook.base.signals import stop_signals
from promptcodebook.base.units import duration
from promptcodebook.deploy.cluster import join_cluster, machine_name, require_version
from promptcodebook.paper.experiments.experiment import Experiment, ExperimentRequest, Results
from promptcodebook.paper.experiments.lab import Cell, CellResult, Lab, open_lab
from promptcodebook.paper.experiments.page import draw, markdown, plain, read_table

CellOutcome = CellResult | errors.PcoError  # of a cell: its result, or why it failed
_LOOK_UP_S = 0.2


@dataclass
class Progress:
    """Says which cells began and ended, and how long the rest takes; `keep` gets each outcome."""

    total: int
    known: int
    tell: Callable[[str], None]
    keep: Callable[[Cell, CellOutcome], None]
    begun: int = 0
    ended: int = 0
    since: float = field(default_factory=time.monotonic)

    def begin(self, cell: Cell) -> None:
        self.begun += 1
        self.tell(f"{cell.name} ({self.known + self.begun} of {self.total})")

    def end(self, cell: Cell, outcome: CellOutcome) -> None:
        self.ended += 1
        if isinstance(outcome, errors.PcoError):
            self.tell(f"{cell.name} failed: {outcome}")
        done = self.known + self.ended
        if left := self.total - done:
            rest = duration((time.monotonic() - self.since) / self.ended * left)
            self.tell(f"{done} of {self.total} cells finished, {rest} left")
        self.keep(cell, outcome)


# Measures cells, each handed to `progress`. Raises the Stop that ended it when all is at rest.
Workers = Callable[[Sequence[Cell], Progress], None]


@dataclass(frozen=True, slots=True)
class Threads:
    """Measures `width` cells at once; a single one in the calling thread, for its progress."""

    lab: Lab
    width: int = 1

    def measure(self, cells: Sequence[Cell], progress: Progress) -> None:
        if self.width > 1:
            with ThreadPoolExecutor(self.width, "cell") as pool:
                submit = partial(pool.submit, self._attempt)
                keep_busy(cells, self.width, progress, submit, self.lab.relay.interrupt)
            return
        waiting = list(cells)
        while (cell := _ready(waiting, ())) is not None:
            waiting.remove(cell)
            progress.begin(cell)
            progress.end(cell, self._attempt(cell))

    def _attempt(self, cell: Cell) -> CellOutcome:
        try:
            return cell.measure(self.lab)
        except errors.Stop:
            raise
        except errors.PcoError as error:
            return error


def keep_busy(
    cells: Sequence[Cell],
    width: int,
    progress: Progress,
    submit: Callable[[Cell], Future[CellOutcome]],
    interrupt: Callable[[], None],
) -> None:
    """Keeps `width` cells at work, until nothing is any more. The first Stop, or Ctrl-C, is raised,
    and ends the others: `interrupt` asks them in order; a second time, at once."""
    waiting, at_work = list(cells), dict[Future[CellOutcome], Cell]()
    stop: BaseException | None = None
    with stop_signals():
        while waiting or at_work:
            try:
                while len(at_work) < width:
                    cell = _ready(waiting, tuple(at_work.values()))
                    if cell is None:
                        break
                    waiting.remove(cell)
                    progress.begin(cell)
                    at_work[submit(cell)] = cell
                done, _ = wait(at_work, _LOOK_UP_S, FIRST_COMPLETED)
                for future in done:
                    cell = at_work.pop(future)
                    try:
                        progress.end(cell, future.result())
                    except BaseException as why:
                        # A KeyboardInterrupt here is what the others were interrupted with.
                        if stop is None:
                            stop = why
                            interrupt()
            except KeyboardInterrupt:
                stop = stop or errors.Interrupted("interrupted by the user")
                interrupt()
            if stop is not None:
                waiting.clear()
    if stop is not None:
        raise stop


def _ready(waiting: Sequence[Cell], at_work: Sequence[Cell]) -> Cell | None:
    unfinished = {cell.name for cell in (*waiting, *at_work)}
    return next((cell for cell in waiting if not unfinished & set(cell.after)), None)


_STOPS = ("Stop", "Interrupted", "BudgetReached")
# What an order has beside its experiment.
_ORDERED = ("preset", "seeds", "task", "data", "independent", "weak")


@dataclass(frozen=True, slots=True)
class OnRay:
    """`width` cells at once on the cluster at `address`; each may have its share of `concurrency`
    calls in flight. Raises MissingExtra without ray, ConfigError when no cluster answers."""

    order: ExperimentRequest
    lab: Lab
    address: str
    width: int
    concurrency: int

    def measure(self, cells: Sequence[Cell], progress: Progress) -> None:
        ray = join_cluster(self.address, self.width, "running cells on a cluster")
        # A task that died is begun again by the next command, which finds its run.
        remote = ray.remote(max_retries=0)(measure_job)
        at_work: dict[Future[CellOutcome], Any] = {}
        interrupted = False

        def submit(cell: Cell) -> Future[CellOutcome]:
            reference, outcome = remote.remote(self._job(cell)), Future[CellOutcome]()
            at_work[outcome] = reference

            def hand_over(reply: Future[bytes]) -> None:
                at_work.pop(outcome, None)
                try:
                    error = reply.exception()
                    if error is None:
                        outcome.set_result(_unpacked(reply.result(), self.lab.folder))
                        return
                    if interrupted:
                        raise errors.Interrupted("interrupted by the user")
                    why = (str(error).strip() or type(error).__name__).splitlines()[0]
                    outcome.set_result(errors.PcoError(f"its task on the cluster was lost: {why}"))
                except BaseException as error:
                    outcome.set_exception(error)

            reference.future().add_done_callback(hand_over)
            return outcome

        def interrupt() -> None:
            nonlocal interrupted
            for reference in list(at_work.values()):
                ray.cancel(reference, force=interrupted)
            interrupted = True

        try:
            keep_busy(cells, self.width, progress, submit, interrupt)
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
    """Measures the cell that `OnRay` wrote down: a line of JSON, then its runs as a tar."""
    asked, packed = json.loads(job), io.BytesIO()
    away, folder = asked["machine"] != machine_name(), Path(asked["folder"])
    if away:  # the same command finds the same folder on this machine again
        digest = hashlib.sha256(f"{asked['machine']} {folder}".encode()).hexdigest()[:16]
        folder = cache_folder() / "cells" / digest / asked["cell"].replace("/", "-")
    try:
        require_version(asked["version"])
        order = ExperimentRequest(experiment_named(asked["experiment"]), **asked["order"])
        made = open_lab(folder, asked["spec"], asked["command"], concurrency=asked["concurrency"])
        with closing(made) as lab:
            cells = {cell.name: cell for cell in order.experiment.cells(order, lab.spec)}
            for name, result in asked["needed"].items():
                if result is not None and lab.read(cells[name]) is None:
                    lab.keep(cells[name], result)
            answer: dict[str, Any] = {"result": cells[asked["cell"]].measure(lab)}
    except errors.PcoError as error:
        answer = {"error": type(error).__name__, "message": str(error), "hint": error.hint}
    if away and "result" in answer:
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for run in sorted(folder.iterdir()):
                if run.is_dir() and run.name != "cells":
                    archive.add(run, run.name)
    return json.dumps(answer).encode() + b"\n" + packed.getvalue()


def _unpacked(answer: bytes, folder: Path) -> CellOutcome:
    line, _, runs = answer.partition(b"\n")
    told = json.loads(line)
    if told.get("error") in _STOPS:
        raise errors.Interrupted(told["message"])
    if "error" in told:
        return errors.PcoError(told["message"], hint=told["hint"])
    if runs:
        with tarfile.open(fileobj=io.BytesIO(runs)) as archive:
            new = [m for m in archive if not (folder / Path(m.name).parts[0]).exists()]
            archive.extractall(folder, members=new, filter="data")
    return told["result"]


def experiment_names() -> tuple[str, ...]:
    """In the order of the paper."""
    return tuple(read_table("pages")["home"])


def experiment_named(name: str) -> Experiment:
    """Return the experiment of a name. Raises ConfigError when the name is unknown."""
    homes = read_table("pages")["home"]
    if name not in homes:
        near = errors.did_you_mean(name, homes)
        message = f"there is nothing to reproduce under the name {name!r}{near}"
        raise errors.ConfigError(message, hint=f"pco reproduce {' | '.join(homes)}")
    module, _, variable = homes[name].partition(":")
    return getattr(import_module(f"promptcodebook.paper.experiments.{module}"), variable)


def require_preset(experiment: Experiment, preset: str) -> None:
    """Raises ConfigError when the experiment does not have the preset."""
    if preset not in experiment.presets:
        near = errors.did_you_mean(preset, experiment.presets)
        message = f"{experiment.name} has no preset {preset!r}{near}"
        raise errors.ConfigError(message, hint=f"--preset {' or '.join(experiment.presets)}")


def measure(
    order: ExperimentRequest, lab: Lab, tell: Callable[[str], None], workers: Workers | None = None
) -> Results:
    """Measures every cell that is not finished, by `workers` (None = one after the other). One that
    fails is noted and the others continue; a Stop ends all and loses nothing."""
    cells = order.experiment.cells(order, lab.spec)
    found = {cell.name: known for cell in cells if (known := lab.read(cell)) is not None}
    failed: dict[str, str] = {}

    def keep(cell: Cell, outcome: CellOutcome) -> None:
        if isinstance(outcome, errors.PcoError):
            failed[cell.name] = str(outcome)
            return
        lab.keep(cell, outcome)
        found[cell.name] = outcome

    stop: errors.Stop | None = None
    left = [cell for cell in cells if cell.name not in found]
    try:
        if left:
            progress = Progress(len(cells), len(cells) - len(left), tell, keep)
            (workers or Threads(lab).measure)(left, progress)
    except errors.Stop as reached:
        stop = reached
    results = {cell.name: found[cell.name] for cell in cells if cell.name in found}
    missing = {c.name: failed.get(c.name, "") for c in cells if c.name not in found}
    return Results(order, lab, results, missing, stop)


def write_page(out: Path, measured: Results) -> Path:
    """NAME.md in `out`, NAME.json.zst with what `read_results` reads, and in its folder NAME every
    figure as SVG and PNG. Without matplotlib the page names each figure."""
    name, page = measured.order.experiment.name, measured.order.experiment.page(measured)
    undrawn = ""
    out.mkdir(parents=True, exist_ok=True)
    try:
        for figure in page.figures:
            draw(figure, out / name)
    except errors.MissingExtra as missing:
        undrawn = f"not drawn ({missing.hint})"
    kept = {
        "experiment": name,
        "order": {key: getattr(measured.order, key) for key in _ORDERED},
        "model": measured.lab.spec,
        "weights": measured.lab.weights,
        "versions": measured.lab.versions,
        "missing": dict(measured.missing),
        "tables": plain(page),
        "results": dict(measured.results),
    }
    text = json.dumps(kept, ensure_ascii=False)
    (out / f"{name}.json.zst").write_bytes(zstandard.compress(text.encode(), 19))
    path = out / f"{name}.md"
    path.write_text(markdown(page, name, undrawn), "utf-8")
    return path


def read_results(file: Path) -> Results:
    """What `write_page` kept in NAME.json.zst: the page can be written again without a model."""
    kept = json.loads(zstandard.decompress(file.read_bytes()))
    order = ExperimentRequest(experiment_named(kept["experiment"]), **kept["order"])
    lab = Lab(file.parent, kept["model"], None, kept=kept)
    return Results(order, lab, kept["results"], kept["missing"])
