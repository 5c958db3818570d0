"""What experiments have in common: their cells, the settings that their runs start from, and the
lines that say what was measured with what.

A file that `reproduce.py` names holds an `Experiment`. Experiments that need the same run share it:
the lab finds it by its configuration. What a table shows of a run is read here, so that usage,
entropy and tokens mean the same in every table.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from promptcodebook.calls import Usage
from promptcodebook.config import load_config, merge
from promptcodebook.errors import Stop, TooManyFailures
from promptcodebook.experiments.lab import Cell, Lab, Result, row_json
from promptcodebook.experiments.page import Block, Page
from promptcodebook.intervals import Interval, crossed_interval, crossed_ratio
from promptcodebook.lm.spec import is_local, parse_spec
from promptcodebook.store.run import RunStore
from promptcodebook.units import plural


@dataclass(frozen=True, slots=True)
class Experiment:
    """What `pco reproduce NAME` measures, and the page that shows it.

    `paper` names the table or figure. `lm` and `seeds` are those used unless others are named, and
    `lm_quick` where the preset is `quick`.
    Experiments of one `folder` share their runs and replies.
    """

    name: str
    paper: str
    cells: Callable[[Order, str], Sequence[Cell]]
    """Of an order and a model's spec."""
    page: Callable[[Measured], Page]
    lm: str = "smollm2"
    seeds: int = 5
    presets: Sequence[str] = ("quick", "default", "paper")
    """The smallest shows whether everything runs, `paper` is the paper's own size."""
    folder: str = "tables"
    lm_quick: str = "smollm2"


@dataclass(frozen=True, slots=True)
class Order:
    """What to measure, how much of it, and for how many seeds; `task` and `data` (a folder)
    where it is not the experiment's own task; `independent` and `weak` are models for the critic,
    where an experiment asks for them."""

    experiment: Experiment
    preset: str
    seeds: int
    task: str = ""
    data: str = ""
    independent: str = ""
    weak: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """Results by cell; `missing` are the cells without one, with the reason where there is one;
    `stop` is what ended it early."""

    order: Order
    lab: Lab
    results: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, str]
    stop: Stop | None = None


Rewards = Sequence[Sequence[float]]
"""By run, then by example."""


def score(runs: Rewards) -> Interval:
    """The mean reward."""
    return crossed_interval(runs)


def difference(a: Rewards, b: Rewards) -> Interval:
    """The mean of a - b; where only one of the two has several runs, each of them is compared with
    the other."""
    runs = max(len(a), len(b))
    wide_a, wide_b = (list(x) * runs if len(x) == 1 else x for x in (a, b))
    return crossed_interval(
        [_minus(one, other) for one, other in zip(wide_a, wide_b, strict=True)], bounds=(-1.0, 1.0)
    )


def share(a: Rewards, whole: Rewards, floor: Rewards) -> Interval:
    """(a - floor) / (whole - floor): how much of the whole gain a has."""
    won, right = ([_minus(x, y) for x, y in zip(one, floor, strict=True)] for one in (a, whole))
    return crossed_ratio(won, right)


