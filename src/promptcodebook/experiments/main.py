"""`main` (Table 1): PCO and other optimizers on the same tasks, once at equal tokens and once at
equal calls; `prompt-length` (Figure 4a) and `cost` (Table 5) are views of its runs.

All methods begin with the same prompt and validate on the same examples. Training and validation
share one budget; judging does not count. A benchmark of the paper takes part where the model leaves
its floor: where the interval of its reward, on up to 50 test examples without any optimizing, does
not touch 0. Methods and budgets are in methods.toml.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from promptcodebook.assemble import Assembled
from promptcodebook.config import load_config, merge
from promptcodebook.errors import DataError
from promptcodebook.experiments.experiment import (
    Experiment,
    Measured,
    Order,
    base,
    difference,
    framed,
    judged_by_words,
    rewards,
    runs_of,
    said,
    score,
    stopped,
    tokens,
    trained,
)
from promptcodebook.experiments.lab import Cell, Gate, Lab, Result, row_json
from promptcodebook.experiments.page import Bars, Block, Page, Table, published, shown
from promptcodebook.lm.spec import is_local, parse_spec
from promptcodebook.method.executor import Evaluator
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.run.optimize import BENCHMARKS
from promptcodebook.units import plural

FLOOR = 50
"""Test examples that tell whether a model leaves the floor of a benchmark."""
_VALIDATING: Mapping[str, int] = {"quick": 2, "default": 8, "paper": 60}
"""Examples that all validate on, by preset: few, since all pay for them."""
_LOOKS = 3
"""Of ours at its validation: before training, half way and at its end."""
_DRAWN = {"updater": {"temperature": 1.0, "max_tokens": 1024}}
"""The reflections that optimizers/outside.py draws, whatever a small model's updater has: a cell of
other settings is another cell."""


@dataclass(frozen=True, slots=True)
class Method:
    """One line of Table 1, as methods.toml describes it."""

    title: str
    row: str
    settings: Mapping[str, Any]
    rollout: Mapping[str, float] = field(default_factory=dict[str, float])
    validation: Mapping[str, float] = field(default_factory=dict[str, float])
    searches: bool = False


@cache
def _described() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("methods.toml").read_text("utf-8"))


def methods() -> Mapping[str, Method]:
    """By name, in the table's order."""
    made: dict[str, Method] = {}
    for name, each in _described()["methods"].items():
        own: dict[str, Any] = {"row": name, "settings": {}, **each}
        if each.get("searches"):
            own["settings"] = {"optimizer": name, "roles": _DRAWN}
        made[name] = Method(**own)
    return made


def methods_of(spec: str) -> Mapping[str, Method]:
    """Those that can be run on the model: GRPO trains weights, and so needs them here, and its
    libraries."""
    trains = is_local(spec) and all(map(find_spec, ("trl", "peft")))
    return {name: method for name, method in methods().items() if trains or name != "grpo"}


def tasks_of(order: Order, spec: str) -> tuple[str, ...]:
    if order.task:
        return (order.task,)
    kind = parse_spec(spec).kind
    if kind == "simulated":
        return ("constraints",)
    ours = ("houserules",) if kind == "local" else ()
    return ours if order.preset == "quick" else (*ours, *BENCHMARKS)


def _budgets(order: Order) -> Mapping[str, tuple[int, int]]:
    return _described()["budgets"][order.preset]


def cells_of(order: Order, spec: str) -> Sequence[Cell]:
    cells: list[Cell] = []
    for task in tasks_of(order, spec):
        validation = {"subset": _VALIDATING[order.preset], "finalists": 1}
        whole = base(replace(order, task=task), spec, task)
        settings = merge(whole, {"validation": validation})
        floor = _floor(f"{task}/floor", {**settings, "verdict_examples": FLOOR})
        cells.append(floor)
        for kind in _budgets(order):
            for seed in range(order.seeds):
                for name in methods_of(spec):
                    cell = _run(order, settings, name, kind, seed)
                    cells.append(_above(floor, cell) if task in BENCHMARKS else cell)
    return cells


def _floor(name: str, settings: Mapping[str, Any]) -> Cell:
    def measure(lab: Lab) -> Result:
        config = load_config(settings, where="the experiment")

        async def work(assembled: Assembled) -> Result:
            low, _ = config.reward_range
            evaluator = Evaluator(assembled.trial(greedy=True), config.randomness, low)
            prompt = FixedPrompt(assembled.plan.present_prompt)
            row = await evaluator.evaluate("floor", prompt, assembled.plan.judged, "test")
            return {"row": row_json(row)}

        return lab.work(config, work)

    return Cell(name, settings, measure)


