"""An experiment from its cells to its page; what is finished is not measured again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from promptcodebook.errors import ConfigError, MissingExtra, PcoError, Stop, did_you_mean
from promptcodebook.experiments.drawing import draw
from promptcodebook.experiments.experiment import Experiment, Measured, Order
from promptcodebook.experiments.lab import Cell, Lab, Result
from promptcodebook.experiments.page import latex, markdown, plain
from promptcodebook.experiments.workers import Progress, Threads, Workers

_HOMES: Mapping[str, str] = {
    "main": "main:MAIN",
    "prompt-length": "deployment:PROMPT_LENGTH",
    "codebook-usage": "codebook:USAGE",
    "specialisation": "codebook:SPECIALISATION",
    "ablation": "ablation:EXPERIMENT",
    "sweep-k": "sweeps:SWEEP_K",
    "sweep-s": "sweeps:SWEEP_S",
    "critic": "critic:EXPERIMENT",
    "cost": "deployment:COST",
    "attribution": "attribution:EXPERIMENT",
    "sensitivity": "sweeps:SENSITIVITY",
    "init": "initial:EXPERIMENT",
    "routing": "codebook:ROUTING",
    "evolution": "codebook:EVOLUTION",
    "prompts": "codebook:PROMPTS",
    "theory": "theory:EXPERIMENT",
    "when-it-pays": "when_it_pays:EXPERIMENT",
    "small-real-model": "small_real_model_page:EXPERIMENT",
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
    """Every cell that is not finished, by `workers` (None = one after the other), gates first: one
    that fails is noted and the others go on; a Stop ends all, and what was finished is kept."""
    cells = order.experiment.cells(order, lab.spec)
    found = {cell.name: known for cell in cells if (known := lab.read(cell)) is not None}
    missing: dict[str, str] = {}

    def ended(cell: Cell, outcome: Result | PcoError) -> None:
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
                if cell.name not in found and (known := _instead(cell, found)) is not None:
                    ended(cell, known)
            left = [cell for cell in part if cell.name not in found]
            if left:
                progress = Progress(len(part), len(part) - len(left), tell)
                (workers or Threads(lab)).measure(left, progress, ended)
    except Stop as reached:
        stop = reached
    results = {cell.name: found[cell.name] for cell in cells if cell.name in found}
    missing = {c.name: missing.get(c.name, "") for c in cells if c.name not in found}
    return Measured(order, lab, results, missing, stop)


def _instead(cell: Cell, found: Mapping[str, Result]) -> Result | None:
    """What it comes to without being measured, where its gate's result says so."""
    known = found.get(cell.gate.name) if cell.gate else None
    return cell.gate.instead(known) if cell.gate and known is not None else None


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
