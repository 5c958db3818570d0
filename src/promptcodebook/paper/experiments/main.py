"""`main` (Table 1): PCO and other optimizers on the same tasks, at equal tokens and at equal calls;
`prompt-length` (Figure 4a) and `cost` (Table 5) are views of its runs. A benchmark takes part where
the model leaves its floor: where the interval of its zero-shot reward does not touch 0."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from promptcodebook.base.units import plural
from promptcodebook.config import merge
from promptcodebook.errors import DataError
from promptcodebook.lm.spec import parse_spec
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.paper.experiments import experiment as common
from promptcodebook.paper.experiments import page as pages
from promptcodebook.paper.experiments.lab import Cell, CellResult, Lab, Runs, judged_cell

BENCHMARKS = ("aime", "hotpotqa", "hover", "ifbench", "livebench_math", "pupa")
FLOOR = 50  # test examples that tell whether a model leaves the floor of a benchmark
_LOOKS = 3  # of ours at its validation: before training, half way and at its end
# The reflections that paper/rivals/outside.py draws, whatever a small model's updater has.
_DRAWN = {"updater": {"temperature": 1.0, "max_tokens": 1024}}


@dataclass(frozen=True, slots=True)
class Method:
    title: str
    row: str
    settings: Mapping[str, Any]
    rollout: Mapping[str, float] = field(default_factory=dict[str, float])
    validation: Mapping[str, float] = field(default_factory=dict[str, float])
    searches: bool = False


def methods() -> Mapping[str, Method]:
    """In the order of the table."""
    made: dict[str, Method] = {}
    for name, each in pages.read_table("methods")["methods"].items():
        own: dict[str, Any] = {"row": name, "settings": {}, **each}
        if each.get("searches"):
            own["settings"] = {"optimizer": name, "roles": _DRAWN}
        made[name] = Method(**own)
    return made


def tasks_of(order: common.ExperimentRequest, spec: str) -> tuple[str, ...]:
    if order.task:
        return (order.task,)
    kind = parse_spec(spec).kind
    if kind == "simulated":
        return ("constraints",)
    ours = ("houserules",) if kind == "local" else ()
    return ours if order.preset == "quick" else (*ours, *BENCHMARKS)


def _budgets(order: common.ExperimentRequest) -> Mapping[str, tuple[int, int]]:
    return pages.read_table("methods")["budgets"][order.preset]


def cells_of(order: common.ExperimentRequest, spec: str) -> Sequence[Cell]:
    floors: list[Cell] = []
    cells: list[Cell] = []
    for task in tasks_of(order, spec):
        few, most = pages.read_table("methods")["validating"][order.preset]
        whole = common.base(replace(order, task=task), spec, task)
        validation = {"subset": few, "examples": most, "finalists": 1}
        settings = merge(whole, {"validation": validation})
        floor = judged_cell(
            f"{task}/floor",
            {**settings, "verdict_examples": FLOOR},
            lambda made: ({"row": FixedPrompt(made.plan.present_prompt)}, made.plan.judged),
        )
        floors.append(floor)
        for kind in _budgets(order):
            for seed in range(order.seeds):
                for name in methods():
                    cell = _run(order, settings, name, kind, seed)
                    cells.append(_above(floor, cell) if task in BENCHMARKS else cell)
    return [*floors, *cells]


def _run(
    order: common.ExperimentRequest, settings: Mapping[str, Any], name: str, kind: str, seed: int
) -> Cell:
    (training, judging), method = _budgets(order)[kind], methods()[name]
    # As a share: rounded down, it leaves for training what is meant for training.
    kept = (judging + 0.5) / (training + judging)
    held: dict[str, Any] = {
        "budget": {kind: training + judging, "reserve_for_verdict": kept},
        "seed": seed,
    }
    own = merge(settings, method.settings, held)
    # Enough epochs that the budget, validation counted, is about used up when exploration has
    # faded; the paper's own where that is the preset.
    batch, look = own["update"].get("batch_size"), method.validation.get(kind, 0.0)
    epochs: dict[str, Any] = {"validation": {"every": 10}} if look else {}
    if batch is not None and kind in method.rollout:
        left = training - _LOOKS * look * own["validation"]["subset"]
        count = max(1, round(left / method.rollout[kind] / batch))
        epochs = {"update": {"epochs": count}}
        if look:
            every = max(1, count // 2)
            epochs = {"update": {"epochs": count // every * every}, "validation": {"every": every}}
    task = settings["task"]
    made = common.trained(f"{task}/{name}-{kind}/{seed}", merge(own, epochs))
    # What both ask is asked once, if one comes after the other.
    first = (f"{task}/gepa-{kind}/{seed}",) if name == "gepa-merge" else ()
    return replace(made, after=first)


def _above(floor: Cell, cell: Cell) -> Cell:
    """The cell where the model leaves the floor; else a result that says that it does not."""

    def measure(lab: Lab) -> CellResult:
        known = lab.read(floor)
        if known is None:
            raise DataError(f"its task is left out, since {floor.name} has no result")
        return cell.measure(lab) if _leaves(known) else {"floor": True, "rows": {}, "stopped": ""}

    return replace(cell, measure=measure, after=(*cell.after, floor.name))


def _leaves(floor: CellResult) -> bool:
    return common.score([floor["row"]["rewards"]]).low > 0


@dataclass(frozen=True, slots=True)
class _MethodRow:
    """A row of a table of methods: which row of the verdicts of the runs, by task."""

    title: str
    row: str
    runs: Mapping[str, Runs]
    paid: bool = True  # trained

    def rewards(self, task: str) -> Sequence[Sequence[float]]:
        return common.rewards(self.runs[task], self.row)

    def made(self, task: str) -> list[CellResult]:
        return [run for run in self.runs[task] if self.row in run["rows"]]


@dataclass(frozen=True, slots=True)
class _Lines:
    """The lines with a result, their tasks, and which searches tried nothing new (`left_out`)."""

    lines: Sequence[_MethodRow]
    tasks: Sequence[str]
    left_out: Sequence[pages.Block]


def _lines(measured: common.Results, kind: str) -> _Lines:
    tasks = tasks_of(measured.order, measured.lab.spec)

    def of(name: str) -> dict[str, list[CellResult]]:
        found = {task: common.runs_of(measured.results, f"{task}/{name}-{kind}") for task in tasks}
        return {task: [run for run in runs if run["rows"]] for task, runs in found.items()}

    fixed = pages.read_table("methods")["fixed"]
    lines = [_MethodRow(title, row, of("pco"), paid=False) for row, title in fixed.items()]
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
                dropped.append(common.text("main", "left_out", title=title, search=search))
                continue
            title = f"{title} ({search})"
        lines.append(_MethodRow(title, method.row, runs))
    lines = [line for line in lines if any(map(line.rewards, tasks))]
    there = [task for task in tasks if any(line.rewards(task) for line in lines)]
    return _Lines(lines, there, ["\n".join(dropped)] if dropped else [])


def _main_page(measured: common.Results) -> pages.Page:
    spec = measured.lab.spec
    tasks = tasks_of(measured.order, spec)
    floors: list[list[str]] = []
    for task in tasks:
        result = measured.results.get(f"{task}/floor")
        if result is not None:
            taking = "yes" if _leaves(result) else "no: the interval touches 0"
            taking = taking if task in BENCHMARKS else "yes, always"
            floors.append([task, pages.shown(common.score([result["row"]["rewards"]])), taking])
    title = f"Up to {FLOOR} test examples, without optimizing"
    blocks: list[pages.Block] = common.judged_by_words(tasks[1:], spec)
    head = ["task", "zero-shot (95 %)", "included"]
    blocks.append(pages.PageTable("floor", head, floors, title))
    for kind, (training, _) in _budgets(measured.order).items():
        found = _lines(measured, kind)
        if found.lines:
            blocks.append(f"## At equal {kind}: at most {training:,} for training")
            blocks += [_rewards_table(found, kind), *found.left_out, *_failed(measured, kind)]
    # The paper's own Table 1, apart from ours, beside figures of the same benchmarks.
    blocks += [common.text("main", "note")]
    executors = ("Qwen3-8B", "LLaMA-3.1-8B") if set(tasks) & set(BENCHMARKS) else ()
    blocks += ["## The paper's own figures"] * bool(executors)
    for executor in executors:
        values = pages.published("Table 1", executor)
        if not set(BENCHMARKS) <= set(tasks):  # the means of all six are beside no figure of ours
            values = [v for v in values if _task_of(v.benchmark or "") in tasks]
        metrics = {v.column: v.metric for v in reversed(values)}
        columns, rows = pages.as_printed(values)
        head = ["method", *(f"{c} ({metrics[c]})" for c in columns)]
        title = f"The paper, {executor}, in percent"
        blocks.append(pages.PageTable(f"paper-{executor}", head, rows, title))
    return common.framed(measured, tasks[0], blocks)


def _task_of(benchmark: str) -> str:
    """Our name of one of the paper's benchmarks; '' = none of them."""
    letters = re.sub("[^a-z]", "", benchmark.lower())
    return next((task for task in BENCHMARKS if task.replace("_", "") == letters), "")


