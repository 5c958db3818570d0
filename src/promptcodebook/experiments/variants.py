"""PCO beside itself with one thing changed: `ablation` (Table 3), `critic` (Table 4), `init`
(Tables 11 and 12), `sweep-k`, `sweep-s` (Figure 5) and `sensitivity` (Figure 6).

And what becomes of a codebook: `codebook-usage` (Figure 4b), `specialisation` (Table 2), `routing`
(Figure 7, Table 13), `evolution` (Tables 14 and 15) and `prompts` (Figure 3 and the appendix). The
paper's numbers have columns of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation, fmean
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
    said,
    scale_of,
    score,
    tokens,
)
from promptcodebook.experiments.lab import Result
from promptcodebook.experiments.page import Bars, Block, Curves, Heat, Page, Point, Table, shown
from promptcodebook.experiments.published import PublishedTable, published
from promptcodebook.lm.spec import parse_spec
from promptcodebook.method.state import average_success, entropy, selected_since, utilisation


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
    columns = {"Acc": "loose_share", "CSR": "csr"}
    columns |= {"Ent.": "routing_entropy", "Δ": "loose_share_gain"}
    blocks = about(measured, IFBENCH, "Components left out one at a time, after")
    blocks += [compared("ablation", rows, "Table 3", columns), said("variants", "ablation")]
    return Page("Ablation", blocks)


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
    absent = [title for name, (title, _) in _CRITICS.items() if name not in runs]
    if absent:
        lines.append(said("variants", "no_critic", critics=" and ".join(absent)))
    blocks = about(measured, IFBENCH, "Who criticises, all else as in the full method, after")
    rows = _titled(runs, _CRITICS)
    table = compared("critic", rows, "Table 4", {"IFBench": "loose_share"})
    return Page("Critics", [*blocks, table, " ".join(lines)])


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


_Change = Callable[[float], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Sweep:
    """One setting over its values: `change` makes the settings of a value; the paper has it as
    `row`, or its rows are the values themselves."""

    key: str
    title: str
    values: Sequence[float]
    change: _Change
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

    def sweep(key: str, title: str, row: str, change: _Change) -> _Sweep:
        found = [float(v.column) for v in published("Figure 6").values if v.row == row]
        if order.preset == "quick":
            found = [found[0], found[-1]]
        elif order.preset != "paper" and len(found) > 3:
            found = [found[0], found[len(found) // 2], found[-1]]
        return _Sweep(key, title, found, change, row)

    def temperature(role: str) -> _Sweep:
        title, row = f"temperature of the {role}", f"{role} temperature"
        key = f"{role}-temperature"
        return sweep(key, title, row, lambda t: {"roles": {role: {"temperature": t}}})

    title, row = "step size α of the averages", "EMA step size α"
    alpha = sweep("alpha", title, row, lambda a: {"explore": {"alpha": a}})
    return [alpha, *map(temperature, ("critic", "encoder", "generator"))]


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


_SHORT = 70
"""Letters of an instinct that a table shows."""


def _usage_page(measured: Measured, runs: Runs) -> Page:
    what = "How often each instinct is chosen for the test examples, after"
    blocks = about(measured, IFBENCH, what)
    titles = {"pco": "ε-greedy", "no-exploration": "no ε-greedy"}
    first = {
        titles[name]: counts(made[0]) for name, made in runs.items() if made and made[0]["routes"]
    }
    if first:
        longest = max(map(len, first.values()))
        labels = [str(k) for k in range(longest)]
        padded = {n: [*map(float, c), *[None] * (longest - len(c))] for n, c in first.items()}
        title = "Usage by index, seed 0"
        blocks.append(Bars("usage", title, "times chosen", labels, padded, x="instinct"))
    rows = [
        [titles[name], str(seed), *_spread(counts(run)), *_paper_usage(titles[name], seed)]
        for name, made in runs.items()
        for seed, run in enumerate(made)
        if run["routes"]
    ]
    head = ["training", "seed", "entropy (bits)", "used", "most / mean"]
    table = Table("usage-by-seed", [*head, "paper: entropy by its bars"], rows)
    return Page("Codebook usage", [*blocks, table])


def _spread(chosen: Sequence[int]) -> list[str]:
    mean = sum(chosen) / len(chosen)
    most = f"{max(chosen) / mean:.1f}" if mean else ""
    return [f"{entropy(chosen):.2f}", f"{100 * utilisation(chosen):.0f} %", most]


def _paper_usage(row: str, seed: int) -> list[str]:
    """The entropy of the paper's own bars, once."""
    found = [v for v in published("Figure 4b").values if v.metric == "selections"]
    bars = [round(v.value) for v in found if v.row == row]
    return [""] if seed else [f"{entropy(bars):.2f}"]


