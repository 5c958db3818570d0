"""An experiment from its cells to its page. Threads of this process measure the cells."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import fields
from importlib import import_module
from itertools import count
from pathlib import Path

import zstandard

from promptcodebook import errors
from promptcodebook.base.signals import stop_signals
from promptcodebook.base.units import duration
from promptcodebook.paper.experiments.experiment import Experiment, ExperimentRequest, Results
from promptcodebook.paper.experiments.lab import Cell, CellResult, Lab
from promptcodebook.paper.experiments.page import draw, markdown, plain, read_table

CellOutcome = CellResult | errors.PcoError  # of a cell: its result, or why it failed
_LOOK_UP_S = 0.2


def measure_cells(
    cells: Sequence[Cell],
    lab: Lab,
    width: int,
    begin: Callable[[Cell], None],
    end: Callable[[Cell, CellOutcome], None],
) -> None:
    """Keep `width` cells at work, until nothing is left. The first Stop, or Ctrl-C, is raised, and
    ends the others in order."""
    waiting, at_work = list(cells), dict[Future[CellOutcome], Cell]()
    stop: BaseException | None = None
    with ThreadPoolExecutor(width, "cell") as pool, stop_signals():
        while waiting or at_work:
            try:
                while len(at_work) < width:
                    unfinished = {each.name for each in (*waiting, *at_work.values())}
                    ready = (each for each in waiting if not unfinished & set(each.after))
                    if (cell := next(ready, None)) is None:
                        break
                    waiting.remove(cell)
                    begin(cell)
                    at_work[pool.submit(_attempt, cell, lab)] = cell
                done, _ = wait(at_work, _LOOK_UP_S, FIRST_COMPLETED)
                for future in done:
                    cell = at_work.pop(future)
                    try:
                        end(cell, future.result())
                    except BaseException as why:
                        # A KeyboardInterrupt here is what the others were interrupted with.
                        if stop is None:
                            stop = why
                            lab.relay.interrupt()
            except KeyboardInterrupt:
                stop = stop or errors.Interrupted("interrupted by the user")
                lab.relay.interrupt()
            if stop is not None:
                waiting.clear()
    if stop is not None:
        raise stop


def _attempt(cell: Cell, lab: Lab) -> CellOutcome:
    try:
        return cell.measure(lab)
    except errors.Stop:
        raise
    except errors.PcoError as error:
        return error


def experiment_names() -> tuple[str, ...]:
    """In the order of the paper."""
    return tuple(read_table("pages")["home"])


def experiment_named(name: str) -> Experiment:
    """Return the experiment of a name. Raises ConfigError when the name is unknown."""
    homes = read_table("pages")["home"]
    if name not in homes:
        near = errors.did_you_mean(name, homes)
        message = f"no experiment is called {name!r}{near}"
        raise errors.ConfigError(message, hint=f"pco reproduce {' | '.join(homes)}")
    module, _, variable = homes[name].partition(":")
    return getattr(import_module(f"promptcodebook.paper.experiments.{module}"), variable)


def refusal(experiment: Experiment, preset: str, lm: str) -> errors.ConfigError | None:
    """Why the experiment cannot be measured so: it lacks the preset, or needs a real model."""
    if preset not in experiment.presets:
        near = errors.did_you_mean(preset, experiment.presets)
        message = f"{experiment.name} has no preset {preset!r}{near}"
        return errors.ConfigError(message, hint=f"--preset {' or '.join(experiment.presets)}")
    real = errors.ConfigError(f"{experiment.name} needs a real model", hint="--lm smollm2")
    return real if experiment.real and lm.startswith("simulated") else None


def measure(
    order: ExperimentRequest, lab: Lab, tell: Callable[[str], None], width: int = 1
) -> Results:
    """Measures every cell that is not finished, `width` at once. One that fails is noted and the
    others continue; a Stop ends all and loses nothing."""
    cells = order.experiment.cells(order, lab.spec)
    found = {cell.name: known for cell in cells if (known := lab.read(cell)) is not None}
    failed: dict[str, str] = {}
    left = [cell for cell in cells if cell.name not in found]
    numbers, since = count(1 + len(found)), time.monotonic()

    def begin(cell: Cell) -> None:
        tell(f"{cell.name} ({next(numbers)} of {len(cells)})")

    def end(cell: Cell, outcome: CellOutcome) -> None:
        if isinstance(outcome, errors.PcoError):
            failed[cell.name] = str(outcome)
            tell(f"{cell.name} failed: {outcome}")
        else:
            lab.keep(cell, outcome)
            found[cell.name] = outcome
        done = len(found) + len(failed)
        if rest := len(cells) - done:
            ended = len(left) - rest
            seconds = (time.monotonic() - since) / ended * rest
            # The first cells say little: their model loads, and cells differ in length.
            pace = f", {duration(seconds)} left" if ended >= 3 else ""
            tell(f"{done} of {len(cells)} cells finished{pace}")

    stop: errors.Stop | None = None
    try:
        if left:
            measure_cells(left, lab, width, begin, end)
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
        "order": {f.name: getattr(measured.order, f.name) for f in fields(measured.order)[1:]},
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
    made_with = {name: kept[name] for name in ("weights", "versions")}
    lab = Lab(file.parent, kept["model"], None, **made_with)
    return Results(order, lab, kept["results"], kept["missing"])