def _rewards_table(found: _Lines, kind: str) -> pages.PageTable:
    """Rewards by task, their mean where a method has all, and what it has over PCO's."""
    head = ["method", *(f"{task} (95 %)" for task in found.tasks), "mean", "mean minus PCO"]
    head += [f"{what} in training and choosing" for what in ("tokens", "calls")]
    pco = next((line for line in found.lines if line.title == "PCO"), None)
    theirs = [] if pco is None else list(map(pco.rewards, found.tasks))
    rows: list[list[str]] = []
    for line in found.lines:
        own = list(map(line.rewards, found.tasks))
        mean = f"{fmean(common.score(each).mean for each in own):.3f}" if all(own) else ""
        over = ""
        if all(own) and theirs and all(theirs) and line is not pco:
            pairs = list(zip(own, theirs, strict=True))
            over = f"{fmean(common.score(a).mean - common.score(b).mean for a, b in pairs):+.3f}"
            if len(pairs) == 1:
                shared = min(len(own[0]), len(theirs[0]))
                gain = common.difference(own[0][:shared], theirs[0][:shared])
                over = pages.shown(gain, signed=True)
        made = [run for task in found.tasks for run in line.made(task)]
        spent = [
            f"{fmean(run['training'][what] for run in made):,.0f}" if line.paid else "0"
            for what in ("tokens", "calls")
        ]
        cells = [pages.shown(common.score(each)) if each else "" for each in own]
        rows.append([line.title, *cells, mean, over, *spent])
    return pages.PageTable(f"main-{kind}", head, rows)