def _run(order: Order, settings: Mapping[str, Any], name: str, kind: str, seed: int) -> Cell:
    (training, judging), method = _budgets(order)[kind], methods()[name]
    # As a share: rounded down, it leaves for training what is meant for training.
    kept = (judging + 0.5) / (training + judging)
    held: dict[str, Any] = {
        "budget": {kind: training + judging, "reserve_for_verdict": kept},
        "grpo": {"steps": 1, "group": 4, "batch": 2} if order.preset == "quick" else {},
        "seed": seed,
    }
    own = merge(settings, method.settings, held)
    task = settings["task"]
    made = trained(f"{task}/{name}-{kind}/{seed}", merge(own, _epochs(method, kind, own, training)))
    # What both ask is asked once, if one comes after the other.
    first = (f"{task}/gepa-{kind}/{seed}",) if name == "gepa-merge" else ()
    return replace(made, after=first)


def _epochs(method: Method, kind: str, own: Mapping[str, Any], training: int) -> dict[str, Any]:
    """As many as use the budget up, validation counted, about when exploration has faded; the
    paper's own where that is its preset."""
    batch, look = own["update"].get("batch_size"), method.validation.get(kind, 0.0)
    if batch is None or kind not in method.rollout:
        return {"validation": {"every": 10}} if look else {}
    left = training - _LOOKS * look * own["validation"]["subset"]
    epochs = max(1, round(left / method.rollout[kind] / batch))
    if not look:
        return {"update": {"epochs": epochs}}
    every = max(1, epochs // 2)
    return {"update": {"epochs": epochs // every * every}, "validation": {"every": every}}


def _above(floor: Cell, cell: Cell) -> Cell:
    """The cell where the model leaves the floor; else a result that says that it does not."""

    def measure(lab: Lab) -> Result:
        if lab.read(floor) is None:
            raise DataError(f"its task is left out, since {floor.name} has no result")
        return cell.measure(lab)

    def instead(known: Result) -> Result | None:
        return None if _leaves(known) else {"floor": True, "rows": {}, "stopped": ""}

    return replace(cell, measure=measure, gate=Gate(floor.name, instead))


def _leaves(floor: Result) -> bool:
    return score([floor["row"]["rewards"]]).low > 0


@dataclass(frozen=True, slots=True)
class _Line:
    """A row of a table of methods: which row of the verdicts of the runs, by task."""

    title: str
    row: str
    runs: Mapping[str, Sequence[Result]]
    paid: bool = True
    """Whether it was trained."""

    def rewards(self, task: str) -> Sequence[Sequence[float]]:
        return rewards(self.runs[task], self.row)

    def made(self, task: str) -> list[Result]:
        """The runs that have the row."""
        return [run for run in self.runs[task] if self.row in run["rows"]]


@dataclass(frozen=True, slots=True)
class _Lines:
    """The lines with a result, and the tasks they have one of; `left_out` says of which searches a
    run tried nothing new."""

    lines: Sequence[_Line]
    tasks: Sequence[str]
    left_out: Sequence[Block]


def _lines(measured: Measured, kind: str) -> _Lines:
    """Fixed prompts first, then methods."""
    tasks = tasks_of(measured.order, measured.lab.spec)

    def of(name: str) -> dict[str, list[Result]]:
        found = {task: runs_of(measured.results, f"{task}/{name}-{kind}") for task in tasks}
        return {task: [run for run in runs if run["rows"]] for task, runs in found.items()}

    fixed = _described()["fixed"]
    lines = [_Line(title, row, of("pco"), paid=False) for row, title in fixed.items()]
    unpacked = "zero-shot on the weights that GRPO begins with"
    lines.append(_Line(unpacked, "converted", of("grpo"), paid=False))
    dropped: list[str] = []
    for name, method in methods().items():
        runs, title = of(name), method.title
        made = [run for each in runs.values() for run in each]
        if method.searches and made:
            # A result that does not say tried none. What the search of all seeds and tasks came to:
            found = [run.get("search", {}) for run in made]
            tried = sorted(search.get("tried", 0) for search in found)
            each = f"{tried[0]}" if tried[0] == tried[-1] else f"{tried[0]} to {tried[-1]}"
            cut, replies = (sum(s.get(what, 0) for s in found) for what in ("cut", "replies"))
            prompts = "prompt" if each == "1" else "prompts"
            search = f"tried {each} {prompts} a run, "
            search += f"{cut} of {plural(replies, 'reply', 'replies')} cut"
            if tried[0] < 2:
                dropped.append(said("main", "left_out", title=title, search=search))
                continue
            title = f"{title} ({search})"
        lines.append(_Line(title, method.row, runs))
    lines = [line for line in lines if any(map(line.rewards, tasks))]
    there = [task for task in tasks if any(line.rewards(task) for line in lines)]
    return _Lines(lines, there, ["\n".join(dropped)] if dropped else [])


def _main_page(measured: Measured) -> Page:
    spec = measured.lab.spec
    tasks = tasks_of(measured.order, spec)
    blocks: list[Block] = [*judged_by_words(tasks[1:], spec), _floors(measured, tasks)]
    for kind, (training, _) in _budgets(measured.order).items():
        found = _lines(measured, kind)
        if found.lines:
            blocks.append(f"## At equal {kind}: at most {training:,} for training")
            blocks += [_rewards_table(found, kind), *found.left_out, *_failed(measured, kind)]
    grpo = said("main", "engines" if "grpo" in methods_of(spec) else "no_grpo")
    # The paper's own Table 1, apart from ours.
    blocks += [said("main", "note"), grpo, "## The paper's own figures"]
    for executor in ("Qwen3-8B", "LLaMA-3.1-8B"):
        values = published("Table 1", executor).values
        metrics = {v.column: v.metric for v in reversed(values)}
        columns = list(dict.fromkeys(v.column for v in values))
        printed = {(v.row, v.column): v.printed for v in values}
        rows = [
            [row, *(printed.get((row, c), "") for c in columns)]
            for row in dict.fromkeys(v.row for v in values)
        ]
        head = ["method", *(f"{c} ({metrics[c]})" for c in columns)]
        blocks.append(Table(f"paper-{executor}", head, rows, f"The paper, {executor}, in percent"))
    return framed(measured, tasks[0], blocks)


def _floors(measured: Measured, tasks: Sequence[str]) -> Table:
    rows: list[list[str]] = []
    for task in tasks:
        result = measured.results.get(f"{task}/floor")
        if result is not None:
            taking = "yes" if _leaves(result) else "no: the interval touches 0"
            taking = taking if task in BENCHMARKS else "yes, in any case"
            rows.append([task, shown(score([result["row"]["rewards"]])), taking])
    head = ["task", "zero-shot (95 %)", "takes part"]
    return Table("floor", head, rows, f"Up to {FLOOR} test examples without any optimizing")


def _rewards_table(found: _Lines, kind: str) -> Table:
    head = ["method", *(f"{task} (95 %)" for task in found.tasks), "mean", "mean minus PCO"]
    head += [f"{what} in training and choosing" for what in ("tokens", "calls")]
    titled = {line.title: line for line in found.lines}
    rows: list[list[str]] = []
    for line in found.lines:
        own = map(line.rewards, found.tasks)
        cells = [shown(score(each)) if each else "" for each in own]
        made = [run for task in found.tasks for run in line.made(task)]
        spent = [
            f"{fmean(run['training'][what] for run in made):,.0f}" if line.paid else "0"
            for what in ("tokens", "calls")
        ]
        rows.append([line.title, *cells, *_aggregate(line, titled.get("PCO"), found.tasks), *spent])
    return Table(f"main-{kind}", head, rows)


def _aggregate(line: _Line, pco: _Line | None, tasks: Sequence[str]) -> list[str]:
    """The plain mean over the tasks that a method has all of, and what it has over PCO's."""
    own = list(map(line.rewards, tasks))
    if not all(own):
        return ["", ""]
    mean = f"{fmean(score(each).mean for each in own):.3f}"
    theirs = [] if pco is None else list(map(pco.rewards, tasks))
    if pco is None or line is pco or not all(theirs):
        return [mean, ""]
    if len(tasks) > 1:
        pairs = zip(own, theirs, strict=True)
        return [mean, f"{fmean(score(a).mean - score(b).mean for a, b in pairs):+.3f}"]
    shared = min(len(own[0]), len(theirs[0]))
    return [mean, shown(difference(own[0][:shared], theirs[0][:shared]), signed=True)]


def _failed(measured: Measured, kind: str) -> list[Block]:
    """Optimizers that failed by themselves say how in their verdict; runs that ended before their
    own row was judged are counted."""
    tasks = tasks_of(measured.order, measured.lab.spec)
    runs: dict[str, list[Result]] = {}
    lines: list[str] = []
    for name, method in methods().items():
        found = [runs_of(measured.results, f"{task}/{name}-{kind}") for task in tasks]
        runs[name] = [run for each in found for run in each]
        made = [run for run in runs[name] if run["rows"] and not run["stopped"]]
        failed = {run["verdict"] for run in made if "failed" in run.get("verdict", "")}
        lines += [f"- {method.title}: {verdict}" for verdict in sorted(failed)]
        unjudged = [run for run in made if method.row not in run["rows"]]
        if unjudged:
            ended = ", ".join(sorted({run["ended"] for run in unjudged}))
            counts = {"unjudged": len(unjudged), "runs": plural(len(made), "run")}
            lines.append(said("main", "unjudged", title=method.title, ended=ended, **counts))
    return [*(["\n".join(lines)] if lines else []), *stopped(runs)]


def _length_page(measured: Measured) -> Page:
    found = _lines(measured, list(_budgets(measured.order))[-1])
    blocks: list[Block] = []
    if found.lines:
        series: dict[str, list[float | None]] = {}
        for line in found.lines:
            longest = [_lengths(line, task)[:1] for task in found.tasks]
            series[line.title] = [float(each[0]) if each else None for each in longest]
        title = "Longest prompt of the executor"
        blocks.append(Bars("longest", title, "tokens", list(found.tasks), series))
    for task in found.tasks:
        lengths = [(line.title, _lengths(line, task)) for line in found.lines]
        rows = [[title, *own] for title, own in lengths if own]
        head = ["method", "longest prompt", "sum over calls", "tokens a query", "calls a query"]
        blocks.append(Table(f"lengths-{task}", head, rows, f"Tokens on {task}"))
    paper = [v for v in published("Figure 4a").values if v.metric == "longest_prompt"]
    columns = list(dict.fromkeys(v.column for v in paper))
    printed = {(v.row, v.column): v.printed for v in paper}
    rows = [
        [row, *(printed.get((row, column), "") for column in columns)]
        for row in dict.fromkeys(v.row for v in paper)
    ]
    title = "The paper, tokens (Figure 4a)"
    blocks += [*found.left_out, Table("paper-lengths", ["method", *columns], rows, title)]
    return framed(measured, tasks_of(measured.order, measured.lab.spec)[0], blocks)


def _lengths(line: _Line, task: str) -> list[str]:
    """Means over the runs: of the executor's longest system prompt over stages and examples
    (decision 17), of the longest sum over a rollout's calls, and of what a query takes in all."""
    made = line.made(task)
    own = [run["rows"][line.row] for run in made]
    if not own:
        return []
    return [
        f"{fmean(each['longest_prompt'] for each in own):.0f}",
        f"{fmean(each['total_prompt'] for each in own):.0f}",
        f"{fmean(tokens(run, line.row) for run in made):.0f}",
        f"{fmean(each['calls'] for each in own):.1f}",
    ]


def _cost_page(measured: Measured) -> Page:
    tasks = tasks_of(measured.order, measured.lab.spec)
    blocks = judged_by_words(tasks[1:], measured.lab.spec)
    found = _lines(measured, list(_budgets(measured.order))[-1])
    head = ["method", "tokens in training and choosing", "tokens for the test split"]
    head += ["seconds a query", "calls a query", "reward (95 %)"]
    for task in found.tasks:
        rows: list[list[str]] = []
        for line in found.lines:
            made = line.made(task)
            own = [run["rows"][line.row] for run in made]
            if not own:
                continue
            training = "0"
            if line.row not in _described()["fixed"]:
                training = f"{fmean(run['training']['tokens'] for run in made):,.0f}"
            judged = [tokens(run, line.row) * len(run["rows"][line.row]["rewards"]) for run in made]
            seconds, calls = (fmean(each[what] for each in own) for what in ("seconds", "calls"))
            taken = [training, f"{fmean(judged):,.0f}", f"{seconds:.2f}", f"{calls:.1f}"]
            rows.append([line.title, *taken, shown(score(line.rewards(task)))])
        blocks.append(Table(f"cost-{task}", head, rows))
    printed = "; ".join(f"{v.row} {v.column}: {v.printed}" for v in published("Table 5").values)
    paper = f"The paper, HotpotQA, one A100: {printed}."
    return framed(measured, tasks[0], [*blocks, *found.left_out, said("main", "seconds"), paper])


MAIN = Experiment("main", "Table 1", cells_of, _main_page)
PROMPT_LENGTH = Experiment("prompt-length", "Figure 4a", cells_of, _length_page)
COST = Experiment("cost", "Table 5", cells_of, _cost_page)
