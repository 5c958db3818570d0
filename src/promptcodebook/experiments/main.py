"""`main` (Table 1): PCO and other optimizers on the same tasks, once at equal tokens and once at
equal calls; `prompt-length` (Figure 4a) and `cost` (Table 5) are views of its runs.

All methods begin with the same prompt and validate on the same examples. Training and validation
share one budget; judging does not count. A benchmark of the paper takes part where the model leaves
its floor: where the interval of its reward, on up to 50 test examples without any optimizing, does
not touch 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from statistics import fmean
from typing import Any

from promptcodebook.assemble import Assembled
from promptcodebook.config import load_config, merge
from promptcodebook.errors import DataError
from promptcodebook.experiments.experiment import (
    Experiment,
    Measured,
    Order,
    about,
    base,
    difference,
    judged_by_words,
    missing,
    rewards,
    runs_of,
    said,
    score,
    stopped,
    tokens,
    trained,
)
from promptcodebook.experiments.lab import Cell, Gate, Lab, Result, row_json
from promptcodebook.experiments.page import Bars, Block, Page, Table, shown
from promptcodebook.experiments.published import published
from promptcodebook.lm.spec import is_local, parse_spec
from promptcodebook.method.executor import Evaluator
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.run.optimize import BENCHMARKS
from promptcodebook.units import plural

FLOOR = 50
"""Test examples that tell whether a model leaves the floor of a benchmark."""


@dataclass(frozen=True, slots=True)
class Method:
    """One line of Table 1: the settings of its runs, and its row in their verdicts. `rollout` and
    `validation` say what one rollout of each takes, by kind of budget ({} = no epochs, or no
    validation). A search for one prompt (`searches`) is shown only where it tried several."""

    title: str
    settings: Mapping[str, Any]
    row: str
    rollout: Mapping[str, float] = field(default_factory=dict[str, float])
    validation: Mapping[str, float] = field(default_factory=dict[str, float])
    searches: bool = False


def _searching(name: str, title: str) -> Method:
    """With the reflections that optimizers/outside.py draws, whatever a small model's updater has:
    a cell of other settings is another cell."""
    drawn = {"updater": {"temperature": 1.0, "max_tokens": 1024}}
    return Method(title, {"optimizer": name, "roles": drawn}, name, searches=True)


_ROUTED = {
    "router": {"kind": "outcomes"},
    "compose": "verbatim",
    "select": 1,
    "keep": "last",
    "update": {"batch_size": 32, "text_updates": False},
}
METHODS: Mapping[str, Method] = {
    "pco": Method(
        "PCO", {}, "learned", {"calls": 7.5, "tokens": 4_000}, {"calls": 3, "tokens": 2_000}
    ),
    "gepa": _searching("gepa", "GEPA"),
    "gepa-merge": _searching("gepa-merge", "GEPA+Merge"),
    "mipro": _searching("mipro", "MIPROv2"),
    "learned-router": Method(
        "ours: PCO with a learned router", _ROUTED, "learned", {"calls": 1, "tokens": 150}
    ),
    # Replies to one example are compared, and so are drawn.
    "grpo": Method(
        "GRPO", {"optimizer": "grpo", "roles": {"executor": {"temperature": 1.0}}}, "grpo"
    ),
    "random-routes": Method(
        "random routes over the first codebook", {"optimizer": "random_routes"}, "random_routes"
    ),
    "best-single": Method("best single instinct", {"optimizer": "best_single"}, "best_single"),
}
"""Rows that every run has beside its own (zero-shot, concat, untrained) are taken from PCO's."""
_GRPO_NEEDS = ("trl", "peft")
_UNPACKED = "zero-shot on the weights that GRPO begins with"
FIXED: Mapping[str, str] = {
    "present": "zero-shot",
    "concat": "all first and learned instincts in one prompt (concat)",
    "untrained": "untrained codebook",
}


@dataclass(frozen=True, slots=True)
class _Cap:
    """What a run may train with, and the most that choosing and judging may take beside it."""

    training: int
    judging: int

    @property
    def whole(self) -> int:
        return self.training + self.judging

    @property
    def kept(self) -> float:
        """As a share: rounded down, it leaves for training what is meant for training."""
        return (self.judging + 0.5) / self.whole


