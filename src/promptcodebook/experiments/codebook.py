"""What becomes of a codebook: `codebook-usage` (Figure 4b), `specialisation` (Table 2), `routing`
(Figure 7, Table 13), `evolution` (Tables 14 and 15) and `prompts` (Figure 3 and the appendix)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import StatisticsError, correlation
from typing import Any

from promptcodebook.experiments.experiment import (
    Changes,
    Measured,
    Order,
    Runs,
    about,
    counts,
    over_variants,
)
from promptcodebook.experiments.lab import Result
from promptcodebook.experiments.page import Bars, Block, Heat, Page, Table
from promptcodebook.experiments.published import published
from promptcodebook.experiments.variants import VARIANTS
from promptcodebook.method.state import average_success, entropy, selected_since, utilisation

PAPER = "ifbench"
_SHORT = 70
"""Letters of an instinct that a table shows."""


def _usage_page(measured: Measured, runs: Runs) -> Page:
    blocks = about(
        measured, PAPER, "How often each instinct is chosen for the test examples, after"
    )
    first = {name: made[0] for name, made in runs.items() if made and made[0]["routes"]}
    titles = {"pco": "ε-greedy", "no-exploration": "no ε-greedy"}
    if first:
        longest = max(len(counts(run)) for run in first.values())
        bars = {titles[name]: list(map(float, counts(run))) for name, run in first.items()}
        blocks.append(
            Bars(
                "usage",
                "Usage by index, seed 0",
                "times chosen",
                [str(k) for k in range(longest)],
                {name: [*used, *[None] * (longest - len(used))] for name, used in bars.items()},
                x="instinct",
            )
        )
    rows = [
        [titles[name], str(seed), *_spread(counts(run)), *_paper_usage(titles[name], seed)]
        for name, made in runs.items()
        for seed, run in enumerate(made)
        if run["routes"]
    ]
    head = [
        "training",
        "seed",
        "entropy (bits)",
        "used",
        "most / mean",
        "paper: entropy by its bars",
    ]
    return Page("Codebook usage", [*blocks, Table("usage-by-seed", head, rows)])


def _spread(chosen: Sequence[int]) -> list[str]:
    mean = sum(chosen) / len(chosen)
    most = f"{max(chosen) / mean:.1f}" if mean else ""
    return [f"{entropy(chosen):.2f}", f"{100 * utilisation(chosen):.0f} %", most]


def _paper_usage(row: str, seed: int) -> list[str]:
    """The entropy of the paper's own bars, once."""
    if seed:
        return [""]
    bars = [
        v.value for v in published("Figure 4b").values if v.row == row and v.metric == "selections"
    ]
    return [f"{entropy([round(bar) for bar in bars]):.2f}"]


def _specialised(measured: Measured, runs: Runs) -> Page:
    """Usage and success of each instinct, the rarest first, as the paper orders them."""
    blocks = about(measured, PAPER, "Usage on the test examples against success in training, after")
    for seed, run in enumerate(runs["pco"][:1]):
        order = sorted(zip(counts(run), run["success"], run["instincts"], strict=True))
        rows = [[_short(text), str(n), f"{rate:.3f}"] for n, rate, text in order if n]
        blocks.append(Table(f"seed-{seed}", ["instinct", "usage", "success"], rows))
    correlations = [[str(seed), _rank(run)] for seed, run in enumerate(runs["pco"])]
    printed = published("Table 2").values
    theirs = {v.row: v.value for v in printed if v.metric == "selections"}
    rates = {v.row: v.value for v in printed if v.metric == "r_bar"}
    paper = _spearman([theirs[row] for row in theirs], [rates[row] for row in theirs])
    blocks += [
        Table("rank-correlation", ["seed", "rank correlation of usage and success"], correlations),
        f"Of the six instincts that the paper prints it is {paper:+.2f}; six of sixteen, chosen by "
        "its authors, tell little. That often chosen instincts do worse is also what one sees "
        "where the hard inputs are the common ones.",
    ]
    return Page("Specialisation", blocks)


def _rank(run: Result) -> str:
    used = counts(run)
    chosen = [k for k, n in enumerate(used) if n]
    if len(chosen) < 3:
        return ""
    return f"{_spearman([used[k] for k in chosen], [run['success'][k] for k in chosen]):+.2f}"


