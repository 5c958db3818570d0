"""PCO beside itself with one thing changed: `ablation` (Table 3), `critic` (Table 4), `init`
(Tables 11 and 12), `sweep-k`, `sweep-s` (Figure 5) and `sensitivity` (Figure 6).

The paper's numbers have columns of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from promptcodebook.experiments.experiment import (
    LEARNED,
    Changes,
    Experiment,
    Measured,
    Order,
    Runs,
    about,
    counts,
    difference,
    over_variants,
    rewards,
    scale_of,
    score,
    tokens,
)
from promptcodebook.experiments.lab import Result
from promptcodebook.experiments.page import Block, Curves, Page, Point, Table, shown
from promptcodebook.experiments.published import PublishedTable, published
from promptcodebook.lm.spec import parse_spec
from promptcodebook.method.state import entropy, utilisation


@dataclass(frozen=True, slots=True)
class Row:
    """One line: its title, the runs it is taken from, which row of their verdicts, and what the
    paper calls it ('' = it has no such row)."""

    title: str
    runs: Sequence[Result]
    row: str = LEARNED
    paper: str = ""


def compared(
    name: str, rows: Sequence[Row], paper: str = "", columns: Mapping[str, str] | None = None
) -> Table:
    """Reward of each row and its difference to the first, routing entropy and utilisation over the
    test examples, tokens of a query and of training and choosing. A difference counts only the
    seeds that both rows have. `columns` of the table `paper` follow, each with its metric."""
    known = [row for row in rows if rewards(row.runs, row.row)]
    theirs = columns or {}
    head = ["setting", "reward (95 %)", f"minus {known[0].title}" if known else "difference"]
    head += ["entropy (bits)", "used", "tokens a query", "tokens in training and choosing", "runs"]
    head += [f"paper: {column}" for column in theirs]
    lines: list[list[str]] = []
    for row in known:
        mine, learned = rewards(row.runs, row.row), row.row == LEARNED
        routed = [counts(run) for run in row.runs if run["routes"] and learned]
        training = fmean(run["training"]["tokens"] for run in row.runs)
        lines.append(
            [
                row.title,
                shown(score(mine)),
                "" if row is known[0] else _over(row, known[0]),
                f"{fmean(map(entropy, routed)):.2f}" if routed else "",
                f"{fmean(100 * utilisation(c) for c in routed):.0f} %" if routed else "",
                f"{fmean(tokens(run, row.row) for run in row.runs if row.row in run['rows']):.0f}",
                f"{training:.0f}" if learned else "0",
                str(len(mine)),
                *(_printed(paper, row.paper, column, theirs[column]) for column in theirs),
            ]
        )
    return Table(name, head, lines)


def _printed(table: str, row: str, column: str, metric: str) -> str:
    value = published(table).cell(row, column, metric)
    if value is None:
        return ""
    return f"{value.printed} ± {value.error:g}" if value.error is not None else value.printed


def _over(row: Row, first: Row) -> str:
    pairs = [
        (a["rows"][row.row]["rewards"], b["rows"][first.row]["rewards"])
        for a, b in zip(row.runs, first.runs, strict=False)
        if row.row in a["rows"] and first.row in b["rows"]
    ]
    if not pairs:
        return ""
    return shown(difference([a for a, _ in pairs], [b for _, b in pairs]), signed=True)


IFBENCH, HOTPOTQA = "ifbench", "hotpotqa"
"""The benchmarks of the paper's tables and figures."""
VARIANTS: Changes = {
    "pco": {},
    "static-encoder": {"encoder": {"mode": "static"}},
    "no-encoder": {"encoder": {"mode": "none"}},
    "no-text-updates": {"update": {"text_updates": False}},
    "no-exploration": {"explore": {"policy": "none"}},
    "uniform": {"explore": {"policy": "uniform"}},
    "learned-router": {"router": {"kind": "outcomes"}, "compose": "verbatim"},
    "verbatim": {"compose": "verbatim"},
    "accept-improve": {"update": {"accept": "improve"}},
    "maintained": {"update": {"maintain_every": 5}},
}
"""The ablation's settings by variant; the paper's come first."""
_ABLATED: Mapping[str, tuple[str, str]] = {
    "pco": ("PCO (full)", "PCO (Full)"),
    "static-encoder": ("encoder static (θ stays as it began)", "w/o Encoder"),
    "no-encoder": ("no encoder (explored routes only)", ""),
    "no-text-updates": ("no textual gradients", "w/o TextGrad"),
    "no-exploration": ("no ε-greedy exploration", "w/o ε-greedy"),
    "uniform": ("uniform exploration", "Uniform Sampling"),
    "learned-router": ("ours: router learned from outcomes, verbatim", ""),
    "verbatim": ("ours: instincts verbatim, no generator", ""),
    "accept-improve": ("ours: rewrites kept only if the batch does not lose", ""),
    "maintained": ("ours: codebook tidied every 5 steps", ""),
}
"""Our title of each variant, and the paper's."""