_BUDGETS: Mapping[str, Mapping[str, _Cap]] = {
    "quick": {"calls": _Cap(48, 400)},
    "default": {"calls": _Cap(240, 2_000), "tokens": _Cap(120_000, 2_000_000)},
    "paper": {"calls": _Cap(20_000, 40_000), "tokens": _Cap(9_050_000, 90_000_000)},
}
"""By preset and kind. The paper's tokens are what its Table 5 gives PCO."""
_VALIDATING: Mapping[str, int] = {"quick": 2, "default": 8, "paper": 60}
"""Examples that all validate on, by preset: few, since all pay for them."""
_LOOKS = 3
"""Of ours at its validation: before training, half way and at its end."""


def methods_of(spec: str) -> Mapping[str, Method]:
    """Those that can be run on the model: GRPO trains weights, and so needs them here, and its
    libraries."""
    trains = is_local(spec) and all(map(find_spec, _GRPO_NEEDS))
    return {name: method for name, method in METHODS.items() if trains or name != "grpo"}


def tasks_of(order: Order, spec: str) -> tuple[str, ...]:
    if order.task:
        return (order.task,)
    kind = parse_spec(spec).kind
    if kind == "simulated":
        return ("constraints",)
    ours = ("houserules",) if kind == "local" else ()
    return ours if order.preset == "quick" else (*ours, *BENCHMARKS)


def _floor(order: Order, spec: str, task: str) -> Cell:
    settings = {**_settings(order, spec, task), "verdict_examples": FLOOR}

    def measure(lab: Lab) -> Result:
        config = load_config(settings, where="the experiment")

        async def work(assembled: Assembled) -> Result:
            low, _ = config.reward_range
            evaluator = Evaluator(assembled.trial(greedy=True), config.randomness, low)
            prompt = FixedPrompt(assembled.plan.present_prompt)
            row = await evaluator.evaluate("floor", prompt, assembled.plan.judged, "test")
            return {"row": row_json(row)}

        return lab.work(config, work)

    return Cell(f"{task}/floor", settings, measure)


def _settings(order: Order, spec: str, task: str) -> dict[str, Any]:
    validation = {"subset": _VALIDATING[order.preset], "finalists": 1}
    return merge(base(replace(order, task=task), spec, task), {"validation": validation})


def cells_of(order: Order, spec: str) -> Sequence[Cell]:
    cells: list[Cell] = []
    for task in tasks_of(order, spec):
        floor = _floor(order, spec, task)
        settings = _settings(order, spec, task)
        cells.append(floor)
        for kind in _BUDGETS[order.preset]:
            for seed in range(order.seeds):
                for name in methods_of(spec):
                    cell = _run(order, settings, name, kind, seed)
                    cells.append(_above(floor, cell) if task in BENCHMARKS else cell)
    return cells


def _run(order: Order, settings: Mapping[str, Any], name: str, kind: str, seed: int) -> Cell:
    cap, method = _BUDGETS[order.preset][kind], METHODS[name]
    held: dict[str, Any] = {
        "budget": {kind: cap.whole, "reserve_for_verdict": cap.kept},
        "grpo": {"steps": 1, "group": 4, "batch": 2} if order.preset == "quick" else {},
        "seed": seed,
    }
    own = merge(settings, method.settings, held)
    task = settings["task"]
    made = trained(f"{task}/{name}-{kind}/{seed}", merge(own, _epochs(order, method, kind, own)))
    # What both ask is asked once, if one comes after the other.
    first = (f"{task}/gepa-{kind}/{seed}",) if name == "gepa-merge" else ()
    return replace(made, after=first)


