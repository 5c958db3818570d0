"""What the paper's tables have in common: the settings their runs start from, variants of them
over seeds, and the lines that say what was measured with what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcodebook.config import merge
from promptcodebook.experiments.experiment import Measured, Order
from promptcodebook.experiments.lab import Cell
from promptcodebook.experiments.page import Block
from promptcodebook.experiments.trained import trained
from promptcodebook.lm.spec import is_local, parse_spec
from promptcodebook.units import plural

WEAK = {"temperature": 0.0, "max_tokens": 200}
"""Of every role but the executor on a small model, whose replies often go on until they are cut."""
_EXECUTOR = {"temperature": 0.0, "max_tokens": 512}
_OWN: Mapping[str, Mapping[str, Any]] = {
    "houserules": {"roles": {"executor": {"max_tokens": 64}}},
    "pupa": {"reward": "stand-in", "roles": {"untrusted": _EXECUTOR}},
}
"""What a task has otherwise on a small model."""
_STAND_IN = (
    "On `pupa` it is not asked to judge either: the reward is the benchmark's deterministic "
    "stand-in (words of the reference that the answer holds, private pieces that the request "
    "repeats), so these are no figures of the benchmark."
)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much one run trains and is judged by; None = what the preset `paper` says."""

    epochs: int | None
    batch: int | None
    size: int
    select: int
    val: int
    test: int | None


def scale_of(preset: str) -> Scale:
    """`quick` shows whether everything runs; `default` is for a small model on two cores or a tight
    budget; `paper` is Table 6."""
    if preset == "quick":
        return Scale(2, 4, 8, 2, 4, 6)
    if preset == "default":
        return Scale(10, 8, 16, 4, 16, 48)
    return Scale(None, None, 16, 4, 60, None)


def task_of(order: Order, spec: str, paper: str) -> str:
    """The order's own; else the paper's, or on a model of this machine and on the simulated one a
    task that every installation has."""
    if order.task:
        return order.task
    kind = parse_spec(spec).kind
    return {"local": "houserules", "simulated": "constraints"}.get(kind, paper)


def base(order: Order, spec: str, paper: str) -> dict[str, Any]:
    """Full PCO on the order's task, `paper` being the benchmark that the paper used."""
    scale, task = scale_of(order.preset), task_of(order, spec, paper)
    settings: dict[str, Any] = {
        "task": task,
        "preset": "paper" if order.preset == "paper" else "default",
        "lm": spec,
        "size": scale.size,
        "select": scale.select,
        "update": {},
        "validation": {"every": 0, "subset": scale.val},
        "verdict_examples": scale.test,
    }
    if order.data:
        settings["data_dir"] = str(Path(order.data).resolve())
    if scale.epochs is not None and scale.batch is not None:
        settings["update"] = {"epochs": scale.epochs, "batch_size": scale.batch}
    if is_local(spec):
        others = ("encoder", "generator", "critic", "attribution", "updater")
        settings["roles"] = {"executor": _EXECUTOR, **{role: WEAK for role in others}}
        return merge(settings, _OWN.get(task, {}))
    return settings


def variants(
    order: Order, settings: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any]]
) -> list[Cell]:
    """A cell for each variant and seed, `NAME/SEED`: all variants of a seed before the next one, so
    that what is cut off can be compared."""
    return [
        trained(f"{name}/{seed}", merge(settings, change, {"seed": seed}))
        for seed in range(order.seeds)
        for name, change in changes.items()
    ]


def about(measured: Measured, paper: str, what: str) -> list[Block]:
    """How the page was made, and what its figures can say."""
    order, lab = measured.order, measured.lab
    task = task_of(order, lab.spec, paper)
    scale = scale_of(order.preset)
    typed = f"pco reproduce {order.experiment.name} --preset {order.preset} --seeds {order.seeds} "
    typed += " ".join([f"--lm {lab.spec}", *(f"--{k} {v}" for k, v in _named(order).items() if v)])
    versions = ", ".join(f"{name} {version}" for name, version in lab.versions.items())
    weights = f" (SHA-256 of its file {lab.weights})" if lab.weights else ""
    test = "all test examples" if scale.test is None else f"{scale.test} test examples at the most"
    blocks: list[Block] = [
        "A generated page. Made by",
        f"```\n{typed}\n```",
        f"{what}{_after(order)} Model of all roles: `{lab.spec}`{weights}. "
        f"Task: `{task}`, {test}; {plural(order.seeds, 'seed')}; {versions}. Intervals are 95 %, "
        "differences paired by example. The paper's own numbers stand in columns of their own and "
        "were measured on other models, data and budgets.",
    ]
    if lab.simulated:
        blocks.insert(0, _SIMULATED)
    elif is_local(lab.spec):
        blocks += [_SMALL, *judged_by_words((task,), lab.spec)]
    return [*blocks, *_lost(measured)]


def _lost(measured: Measured) -> list[Block]:
    """Attempts without an answer, which no other figure of the page holds."""
    found = [run["lost"] for run in measured.results.values() if run.get("lost")]
    calls, tokens = (sum(each[what] for each in found) for what in ("calls", "tokens"))
    said = f"{plural(calls, 'attempt')} brought no answer, because a run was killed or a call "
    said += f"failed. They cost at most {tokens:,} tokens, and no figure below counts them."
    return [said] if calls else []


def judged_by_words(tasks: Sequence[str], spec: str) -> list[Block]:
    """That a task among them has another reward on a small model."""
    return [_STAND_IN] if is_local(spec) and "pupa" in tasks else []


def _named(order: Order) -> dict[str, str]:
    """What else was named on the command line."""
    return {
        "task": order.task,
        "data": order.data,
        "independent": order.independent,
        "weak": order.weak,
    }


def _after(order: Order) -> str:
    paper = order.experiment.paper
    return f" {paper} of the paper." if paper else ""


_SIMULATED = (
    "**Simulated.** No language model took part: this page shows that the table can be made, and "
    "says nothing about any method."
)
_SMALL = (
    "A model of 135 million parameters follows an instruction, and can hardly write or choose one: "
    "what needs that (critic, attribution, updater, an LLM encoder) is not to be judged by it."
)


def missing(measured: Measured) -> list[Block]:
    """The cells that have no result, with the reason where one is known; a line for the seeds of
    one variant."""
    seeds: dict[tuple[str, str], list[str]] = {}
    for name, why in measured.missing.items():
        variant, _, seed = name.rpartition("/")
        seeds.setdefault((variant or name, why), []).append(seed if variant else "")
    lines = [
        f"- `{variant}`{_seeds(numbers)}{f': {why}' if why else ''}"
        for (variant, why), numbers in seeds.items()
    ]
    return ["## Not measured", "\n".join(lines)] if lines else []


def _seeds(numbers: Sequence[str]) -> str:
    known = [number for number in numbers if number.isdigit()]
    return f", {plural(len(known), 'seed')} ({', '.join(known)})" if known else ""


def stopped(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Block]:
    """Runs that too many failures ended, by variant."""
    lines = [
        f"- {name}: {run['stopped']}"
        for name, made in runs.items()
        for run in made
        if run["stopped"]
    ]
    return ["Stopped by failures, and so without a result:", "\n".join(lines)] if lines else []