def _specialised(measured: Measured, runs: Runs) -> Page:
    """Usage and success of each instinct, the rarest first, as the paper orders them."""
    blocks = about(
        measured, IFBENCH, "Usage on the test examples against success in training, after"
    )
    for seed, run in enumerate(runs["pco"][:1]):
        order = sorted(zip(counts(run), run["success"], run["instincts"], strict=True))
        rows = [
            [text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…", str(n), f"{rate:.3f}"]
            for n, rate, text in order
            if n
        ]
        blocks.append(Table(f"seed-{seed}", ["instinct", "usage", "success"], rows))
    correlations = [[str(seed), _rank(run)] for seed, run in enumerate(runs["pco"])]
    printed = published("Table 2").values
    theirs = {v.row: v.value for v in printed if v.metric == "selections"}
    rates = {v.row: v.value for v in printed if v.metric == "r_bar"}
    paper = _spearman([theirs[row] for row in theirs], [rates[row] for row in theirs])
    head = ["seed", "rank correlation of usage and success"]
    table = Table("rank-correlation", head, correlations)
    return Page("Specialisation", [*blocks, table, said("variants", "rank", rank=paper)])


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
    blocks = about(measured, IFBENCH, "Routing over training with a large codebook, after")
    rows: list[list[str]] = []
    for name, made in runs.items():
        for seed, run in enumerate(made):
            used = counts(run)
            if seed == 0 and run["steps"]:
                blocks.append(_heat(name, run))
            if run["routes"]:
                success = f"{average_success(used, run['success']):.3f}"
                unique = f"{sum(n > 0 for n in used)}/{len(used)}"
                rows.append([name, str(seed), *_spread(used)[:2], unique, success])
    head = ["encoder", "seed", "entropy (bits)", "used", "unique", "mean success"]
    printed = [v for v in published("Table 13").values if v.row == "Average"]
    theirs = ", ".join(f"{v.column} {v.printed}" for v in printed)
    average = said("variants", "diversity", averages=theirs)
    return Page("Routing", [*blocks, Table("diversity", head, rows), average])


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
    title = f"Selection by epoch: {name}, seed 0"
    return Heat(f"routing-{name}", title, "epoch", "instinct", values)


def _evolution(measured: Measured, runs: Runs) -> Page:
    blocks = about(measured, IFBENCH, "How instincts changed in training, after")
    for seed, run in enumerate(runs["pco"]):
        changed = [r for r in run["rewrites"] if r["variable"].isdigit()]
        kinds = f"{len(changed)} rewrites of instincts kept, {len(run['rewrites']) - len(changed)} "
        blocks.append(f"Seed {seed}: {kinds}of the directives θ, φ and ψ.")
        if seed == 0:
            rows: list[list[str]] = []
            for k, text in enumerate(run["first"]):
                later = [r for r in changed if r["variable"] == str(k)]
                rows += [[f"#{k}", "first", text]] if later else []
                rows += [[f"#{k}", str(r["step"] + 1), r["text"]] for r in later]
            blocks.append(Table("instincts", ["index", "step", "text"], rows))
    return Page("How the codebook changed", blocks)


def _prompts(measured: Measured, runs: Runs) -> Page:
    """Each prompt with the audit lines of Figure 3: which instincts, why, and what came of it."""
    blocks = about(measured, IFBENCH, "Deployed prompts with their routes, after")
    for run in runs["pco"][:1]:
        for each in run["prompts"]:
            lines = [f"- #{k}: {run['instincts'][k]}" for k in each["route"]]
            lines += [f"- why: {each['why']}"] if each["why"] else []
            reward = "failed" if each["reward"] is None else f"{each['reward']:.2f}"
            lines.append(f"- reward: {reward}")
            blocks += [f"## {each['example']}", "\n".join(lines), f"````\n{each['prompt']}\n````"]
        if run["rows"] and not run["prompts"]:
            blocks.append("The task's data are private: no prompt is shown.")
    return Page("Deployed prompts", blocks)


def _full(order: Order, spec: str) -> Changes:
    return {"pco": {}}


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
USAGE = over_variants(
    "codebook-usage",
    "Figure 4b",
    IFBENCH,
    lambda order, spec: {name: VARIANTS[name] for name in ("pco", "no-exploration")},
    _usage_page,
)
SPECIALISATION = over_variants("specialisation", "Table 2", IFBENCH, _full, _specialised)
ROUTING = over_variants("routing", "Figure 7 and Table 13", IFBENCH, _wide, _routing)
EVOLUTION = over_variants("evolution", "Tables 14 and 15", IFBENCH, _full, _evolution)
PROMPTS = over_variants("prompts", "Figure 3", IFBENCH, _full, _prompts)