def _epochs(order: Order, method: Method, kind: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """So many that the budget, validation counted, is about used up when exploration has faded; the
    paper's own where that is its preset."""
    batch, look = own["update"].get("batch_size"), method.validation.get(kind, 0.0)
    if batch is None or kind not in method.rollout:
        return {"validation": {"every": 10}} if look else {}
    left = _BUDGETS[order.preset][kind].training - _LOOKS * look * own["validation"]["subset"]
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
class Line:
    """A row of a table of methods: runs by task, and which row of their verdicts."""

    title: str
    row: str
    runs: Mapping[str, Sequence[Result]]


def _runs(measured: Measured, kind: str) -> dict[str, dict[str, list[Result]]]:
    """The judged runs of each method, by task."""
    tasks = tasks_of(measured.order, measured.lab.spec)

    def judged(name: str) -> list[Result]:
        return [run for run in runs_of(measured.results, name) if run["rows"]]

    return {n: {task: judged(f"{task}/{n}-{kind}") for task in tasks} for n in METHODS}


def lines_of(measured: Measured, kind: str) -> list[Line]:
    """Fixed prompts first, then methods; those without a single result are left out."""
    of = _runs(measured, kind)
    lines = [Line(title, row, of["pco"]) for row, title in FIXED.items()]
    lines.append(Line(_UNPACKED, "converted", of["grpo"]))
    for name, method in METHODS.items():
        made = [run for runs in of[name].values() for run in runs]
        if not method.searches:
            lines.append(Line(method.title, method.row, of[name]))
        elif min(map(_tried, made), default=0) > 1:
            lines.append(Line(f"{method.title} ({_search(made)})", method.row, of[name]))
    return [line for line in lines if any(rewards(r, line.row) for r in line.runs.values())]


def left_out(measured: Measured, kind: str) -> list[Block]:
    """Searches of which a run tried nothing new: they are no row, and the reason is named."""
    lines: list[str] = []
    for name, by_task in _runs(measured, kind).items():
        made = [run for runs in by_task.values() for run in runs]
        if METHODS[name].searches and made and min(map(_tried, made)) < 2:
            title = METHODS[name].title
            lines.append(said("main", "left_out", title=title, search=_search(made)))
    return ["\n".join(lines)] if lines else []


def _tried(run: Result) -> int:
    """Prompts; 0 in a result that does not say."""
    return run.get("search", {}).get("tried", 0)


def _search(runs: Sequence[Result]) -> str:
    """What the search of all seeds and tasks came to."""
    tried, found = sorted(map(_tried, runs)), [run.get("search", {}) for run in runs]
    each = f"{tried[0]}" if tried[0] == tried[-1] else f"{tried[0]} to {tried[-1]}"
    cut, replies = (sum(one.get(what, 0) for one in found) for what in ("cut", "replies"))
    prompts = "prompt" if each == "1" else "prompts"
    return f"tried {each} {prompts} a run, {cut} of {plural(replies, 'reply', 'replies')} cut"


def kinds_of(order: Order) -> Sequence[str]:
    return tuple(_BUDGETS[order.preset])


def _main_page(measured: Measured) -> Page:
    spec = measured.lab.spec
    tasks = tasks_of(measured.order, spec)
    blocks = about(measured, tasks[0], "PCO and other optimizers, after")
    blocks += [*judged_by_words(tasks[1:], spec), _floors(measured, tasks)]
    for kind in kinds_of(measured.order):
        lines = lines_of(measured, kind)
        if lines:
            cap = _BUDGETS[measured.order.preset][kind]
            blocks.append(f"## At equal {kind}: at most {cap.training:,} for training")
            blocks += [_rewards_table(lines, tasks, kind), *left_out(measured, kind)]
            blocks += _failed(measured, kind)
    grpo = said("main", "engines" if "grpo" in methods_of(spec) else "no_grpo")
    blocks += [said("main", "note"), grpo, *_printed(), *missing(measured)]
    return Page("PCO and other optimizers", blocks)


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


def _rewards_table(lines: Sequence[Line], tasks: Sequence[str], kind: str) -> Table:
    there = _there(lines, tasks)
    head = ["method", *(f"{task} (95 %)" for task in there), "mean", "mean minus PCO"]
    head += [f"{what} in training and choosing" for what in ("tokens", "calls")]
    pco = next((line for line in lines if line.row == "learned" and line.title == "PCO"), None)
    rows: list[list[str]] = []
    for line in lines:
        found = [rewards(line.runs[task], line.row) for task in there]
        cells = [shown(score(each)) if each else "" for each in found]
        spent = [_spent(line, there, what) for what in ("tokens", "calls")]
        rows.append([line.title, *cells, *_aggregate(line, pco, there), *spent])
    return Table(f"main-{kind}", head, rows)


def _there(lines: Sequence[Line], tasks: Sequence[str]) -> list[str]:
    """The tasks that a line has a reward of."""
    return [t for t in tasks if any(rewards(line.runs[t], line.row) for line in lines)]


def _aggregate(line: Line, pco: Line | None, tasks: Sequence[str]) -> list[str]:
    """The plain mean over the tasks that a method has all of, and what it has over PCO's."""
    own = [rewards(line.runs[task], line.row) for task in tasks]
    if not all(own):
        return ["", ""]
    mean = f"{fmean(score(each).mean for each in own):.3f}"
    theirs = [] if pco is None else [rewards(pco.runs[task], pco.row) for task in tasks]
    if pco is None or line is pco or not all(theirs):
        return [mean, ""]
    if len(tasks) > 1:
        pairs = zip(own, theirs, strict=True)
        return [mean, f"{fmean(score(a).mean - score(b).mean for a, b in pairs):+.3f}"]
    shared = min(len(own[0]), len(theirs[0]))
    return [mean, shown(difference(own[0][:shared], theirs[0][:shared]), signed=True)]


def _spent(line: Line, tasks: Sequence[str], what: str) -> str:
    if line.row in (*FIXED, "converted"):
        return "0"
    runs = [run for task in tasks for run in line.runs[task] if line.row in run["rows"]]
    return f"{fmean(run['training'][what] for run in runs):,.0f}"


def _failed(measured: Measured, kind: str) -> list[Block]:
    """Optimizers that failed by themselves say how in their verdict; runs that ended before their
    own row was judged are counted."""
    tasks = tasks_of(measured.order, measured.lab.spec)
    runs = {
        name: [r for task in tasks for r in runs_of(measured.results, f"{task}/{name}-{kind}")]
        for name in METHODS
    }
    lines: list[str] = []
    for name, method in METHODS.items():
        made = [run for run in runs[name] if run["rows"] and not run["stopped"]]
        failed = {run["verdict"] for run in made if "failed" in run.get("verdict", "")}
        lines += [f"- {method.title}: {verdict}" for verdict in sorted(failed)]
        unjudged = [run for run in made if method.row not in run["rows"]]
        if unjudged:
            ended = ", ".join(sorted({run["ended"] for run in unjudged}))
            counts = {"unjudged": len(unjudged), "runs": plural(len(made), "run")}
            lines.append(said("main", "unjudged", title=method.title, ended=ended, **counts))
    return [*(["\n".join(lines)] if lines else []), *stopped(runs)]


def _printed() -> list[Block]:
    """The paper's own Table 1, apart from ours."""
    blocks: list[Block] = ["## The paper's own figures"]
    for executor in ("Qwen3-8B", "LLaMA-3.1-8B"):
        table = published("Table 1", executor)
        names = list(dict.fromkeys(value.row for value in table.values))
        columns = list(dict.fromkeys(value.column for value in table.values))
        found = {(value.row, value.column): value for value in table.values}
        metrics = {c: next(v.metric for v in table.values if v.column == c) for c in columns}
        rows = [
            [row, *(found[row, c].printed if (row, c) in found else "" for c in columns)]
            for row in names
        ]
        head = ["method", *(f"{c} ({metrics[c]})" for c in columns)]
        blocks.append(Table(f"paper-{executor}", head, rows, f"The paper, {executor}, in percent"))
    return blocks


def _length_page(measured: Measured) -> Page:
    tasks = tasks_of(measured.order, measured.lab.spec)
    blocks = about(measured, tasks[0], "Lengths of the prompts that are deployed, after")
    kind = kinds_of(measured.order)[-1]
    lines = lines_of(measured, kind)
    there = _there(lines, tasks)
    if lines:
        blocks.append(_bars(lines, there))
    for task in there:
        rows = [[line.title, *_lengths(line, task)] for line in lines if _lengths(line, task)]
        head = ["method", "longest prompt", "sum over calls", "tokens a query", "calls a query"]
        blocks.append(Table(f"lengths-{task}", head, rows, f"Tokens on {task}"))
    blocks += [*left_out(measured, kind), _paper_lengths()]
    return Page("Prompt length", [*blocks, *missing(measured)])


def _lengths(line: Line, task: str) -> list[str]:
    """Means over the runs: of the executor's longest system prompt over stages and examples
    (decision 17), of the longest sum over a rollout's calls, and of what a query takes in all."""
    made = [run for run in line.runs[task] if line.row in run["rows"]]
    own = [run["rows"][line.row] for run in made]
    if not own:
        return []
    return [
        f"{fmean(each['longest_prompt'] for each in own):.0f}",
        f"{fmean(each['total_prompt'] for each in own):.0f}",
        f"{fmean(tokens(run, line.row) for run in made):.0f}",
        f"{fmean(each['calls'] for each in own):.1f}",
    ]


def _bars(lines: Sequence[Line], tasks: Sequence[str]) -> Bars:
    longest = {line.title: [_lengths(line, task)[:1] for task in tasks] for line in lines}
    series = {
        title: [float(each[0]) if each else None for each in row] for title, row in longest.items()
    }
    return Bars("longest", "Longest prompt of the executor", "tokens", list(tasks), series)


def _paper_lengths() -> Table:
    table = published("Figure 4a")
    own = [v for v in table.values if v.metric == "longest_prompt"]
    columns = list(dict.fromkeys(v.column for v in own))
    rows: list[list[str]] = []
    for row in dict.fromkeys(v.row for v in own):
        found = [table.cell(row, column, "longest_prompt") for column in columns]
        rows.append([row, *(value.printed if value else "" for value in found)])
    return Table("paper-lengths", ["method", *columns], rows, "The paper, tokens (Figure 4a)")


def _cost_page(measured: Measured) -> Page:
    tasks = tasks_of(measured.order, measured.lab.spec)
    blocks = about(measured, tasks[0], "What optimizing and a query cost, after")
    blocks += judged_by_words(tasks[1:], measured.lab.spec)
    kind = kinds_of(measured.order)[-1]
    head = ["method", "tokens in training and choosing", "tokens for the test split"]
    head += ["seconds a query", "calls a query", "reward (95 %)"]
    for task in tasks:
        lines = [line for line in lines_of(measured, kind) if rewards(line.runs[task], line.row)]
        rows = [[line.title, *_costs(line.runs[task], line.row)] for line in lines]
        if rows:
            blocks.append(Table(f"cost-{task}", head, rows))
    printed = "; ".join(f"{v.row} {v.column}: {v.printed}" for v in published("Table 5").values)
    paper = f"The paper, HotpotQA, one A100: {printed}."
    blocks += [*left_out(measured, kind), said("main", "seconds"), paper]
    return Page("Cost", [*blocks, *missing(measured)])


def _costs(runs: Sequence[Result], row: str) -> list[str]:
    made = [run for run in runs if row in run["rows"]]
    own = [run["rows"][row] for run in made]
    training = "0" if row in FIXED else f"{fmean(r['training']['tokens'] for r in made):,.0f}"
    return [
        training,
        f"{fmean(tokens(run, row) * len(run['rows'][row]['rewards']) for run in made):,.0f}",
        f"{fmean(each['seconds'] for each in own):.2f}",
        f"{fmean(each['calls'] for each in own):.1f}",
        shown(score(rewards(made, row))),
    ]


MAIN = Experiment("main", "Table 1", cells_of, _main_page)
PROMPT_LENGTH = Experiment("prompt-length", "Figure 4a", cells_of, _length_page)
COST = Experiment("cost", "Table 5", cells_of, _cost_page)
