"""What experiments share: their cells, the settings of their runs, and the lines that say what was
measured with what. Experiments that need the same run share it: the lab finds it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev
from typing import Any

from promptcodebook.assemble import Sources
from promptcodebook.base.intervals import (
    DIGITS,
    SIDE,
    Bounds,
    Interval,
    mean_interval,
    student_quantile,
)
from promptcodebook.base.randomness import keyed_random
from promptcodebook.base.text import shell
from promptcodebook.base.units import plural
from promptcodebook.calls import Usage
from promptcodebook.config import merge
from promptcodebook.errors import Stop
from promptcodebook.lm.spec import is_local, parse_spec
from promptcodebook.paper.experiments.lab import Cell, CellResult, Lab, Runs, Settings, row_json
from promptcodebook.paper.experiments.page import Block, Page, read_table
from promptcodebook.store.run import RunStore


@dataclass(frozen=True, slots=True)
class Experiment:
    """What `pco reproduce NAME` measures, and its page. `paper` names the table or figure,
    `lm_quick` is the model of the preset `quick`. Experiments of one `folder` share their runs.
    `real` ones cannot be made on the simulated model."""

    name: str
    paper: str
    cells: Callable[[ExperimentRequest, str], Sequence[Cell]]
    page: Callable[[Results], Page]
    lm: str = "smollm2"
    seeds: int = 5
    presets: Sequence[str] = ("quick", "default", "paper")
    folder: str = "tables"
    lm_quick: str = "smollm2"
    real: bool = False


@dataclass(frozen=True, slots=True)
class ExperimentRequest:
    """What to measure; `task` and `data` (a folder) '' = its own; critics `independent`, `weak`."""

    experiment: Experiment
    preset: str
    seeds: int
    task: str = ""
    data: str = ""
    independent: str = ""
    weak: str = ""


@dataclass(frozen=True, slots=True)
class Results:
    """Results by cell; `missing` are those without one, with the reason; `stop` ended it early."""

    order: ExperimentRequest
    lab: Lab
    results: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, str]
    stop: Stop | None = None


Rewards = Sequence[Sequence[float]]  # by run, then by example


def crossed_interval(groups: Rewards, bounds: Bounds = (0.0, 1.0)) -> Interval:
    """The mean over runs (seeds) of equal weight on the same examples, in the same order. It covers
    another draw of examples and other seeds. The examples' part is the interval of their means over
    the runs. The seeds' part is Student's over the runs' means: a bootstrap takes two to five seeds
    for all there is. Their widths are added as squares."""
    means = [math.fsum(column) / len(groups) for column in zip(*groups, strict=True)]
    examples = mean_interval([round(m, DIGITS) for m in means], bounds)
    seeds = reach_of_seeds([math.fsum(group) / len(group) for group in groups])
    low = examples.mean - math.hypot(examples.mean - examples.low, seeds)
    high = examples.mean + math.hypot(examples.high - examples.mean, seeds)
    low, high = max(min(bounds[0], *means), low), min(max(bounds[1], *means), high)
    n = len(groups) * len(means)
    return Interval(examples.mean, round(low, DIGITS), round(high, DIGITS), n)


def crossed_ratio(above: Rewards, below: Rewards) -> Interval:
    """Mean `above` over mean `below`, as in `crossed_interval`; infinite over 0. Raises ValueError
    without values."""
    if not above or not above[0]:
        raise ValueError("no values to compute an interval from")
    runs, n = len(above), len(above[0])
    draw = keyed_random(0, "crossed", runs, n)
    pairs = [
        (math.fsum(a), math.fsum(b))
        for a, b in zip(zip(*above, strict=True), zip(*below, strict=True), strict=True)
    ]

    def ratio(chosen: Sequence[tuple[float, float]]) -> float:
        top, base = math.fsum(a for a, _ in chosen), math.fsum(b for _, b in chosen)
        return top / base if base > 0 else math.inf if top > 0 else -math.inf

    whole, base = ratio(pairs), math.fsum(b for _, b in pairs) / runs
    ratios = sorted(ratio(draw.choices(pairs, k=n)) for _ in range(RESAMPLES))
    low, high = ratios[int(SIDE * RESAMPLES)], ratios[int((1 - SIDE) * RESAMPLES) - 1]
    if math.isinf(whole):
        return Interval(whole, low, high, runs * n)
    by_run = zip(above, below, strict=True)
    seeds = reach_of_seeds([(math.fsum(a) - whole * math.fsum(b)) / base for a, b in by_run])
    below_it, above_it = math.hypot(whole - low, seeds), math.hypot(high - whole, seeds)
    return Interval(whole, whole - below_it, whole + above_it, runs * n)


def reach_of_seeds(means: Sequence[float]) -> float:
    """How far the mean over all seeds may be from that of these, by Student; 0 of a single one."""
    n = len(means)
    return student_quantile(n - 1, SIDE) * stdev(means) / math.sqrt(n) if n > 1 else 0.0


score = crossed_interval  # the mean reward


def difference(a: Rewards, b: Rewards) -> Interval:
    """The mean of a - b; where only one has several runs, each is compared with the other."""
    runs = max(len(a), len(b))
    wide_a, wide_b = (list(x) * runs if len(x) == 1 else x for x in (a, b))
    lost = [_minus(one, other) for one, other in zip(wide_a, wide_b, strict=True)]
    return crossed_interval(lost, bounds=(-1.0, 1.0))


def share(a: Rewards, whole: Rewards, floor: Rewards) -> Interval:
    """(a - floor) / (whole - floor): how much of the whole gain a has."""
    won, right = ([_minus(x, y) for x, y in zip(one, floor, strict=True)] for one in (a, whole))
    return crossed_ratio(won, right)


def _minus(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [round(x - y, 12) for x, y in zip(a, b, strict=True)]


SourcesOf = Callable[[Lab], Sources | None]
LEARNED = "learned"  # the row of a codebook's policy in its verdict
RESAMPLES = 2000
SHOWN = 6  # deployed prompts that are kept of a run
# Counts what `read_run` gives: where a cell is of an earlier form, its run is read once more.
FORM = 4


def trained(name: str, settings: Settings, sources: SourcesOf | None = None) -> Cell:
    """The run of these settings to its verdict, on the lab's model unless `sources` gives another.
    One that too many failures stopped has no learned row, and says why in `stopped`."""

    def measure(lab: Lab) -> CellResult:
        own = None if sources is None else sources(lab)
        return read_run(*lab.attempt(settings, counted=True, sources=own))

    return Cell(name, {**settings, "form": FORM}, measure)


def read_run(path: Path, stopped: str = "") -> CellResult:
    """What the tables show of a run. `whole` and `training` are what was paid; `lost` are attempts
    without an answer, after a kill or a failure, at their highest possible cost."""
    with closing(RunStore.open(path)) as store:
        outline = store.outline()
        rows = {each.name: each for each in store.test_evaluations()}
        spent, lost = (sum(b.values(), Usage()) for b in (store.usage(), store.lost()))
        training = store.trained() or spent  # a run that was stopped had no row judged
        steps = list(store.steps())
        # Another optimizer has no codebook.
        first = store.started().parameters.codebook.texts if outline.parameters else ()
        ended = outline.conclusion
        rollouts = rows[LEARNED].rollouts if LEARNED in rows else ()
        routed = [(r, r.route) for r in rollouts if r.route is not None]
        search: dict[str, Any] = {}
        if ended is not None:
            cut, replies = (ended.settings.get(key, 0) for key in ("replies_cut", "replies"))
            search = {"tried": len(ended.candidates), "replies": replies, "cut": cut}
        return {
            "run": store.header.id,
            "ended": outline.ended or "",
            "stopped": stopped,
            "search": search,
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


def runs_of(results: Mapping[str, CellResult], name: str, mark: str = "/") -> list[CellResult]:
    """The finished runs of a setting: `NAME/0`, `NAME/1` and so on, one a seed."""
    found = [key for key in results if key.rpartition(mark)[0] == name]
    return [results[key] for key in sorted(found, key=lambda key: int(key.rpartition(mark)[2]))]


def rewards(runs: Runs, row: str = LEARNED) -> Rewards:
    """Of one row, by run and example; runs that were stopped before it are left out."""
    return [run["rows"][row]["rewards"] for run in runs if row in run["rows"]]


def counts(run: CellResult) -> list[int]:
    """How often each instinct was chosen for the test examples."""
    chosen = Counter(k for route in run["routes"] for k in route)
    return [chosen[k] for k in range(len(run["instincts"]))]


def tokens(run: CellResult, row: str = LEARNED) -> float:
    """Tokens of a deployed query, all its calls together."""
    own = run["rows"][row]
    return own["prompt_tokens"] + own["completion_tokens"]


def task_of(order: ExperimentRequest, spec: str, paper: str) -> str:
    """The order's own; else the paper's, or one that every installation has."""
    if order.task:
        return order.task
    kind = parse_spec(spec).kind
    return {"local": "houserules", "simulated": "constraints"}.get(kind, paper)


def scale_of(preset: str) -> Mapping[str, Any]:
    """The settings of how much a run trains and is judged by; `verdict_examples` None = all."""
    return {"update": {}, "verdict_examples": None, **read_table("settings")["scale"][preset]}


def base(order: ExperimentRequest, spec: str, paper: str) -> dict[str, Any]:
    """Full PCO on the order's task, `paper` being the benchmark that the paper used."""
    task, listed = task_of(order, spec, paper), read_table("settings")
    settings: dict[str, Any] = {"task": task, "lm": spec, **scale_of(order.preset)}
    if order.data:
        settings["data_dir"] = str(Path(order.data).resolve())
    return merge(settings, listed["local"], listed.get(task, {})) if is_local(spec) else settings