def _minus(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [round(x - y, 12) for x, y in zip(a, b, strict=True)]


LEARNED = "learned"
"""The row of a codebook's policy in its verdict."""
SHOWN = 6
"""Deployed prompts that are kept of a run."""
FORM = 4
"""Counts what `read_run` gives: where a cell is of an earlier form, its run is read once more."""


def trained(name: str, settings: Mapping[str, Any]) -> Cell:
    """The run of these settings to its verdict: rows on the test split, what training and a query
    took, routes, and how the codebook changed. A run that too many failures stopped is a result
    without a learned row, and says why in `stopped`."""

    def measure(lab: Lab) -> Result:
        config = load_config(settings, where=f"the experiment's cell {name}")
        try:
            training = lab.train(config, counted=True)
        except TooManyFailures as failures:
            if failures.run is None:
                raise
            return read_run(failures.run.path, stopped=str(failures))
        return read_run(training.path)

    return Cell(name, {**settings, "form": FORM}, measure)


def read_run(path: Path, stopped: str = "") -> Result:
    """What the tables show of a run. `whole` and `training` are what was paid; `lost` are attempts
    without an answer, after a kill or a failure, at their highest possible cost."""
    with closing(RunStore.open(path)) as store:
        outline = store.outline()
        rows = {each.name: each for each in store.test_evaluations()}
        spent, lost = (sum(b.values(), Usage()) for b in (store.usage(), store.lost()))
        training = store.trained() or spent  # a run that was stopped had no row judged
        steps = list(store.steps(traces=True))
        # Another optimizer has no codebook.
        first = store.started().parameters.codebook.texts if outline.parameters else ()
        ended = outline.conclusion
        rollouts = rows[LEARNED].rollouts if LEARNED in rows else ()
        routed = [(r, r.route) for r in rollouts if r.route is not None]
        return {
            "run": store.header.id,
            "ended": outline.ended or "",
            "stopped": stopped,
            "search": {}
            if ended is None
            else {
                "tried": len(ended.candidates),
                "replies": ended.settings.get("replies", 0),
                "cut": ended.settings.get("replies_cut", 0),
            },
            "verdict": "" if ended is None else ended.text,
            "rows": {name: row_json(row) for name, row in rows.items()},
            "whole": {"calls": spent.calls, "tokens": spent.tokens},
            "training": {"calls": training.calls, "tokens": training.tokens},
            "lost": {"calls": lost.calls, "tokens": lost.tokens},
            "by_role": {role: [u.calls, u.tokens] for role, u in store.usage().items()},
            "steps": [
                {"epoch": s.epoch, "epsilon": s.epsilon, "selected": list(s.selected)}
                for s in steps
            ],
            "residuals": [
                {"delta": t.residual, "critic": "critic" in t.gradients.severity}
                for s in steps
                for t in s.traces
                if t.residual is not None
            ],
            "success": list(outline.success),
            "first": list(first),
            "instincts": list(outline.parameters.codebook.texts if outline.parameters else first),
            "rewrites": [
                {"step": s.index, "variable": str(r.variable), "text": r.after}
                for s in steps
                for r in s.rewrites
                if r.kept
            ],
            # Of the test examples; prompts only where the data are not private.
            "routes": [list(route.indices) for _, route in routed],
            "prompts": [
                {
                    "example": r.example_id,
                    "route": list(route.indices),
                    "why": route.analysis,
                    "prompt": r.prompt,
                    "reward": r.reward,
                }
                for r, route in ([] if store.header.private else routed[:SHOWN])
            ],
        }


def runs_of(results: Mapping[str, Result], name: str) -> list[Result]:
    """The finished runs of a setting: `NAME/0`, `NAME/1` and so on, one a seed."""
    found = [key for key in results if key.rpartition("/")[0] == name]
    return [results[key] for key in sorted(found, key=lambda key: int(key.rpartition("/")[2]))]


def rewards(runs: Sequence[Result], row: str = LEARNED) -> Rewards:
    """Of one row, by run and example; runs that were stopped before it are left out."""
    return [run["rows"][row]["rewards"] for run in runs if row in run["rows"]]


def counts(run: Result) -> list[int]:
    """How often each instinct was chosen for the test examples."""
    chosen = Counter(k for route in run["routes"] for k in route)
    return [chosen[k] for k in range(len(run["instincts"]))]


def tokens(run: Result, row: str = LEARNED) -> float:
    """Tokens of a deployed query, all its calls together."""
    own = run["rows"][row]
    return own["prompt_tokens"] + own["completion_tokens"]


WEAK = {"temperature": 0.0, "max_tokens": 200}
"""Of every role but the executor on a small model, whose replies often run until they are cut."""
_EXECUTOR = {"temperature": 0.0, "max_tokens": 512}
_OWN: Mapping[str, Mapping[str, Any]] = {
    "houserules": {"roles": {"executor": {"max_tokens": 64}}},
    "pupa": {"reward": "stand-in", "roles": {"untrusted": _EXECUTOR}},
}
"""What a task has otherwise on a small model."""


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
    """A cell for each seed and variant, `NAME/SEED`. All variants of a seed come first, so that an
    interrupted experiment can be compared."""
    return [
        trained(f"{name}/{seed}", merge(settings, change, {"seed": seed}))
        for seed in range(order.seeds)
        for name, change in changes.items()
    ]


@cache
def _pages() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads(Path(__file__).with_name("pages.toml").read_text("utf-8"))


def said(page: str, name: str, **values: object) -> str:
    """A sentence of pages.toml with its values."""
    return _pages()[page][name].format(**values)


def lab_words(measured: Measured, test: int | None, kind: str) -> dict[str, str]:
    """What every page says of its model and its order; `test` = examples judged (None = all)."""
    lab = measured.lab
    return {
        "spec": lab.spec,
        "weights": f" (SHA-256 of its file {lab.weights})" if lab.weights else "",
        "versions": ", ".join(f"{name} {version}" for name, version in lab.versions.items()),
        "test": f"all test {kind}" if test is None else f"{test} test {kind}",
        "seeds": plural(measured.order.seeds, "seed"),
    }


def framed(measured: Measured, paper: str, blocks: Sequence[Block]) -> Page:
    """The experiment's page: how it was made, `blocks`, and the cells that are missing. `paper` is
    the benchmark that the paper used."""
    title = said("title", measured.order.experiment.name)
    return Page(title, [*about(measured, paper), *blocks, *missing(measured)])


def about(measured: Measured, paper: str) -> list[Block]:
    """How the page was made, and what its figures can say."""
    order, lab = measured.order, measured.lab
    what = said("what", order.experiment.name)
    task = task_of(order, lab.spec, paper)
    test = scale_of(order.preset).test
    typed = f"pco reproduce {order.experiment.name} --preset {order.preset} --seeds {order.seeds} "
    named = {key: getattr(order, key) for key in ("task", "data", "independent", "weak")}
    typed += " ".join([f"--lm {lab.spec}", *(f"--{k} {v}" for k, v in named.items() if v)])
    words = lab_words(measured, test, "examples" + " at the most" * (test is not None))
    after = f" {order.experiment.paper} of the paper." if order.experiment.paper else ""
    blocks: list[Block] = ["A generated page. Made by", f"```\n{typed}\n```"]
    blocks.append(said("shared", "about", what=what, paper=after, task=task, **words))
    if lab.simulated:
        blocks.insert(0, said("shared", "simulated"))
    elif is_local(lab.spec):
        blocks += [said("shared", "small"), *judged_by_words((task,), lab.spec)]
    # Attempts without an answer, which no other figure of the page holds.
    found = [run["lost"] for run in measured.results.values() if run.get("lost")]
    calls, tokens = (sum(each[what] for each in found) for what in ("calls", "tokens"))
    lost = said("shared", "lost", attempts=plural(calls, "attempt"), tokens=tokens)
    return [*blocks, lost] if calls else blocks


def judged_by_words(tasks: Sequence[str], spec: str) -> list[Block]:
    """That a task among them has another reward on a small model."""
    return [said("shared", "stand_in")] if is_local(spec) and "pupa" in tasks else []


def missing(measured: Measured) -> list[Block]:
    """The cells that have no result, with the reason where one is known; a line for the seeds of
    one variant."""
    seeds: dict[tuple[str, str], list[str]] = {}
    for name, why in measured.missing.items():
        variant, _, seed = name.rpartition("/")
        seeds.setdefault((variant or name, why), []).append(seed if variant else "")
    lines: list[str] = []
    for (variant, why), numbers in seeds.items():
        known = [number for number in numbers if number.isdigit()]
        of = f", {plural(len(known), 'seed')} ({', '.join(known)})" if known else ""
        lines.append(f"- `{variant}`{of}{f': {why}' if why else ''}")
    return ["## Not measured", "\n".join(lines)] if lines else []


def stopped(runs: Mapping[str, Sequence[Result]]) -> list[Block]:
    """Runs that too many failures ended, by variant."""
    pairs = [(name, run["stopped"]) for name, made in runs.items() for run in made]
    lines = [f"- {name}: {why}" for name, why in pairs if why]
    return ["Stopped by failures, and so without a result:", "\n".join(lines)] if lines else []