def _titled(runs: Runs, titles: Mapping[str, tuple[str, str]]) -> list[Row]:
    return [Row(titles[name][0], made, paper=titles[name][1]) for name, made in runs.items()]


def _ablation(measured: Measured, runs: Runs) -> Page:
    rows = [*_titled(runs, _ABLATED), Row("present prompt", runs["pco"], "present", "Baseline")]
    paper = ["Acc", "CSR", "Ent.", "Δ"]
    metrics = ["loose_share", "csr", "routing_entropy", "loose_share_gain"]
    columns = dict(zip(paper, metrics, strict=True))
    return Page(
        "Ablation",
        [
            *about(measured, IFBENCH, "Components left out one at a time, after"),
            compared("ablation", rows, "Table 3", columns),
            "The paper does not say what stands in the encoder's place without it: here θ stays as "
            "it began, and beside it no encoder is asked at all and routes come from exploration. "
            "The paper's Δ is over zero-shot; ours is over the full method, with its interval.",
        ],
    )


_CRITICS: Mapping[str, tuple[str, str]] = {
    "pco": ("same model, rubric trained", "Same-model (Trainable)"),
    "fixed-critic": ("same model, rubric fixed", "Same-model (Fixed)"),
    "independent-critic": ("another model", "Independent (Qwen3-8B)"),
    "weak-critic": ("a weak model", "Weak Critic (LLaMA-3.2-3B)"),
}


def _other_critics(order: Order, spec: str) -> dict[str, str]:
    """The models of the two critics that need one of their own, where one is known."""
    simulated = parse_spec(spec).kind == "simulated"
    named = {
        "independent-critic": order.independent or ("simulated?noise_seed=2" if simulated else ""),
        "weak-critic": order.weak or ("simulated?capacity=0.2" if simulated else ""),
    }
    return {name: model for name, model in named.items() if model}


def _critics(order: Order, spec: str) -> Changes:
    others = _other_critics(order, spec)
    return {
        "pco": {},
        "fixed-critic": {"critic": {"trainable": False}},
        **{name: {"roles": {"critic": {"model": model}}} for name, model in others.items()},
    }


def _critic(measured: Measured, runs: Runs) -> Page:
    others = _other_critics(measured.order, measured.lab.spec)
    lines = [f"{_CRITICS[name][0]}: `{model}`." for name, model in others.items()]
    absent = [_CRITICS[name][0] for name in _CRITICS if name not in runs]
    if absent:
        lines.append(
            f"Not measured, for want of a model: {' and '.join(absent)} (`--independent SPEC`, "
            "`--weak SPEC`)."
        )
    return Page(
        "Critics",
        [
            *about(measured, IFBENCH, "Who criticises, all else as in the full method, after"),
            compared("critic", _titled(runs, _CRITICS), "Table 4", {"IFBench": "loose_share"}),
            " ".join(lines),
        ],
    )


_INITS: Mapping[str, tuple[str, str]] = {
    "pco": ("expert: the task's own", "Expert-Seeded"),
    "random-init": ("random: a model's generic ones", "Random"),
}
_SHOWN = 8
"""First instincts that a table shows of each."""


def _init(measured: Measured, runs: Runs) -> Page:
    columns = {"Test Acc": "loose_share", "CSR": "csr"}
    blocks: list[Block] = [
        *about(measured, IFBENCH, "Two ways to begin, after"),
        compared("initialisation", _titled(runs, _INITS), "Table 11", columns),
    ]
    if all(runs.values()):
        # The instincts of seed 0 before the first update, side by side.
        firsts = [made[0]["first"][:_SHOWN] for made in runs.values()]
        lines = [[str(k), *texts] for k, texts in enumerate(zip(*firsts, strict=False))]
        head = ["index", *(_INITS[name][0] for name in runs)]
        blocks += ["## At the start, seed 0", Table("seeds", head, lines)]
    return Page("First instincts", blocks)


@dataclass(frozen=True, slots=True)
class _Sweep:
    """One setting over its values: `change` makes the settings of a value; the paper has it as
    `row`, or its rows are the values themselves."""

    key: str
    title: str
    values: Sequence[float]
    change: Callable[[float], Mapping[str, Any]]
    row: str = ""

    def names(self) -> dict[str, float]:
        return {f"{self.key}-{value:g}": value for value in self.values}