def variants(
    order: ExperimentRequest, settings: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any]]
) -> list[Cell]:
    """A cell for each seed and variant, `NAME/SEED`; all variants of a seed come first."""
    return [
        trained(f"{name}/{seed}", merge(settings, change, {"seed": seed}))
        for seed in range(order.seeds)
        for name, change in changes.items()
    ]


def text(page: str, name: str, **values: object) -> str:
    return read_table("pages")[page][name].format(**values)


def lab_words(measured: Results, test: int | None, kind: str) -> dict[str, str]:
    """What every page says of its model and its order; `test` = examples judged (None = all)."""
    lab = measured.lab
    return {
        "spec": lab.spec,
        "weights": f" (file SHA-256 {lab.weights}; other processors produce different results)"
        if lab.weights
        else "",
        "versions": ", ".join(f"{name} {version}" for name, version in lab.versions.items()),
        "test": f"all test {kind}" if test is None else f"at most {test} test {kind}",
        "seeds": plural(measured.order.seeds, "seed"),
    }


def framed(
    measured: Results, paper: str, blocks: Sequence[Block], head: Sequence[Block] = ()
) -> Page:
    """The experiment's page; `paper` is the benchmark that the paper used, where the page has no
    `head` of its own."""
    title = text("title", measured.order.experiment.name)
    above = [*made_by(measured), *head] if head else about(measured, paper)
    if head and measured.lab.simulated:
        above.insert(0, text("shared", "simulated"))
    return Page(title, [*above, *blocks, *missing(measured)])