def _spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation; equal values share their mean rank; 0 where one of the two is constant."""
    try:
        return correlation(_ranks(a), _ranks(b))
    except StatisticsError:
        return 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    ]


def _wide(order: Order, spec: str) -> Changes:
    """K = 32, as in the appendix."""
    size = 16 if order.preset == "quick" else 32
    return {
        f"adaptive-{size}": {"size": size},
        f"static-{size}": {"size": size, "encoder": {"mode": "static"}},
    }


def _routing(measured: Measured, runs: Runs) -> Page:
    blocks = about(measured, PAPER, "Routing over training with a large codebook, after")
    rows: list[list[str]] = []
    for name, made in runs.items():
        for seed, run in enumerate(made):
            used = counts(run)
            if seed == 0 and run["steps"]:
                blocks.append(_heat(name, run))
            if run["routes"]:
                success = average_success(used, run["success"])
                rows.append([name, str(seed), *_spread(used)[:2], _unique(used), f"{success:.3f}"])
    head = ["encoder", "seed", "entropy (bits)", "used", "unique", "mean success"]
    printed = [v for v in published("Table 13").values if v.row == "Average"]
    theirs = ", ".join(f"{v.column} {v.printed}" for v in printed)
    return Page(
        "Routing",
        [
            *blocks,
            Table("diversity", head, rows),
            f"The paper's averages over eight pairs of benchmark and model: {theirs}.",
        ],
    )


def _unique(used: Sequence[int]) -> str:
    return f"{sum(n > 0 for n in used)}/{len(used)}"


def _heat(name: str, run: Result) -> Heat:
    """Shares of the selections in each epoch, by instinct."""
    last = {step["epoch"]: step["selected"] for step in run["steps"]}
    columns: list[list[float]] = []
    before = [0] * len(run["first"])
    for epoch in sorted(last):
        now = selected_since(before, last[epoch])
        columns.append([n / max(1, sum(now)) for n in now])
        before = last[epoch]
    values = [list(row) for row in zip(*columns, strict=True)]
    return Heat(
        f"routing-{name}", f"Selection by epoch: {name}, seed 0", "epoch", "instinct", values
    )


def _evolution(measured: Measured, runs: Runs) -> Page:
    blocks = about(measured, PAPER, "How instincts changed in training, after")
    for seed, run in enumerate(runs["pco"]):
        changed = [r for r in run["rewrites"] if r["variable"].isdigit()]
        kinds = f"{len(changed)} rewrites of instincts kept, {len(run['rewrites']) - len(changed)} "
        blocks.append(f"Seed {seed}: {kinds}of the directives θ, φ and ψ.")
        if seed == 0:
            blocks.append(Table("instincts", ["index", "step", "text"], _histories(run)))
    return Page("How the codebook changed", blocks)


def _histories(run: Result) -> list[list[str]]:
    """Of every instinct that changed: the text it began with, and each it got."""
    rows: list[list[str]] = []
    for k, text in enumerate(run["first"]):
        later = [r for r in run["rewrites"] if r["variable"] == str(k)]
        if later:
            rows.append([f"#{k}", "first", text])
            rows += [[f"#{k}", str(r["step"] + 1), r["text"]] for r in later]
    return rows


def _prompts(measured: Measured, runs: Runs) -> Page:
    blocks = about(measured, PAPER, "Deployed prompts with their routes, after")
    for run in runs["pco"][:1]:
        for shown in run["prompts"]:
            blocks += _deployed(run, shown)
        if run["rows"] and not run["prompts"]:
            blocks.append("The task's data are private: no prompt is shown.")
    return Page("Deployed prompts", blocks)


def _deployed(run: Result, shown: Mapping[str, Any]) -> list[Block]:
    """One prompt with the audit lines of Figure 3: which instincts, why, and what came of it."""
    chosen = [f"- #{k}: {run['instincts'][k]}" for k in shown["route"]]
    why = [f"- why: {shown['why']}"] if shown["why"] else []
    reward = "failed" if shown["reward"] is None else f"{shown['reward']:.2f}"
    return [
        f"## {shown['example']}",
        "\n".join([*chosen, *why, f"- reward: {reward}"]),
        f"````\n{shown['prompt']}\n````",
    ]


def _short(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


_FULL = {"pco": VARIANTS["pco"]}
_EXPLORING = {name: VARIANTS[name] for name in ("pco", "no-exploration")}
USAGE = over_variants(
    "codebook-usage", "Figure 4b", PAPER, lambda order, spec: _EXPLORING, _usage_page
)
SPECIALISATION = over_variants(
    "specialisation", "Table 2", PAPER, lambda order, spec: _FULL, _specialised
)
ROUTING = over_variants("routing", "Figure 7 and Table 13", PAPER, _wide, _routing)
EVOLUTION = over_variants(
    "evolution", "Tables 14 and 15", PAPER, lambda order, spec: _FULL, _evolution
)
PROMPTS = over_variants("prompts", "Figure 3", PAPER, lambda order, spec: _FULL, _prompts)