def _k(order: Order) -> list[_Sweep]:
    values = (4, 8, 16) if order.preset == "quick" else (4, 16, 32)
    select = scale_of(order.preset).select

    def change(k: float) -> Mapping[str, Any]:
        return {"size": int(k), "select": min(select, int(k))}

    return [_Sweep("K", "codebook size K", values, change)]


def _s(order: Order) -> list[_Sweep]:
    values = (1, 2, 4) if order.preset == "quick" else (1, 4, 6)
    return [_Sweep("S", "instincts in a prompt, S", values, lambda s: {"select": int(s)})]


def _sensitive(order: Order) -> list[_Sweep]:
    """The paper's values; first, middle and last of them unless the preset is `paper`."""
    table = published("Figure 6")

    def values(row: str) -> list[float]:
        found = [float(value.column) for value in table.values if value.row == row]
        whole = order.preset == "paper" or len(found) <= 3
        if order.preset == "quick":
            return [found[0], found[-1]]
        return found if whole else [found[0], found[len(found) // 2], found[-1]]

    def temperature(role: str) -> _Sweep:
        row, title = f"{role} temperature", f"temperature of the {role}"
        return _Sweep(
            f"{role}-temperature",
            title,
            values(row),
            lambda t: {"roles": {role: {"temperature": t}}},
            row,
        )

    row, title = "EMA step size α", "step size α of the averages"
    alpha = _Sweep("alpha", title, values(row), lambda a: {"explore": {"alpha": a}}, row)
    return [alpha, *(temperature(role) for role in ("critic", "encoder", "generator"))]


def _swept(
    name: str, paper: str, benchmark: str, title: str, sweeps: Callable[[Order], list[_Sweep]]
) -> Experiment:
    def changes(order: Order, spec: str) -> Changes:
        return {n: s.change(value) for s in sweeps(order) for n, value in s.names().items()}

    def page(measured: Measured, runs: Runs) -> Page:
        what = "One setting after another, all else as in the full method, after"
        blocks = about(measured, benchmark, what)
        for sweep in sweeps(measured.order):
            made = {value: runs[n] for n, value in sweep.names().items() if rewards(runs[n])}
            blocks += _sweep_blocks(sweep, made, published(paper)) if made else []
        return Page(title, blocks)

    return over_variants(name, paper, benchmark, changes, page)


def _sweep_blocks(
    sweep: _Sweep, runs: Mapping[float, Sequence[Result]], paper: PublishedTable
) -> list[Block]:
    """A table and a figure of one sweep."""
    rows = [
        Row(f"{sweep.key} = {value:g}", made, paper=f"{sweep.key}={value:g}")
        for value, made in runs.items()
    ]
    columns = {} if sweep.row else {"Acc": "loose_share", "CSR": "csr"}
    blocks: list[Block] = [f"## {sweep.title}", compared(sweep.key, rows, paper.name, columns)]
    if sweep.row:
        points = [f"{v.column}: {v.printed}" for v in paper.values if v.row == sweep.row]
        blocks.append(f"The paper, in exact match of HotpotQA (%): {', '.join(points)}.")
    ours = {value: score(rewards(made)) for value, made in runs.items()}
    mixed = {
        value: fmean(entropy(counts(run)) for run in made if run["routes"])
        for value, made in runs.items()
        if any(run["routes"] for run in made)
    }
    figure = Curves(
        name=f"{sweep.key}-figure",
        title=f"Reward and routing entropy by {sweep.title}",
        x=sweep.title,
        y="reward",
        lines={"reward": [Point(x, i.mean, i.low, i.high) for x, i in ours.items()]},
        right={"entropy": [Point(x, y) for x, y in mixed.items()]},
        y_right="entropy (bits)",
        log_x=sweep.key == "K",
    )
    return [*blocks, figure]


ABLATION = over_variants("ablation", "Table 3", IFBENCH, lambda order, spec: VARIANTS, _ablation)
CRITIC = over_variants("critic", "Table 4", IFBENCH, _critics, _critic)
INIT = over_variants(
    "init",
    "Tables 11 and 12",
    IFBENCH,
    lambda order, spec: {"pco": {}, "random-init": {"init": {"kind": "random"}}},
    _init,
)
SWEEP_K = _swept("sweep-k", "Figure 5a", IFBENCH, "Codebook size K", _k)
SWEEP_S = _swept("sweep-s", "Figure 5b", IFBENCH, "Instincts in a prompt, S", _s)
SENSITIVITY = _swept("sensitivity", "Figure 6", HOTPOTQA, "Sensitivity", _sensitive)