def made_by(measured: Results) -> list[Block]:
    """The command that made the page."""
    order, spec = measured.order, measured.lab.spec
    typed = f"pco reproduce {order.experiment.name} --preset {order.preset} --seeds {order.seeds} "
    named = {key: getattr(order, key) for key in ("task", "data", "independent", "weak")}
    typed += " ".join(f"--{k} {shell(v)}" for k, v in {"lm": spec, **named}.items() if v)
    return ["Generated by:", f"```\n{typed}\n```"]


def about(measured: Results, paper: str) -> list[Block]:
    order, lab = measured.order, measured.lab
    what = text("what", order.experiment.name)
    task = task_of(order, lab.spec, paper)
    test = scale_of(order.preset)["verdict_examples"]
    words = lab_words(measured, test, "examples")
    after = f" {order.experiment.paper} of the paper." if order.experiment.paper else ""
    blocks = made_by(measured)
    blocks.append(text("shared", "about", what=what, paper=after, task=task, **words))
    if lab.simulated:
        blocks.insert(0, text("shared", "simulated"))
    elif is_local(lab.spec):
        blocks += [text("shared", "small"), *judged_by_words((task,), lab.spec)]
    # Attempts without an answer, which no other figure of the page holds.
    found = [run["lost"] for run in measured.results.values() if run.get("lost")]
    calls, tokens = (sum(each[what] for each in found) for what in ("calls", "tokens"))
    lost = text("shared", "lost", attempts=plural(calls, "attempt"), tokens=tokens)
    return [*blocks, lost] if calls else blocks


def judged_by_words(tasks: Sequence[str], spec: str) -> list[Block]:
    """That a task among them has another reward on a small model."""
    return [text("shared", "stand_in")] if is_local(spec) and "pupa" in tasks else []


def missing(measured: Results) -> list[Block]:
    """The cells that have no result, a line for the seeds of one variant and reason."""
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


def stopped(runs: Mapping[str, Runs]) -> list[Block]:
    """Runs that too many failures ended, by variant."""
    pairs = [(name, run["stopped"]) for name, made in runs.items() for run in made]
    lines = [f"- {name}: {why}" for name, why in pairs if why]
    return ["These runs failed and have no result:", "\n".join(lines)] if lines else []