def _failed(measured: common.Results, kind: str) -> list[pages.Block]:
    """Optimizers that failed by themselves, and runs that ended before their own row was judged."""
    tasks = tasks_of(measured.order, measured.lab.spec)
    runs: dict[str, list[CellResult]] = {}
    lines: list[str] = []
    for name, method in methods().items():
        found = [common.runs_of(measured.results, f"{task}/{name}-{kind}") for task in tasks]
        runs[name] = [run for each in found for run in each]
        made = [run for run in runs[name] if run["rows"] and not run["stopped"]]
        failed = {run["verdict"] for run in made if "failed" in run.get("verdict", "")}
        lines += [f"- {method.title}: {verdict}" for verdict in sorted(failed)]
        unjudged = [run for run in made if method.row not in run["rows"]]
        if unjudged:
            ended = ", ".join(sorted({run["ended"] for run in unjudged}))
            counts = {"unjudged": len(unjudged), "runs": plural(len(made), "run")}
            lines.append(common.text("main", "unjudged", title=method.title, ended=ended, **counts))
    return [*(["\n".join(lines)] if lines else []), *common.stopped(runs)]


def _length_page(measured: common.Results) -> pages.Page:
    found = _lines(measured, list(_budgets(measured.order))[-1])
    blocks: list[pages.Block] = []
    if found.lines:
        series: dict[str, list[float | None]] = {}
        for line in found.lines:
            longest = [_lengths(line, task)[:1] for task in found.tasks]
            series[line.title] = [float(each[0]) if each else None for each in longest]
        title = "Longest prompt of the executor"
        blocks.append(pages.Bars("longest", title, "", "tokens", list(found.tasks), series))
    for task in found.tasks:
        lengths = [(line.title, _lengths(line, task)) for line in found.lines]
        rows = [[title, *own] for title, own in lengths if own]
        head = ["method", "longest prompt", "sum over calls", "tokens per query", "calls per query"]
        blocks.append(pages.PageTable(f"lengths-{task}", head, rows, f"Tokens on {task}"))
    paper = [v for v in pages.published("Figure 4a") if v.metric == "longest_prompt"]
    columns, rows = pages.as_printed(paper)
    title = "The paper, tokens (Figure 4a)"
    blocks += [*found.left_out, pages.PageTable("paper-lengths", ["method", *columns], rows, title)]
    return common.framed(measured, tasks_of(measured.order, measured.lab.spec)[0], blocks)


