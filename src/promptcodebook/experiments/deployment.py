"""`prompt-length` (Figure 4a) and `cost` (Table 5): what the methods of Table 1 take to deploy.

Both are views of its runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from promptcodebook.experiments.experiment import Experiment, Measured, score
from promptcodebook.experiments.grid import about, judged_by_words, missing, rewards, tokens
from promptcodebook.experiments.lab import Result
from promptcodebook.experiments.main import (
    FIXED,
    Line,
    cells_of,
    kinds_of,
    left_out,
    lines_of,
    tasks_of,
)
from promptcodebook.experiments.page import Bars, Page, Table, shown
from promptcodebook.experiments.published import published


def _length_page(measured: Measured) -> Page:
    tasks = tasks_of(measured.order, measured.lab.spec)
    blocks = about(measured, tasks[0], "Lengths of the prompts that are deployed, after")
    kind = kinds_of(measured.order)[-1]
    lines = lines_of(measured, kind)
    there = [t for t in tasks if any(rewards(line.runs[t], line.row) for line in lines)]
    if lines:
        blocks.append(_bars(lines, there))
    for task in there:
        rows = [
            [line.title, *_lengths(line.runs[task], line.row)]
            for line in lines
            if rewards(line.runs[task], line.row)
        ]
        head = ["method", "longest prompt", "sum over calls", "tokens a query", "calls a query"]
        blocks.append(Table(f"lengths-{task}", head, rows, f"Tokens on {task}"))
    blocks += [*left_out(measured, kind), _paper_lengths()]
    return Page("Prompt length", [*blocks, *missing(measured)])


def _lengths(runs: Sequence[Result], row: str) -> list[str]:
    """Means over the runs: of the executor's longest system prompt over stages and examples
    (decision 17), of the longest sum over a rollout's calls, and of what a query takes in all."""
    own = [run["rows"][row] for run in runs if row in run["rows"]]
    return [
        f"{fmean(each['longest_prompt'] for each in own):.0f}",
        f"{fmean(each['total_prompt'] for each in own):.0f}",
        f"{fmean(tokens(run, row) for run in runs if row in run['rows']):.0f}",
        f"{fmean(each['calls'] for each in own):.1f}",
    ]


def _bars(lines: Sequence[Line], tasks: Sequence[str]) -> Bars:
    series = {
        line.title: [
            float(_lengths(line.runs[task], line.row)[0]) if rewards(line.runs[task], line.row)
            else None
            for task in tasks
        ]
        for line in lines
    }  # fmt: skip
    return Bars("longest", "Longest prompt of the executor", "tokens", list(tasks), series)


def _paper_lengths() -> Table:
    table = published("Figure 4a")
    columns = list(dict.fromkeys(v.column for v in table.values if v.metric == "longest_prompt"))
    names = dict.fromkeys(v.row for v in table.values if v.metric == "longest_prompt")
    rows: list[list[str]] = []
    for row in names:
        found = [table.cell(row, column, "longest_prompt") for column in columns]
        rows.append([row, *(value.printed if value else "" for value in found)])
    return Table("paper-lengths", ["method", *columns], rows, "The paper, tokens (Figure 4a)")


def _cost_page(measured: Measured) -> Page:
    tasks = tasks_of(measured.order, measured.lab.spec)
    blocks = about(measured, tasks[0], "What optimizing and a query cost, after")
    blocks += judged_by_words(tasks[1:], measured.lab.spec)
    kind = kinds_of(measured.order)[-1]
    for task in tasks:
        rows = [
            [line.title, *_costs(line.runs[task], line.row)]
            for line in lines_of(measured, kind)
            if rewards(line.runs[task], line.row)
        ]
        head = ["method", "tokens in training and choosing", "tokens for the test split"]
        head += ["seconds a query"]
        if rows:
            blocks.append(Table(f"cost-{task}", [*head, "calls a query", "reward (95 %)"], rows))
    table = published("Table 5")
    said = [f"{v.row} {v.column}: {v.printed}" for v in table.values]
    return Page(
        "Cost",
        [
            *blocks,
            *left_out(measured, kind),
            "Seconds are those of a query's calls one after the other, waiting among others at "
            "once included. PCO with an encoder and a generator makes three calls a query, with a "
            "learned router and verbatim instincts one.",
            f"The paper, HotpotQA, one A100: {'; '.join(said)}.",
            *missing(measured),
        ],
    )


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


PROMPT_LENGTH = Experiment("prompt-length", "Figure 4a", "smollm2", 5, cells_of, _length_page)
COST = Experiment("cost", "Table 5", "smollm2", 5, cells_of, _cost_page)