def _lengths(line: _MethodRow, task: str) -> list[str]:
    """Means over the runs: the executor's longest system prompt over stages and examples (decision
    17), the longest sum over a rollout's calls, and what a query takes in all."""
    made = line.made(task)
    own = [run["rows"][line.row] for run in made]
    if not own:
        return []
    return [
        f"{fmean(each['longest_prompt'] for each in own):.0f}",
        f"{fmean(each['total_prompt'] for each in own):.0f}",
        f"{fmean(common.tokens(run, line.row) for run in made):.0f}",
        f"{fmean(each['calls'] for each in own):.1f}",
    ]


def _cost_page(measured: common.Results) -> pages.Page:
    tasks = tasks_of(measured.order, measured.lab.spec)
    blocks = common.judged_by_words(tasks[1:], measured.lab.spec)
    found = _lines(measured, list(_budgets(measured.order))[-1])
    head = ["method", "tokens in training and choosing", "tokens for the test split"]
    head += ["seconds per query", "calls per query", "reward (95 %)"]
    for task in found.tasks:
        rows: list[list[str]] = []
        for line in found.lines:
            made = line.made(task)
            own = [run["rows"][line.row] for run in made]
            if not own:
                continue
            training = "0"
            if line.row not in pages.read_table("methods")["fixed"]:
                training = f"{fmean(run['training']['tokens'] for run in made):,.0f}"
            n = [len(row["rewards"]) for row in own]
            judged = [common.tokens(run, line.row) * k for run, k in zip(made, n, strict=True)]
            seconds, calls = (fmean(each[what] for each in own) for what in ("seconds", "calls"))
            taken = [training, f"{fmean(judged):,.0f}", f"{seconds:.2f}", f"{calls:.1f}"]
            rows.append([line.title, *taken, pages.shown(common.score(line.rewards(task)))])
        blocks.append(pages.PageTable(f"cost-{task}", head, rows))
    printed = "; ".join(f"{v.row} {v.column}: {v.printed}" for v in pages.published("Table 5"))
    paper = f"The paper's figures for HotpotQA on one A100: {printed}."
    blocks += [*found.left_out, common.text("main", "seconds"), paper]
    return common.framed(measured, tasks[0], blocks)


MAIN = common.Experiment("main", "Table 1", cells_of, _main_page)
PROMPT_LENGTH = common.Experiment("prompt-length", "Figure 4a", cells_of, _length_page)
COST = common.Experiment("cost", "Table 5", cells_of, _cost_page)
