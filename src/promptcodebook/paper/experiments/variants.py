"""PCO beside itself with one thing changed (variants.toml): Tables 3, 4, 11 and 12, Figures 5 and
6. And what becomes of a codebook: Figures 3, 4b and 7, Tables 2, 13, 14 and 15."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import StatisticsError, correlation, fmean
from typing import Any

from promptcodebook.base.text import fenced, markdown
from promptcodebook.lm.spec import parse_spec
from promptcodebook.method.state import average_success, entropy, selected_since, utilisation
from promptcodebook.paper.experiments import experiment as shared
from promptcodebook.paper.experiments import page as pages
from promptcodebook.paper.experiments.lab import Cell, CellResult, Runs

Changes = Mapping[str, Mapping[str, Any]]  # settings that differ from full PCO, by variant
VariantRuns = Mapping[str, Runs]  # the finished runs of each variant, by seed


def _over(
    name: str,
    paper: str,
    blocks: Callable[[shared.Results, VariantRuns], list[pages.Block]],
    changes: Callable[[shared.ExperimentRequest, str], Changes] | None = None,
    benchmark: str = "ifbench",
) -> shared.Experiment:
    """An experiment whose cells are variants of full PCO, by default those listed."""

    def changed(order: shared.ExperimentRequest, spec: str) -> Changes:
        if changes is not None:
            return changes(order, spec)
        listed = pages.read_table("variants")[name].items()
        return {key: variant.get("settings", {}) for key, variant in listed}

    def cells(order: shared.ExperimentRequest, spec: str) -> list[Cell]:
        return shared.variants(order, shared.base(order, spec, benchmark), changed(order, spec))

    def page(measured: shared.Results) -> pages.Page:
        names = changed(measured.order, measured.lab.spec)
        runs = {name: shared.runs_of(measured.results, name) for name in names}
        return shared.framed(measured, benchmark, [*blocks(measured, runs), *shared.stopped(runs)])

    return shared.Experiment(name, paper, cells, page, lm_quick="simulated")


@dataclass(frozen=True, slots=True)
class _VariantRow:
    """One line: title, runs, the row of their verdicts, and what the paper calls it."""

    title: str
    runs: Runs
    row: str = shared.LEARNED
    paper: str = ""


_ACC = {"Acc": "loose_share", "CSR": "csr"}  # two of the paper's columns, each with its metric


def _titled(experiment: str, runs: VariantRuns) -> list[_VariantRow]:
    listed = pages.read_table("variants")[experiment]
    pairs = ((listed[name], made) for name, made in runs.items())
    return [_VariantRow(each["title"], made, paper=each.get("paper", "")) for each, made in pairs]


def _compared(
    name: str,
    rows: Sequence[_VariantRow],
    paper: str = "",
    columns: Mapping[str, str] | None = None,
) -> pages.PageTable:
    """Each row's reward and its difference to the first (by the seeds that both have), routing,
    tokens, and `columns` of the table `paper`, each with its metric."""
    known = [row for row in rows if shared.rewards(row.runs, row.row)]
    theirs = columns or {}
    head = ["setting", "reward (95 %)", f"minus {known[0].title}" if known else "difference"]
    head += ["entropy (bits)", "used", "tokens per query"]
    head += ["tokens in training and choosing", "runs"]
    head += [f"paper: {column}" for column in theirs]

    def over(row: _VariantRow) -> str:
        pairs = [
            (a["rows"][row.row]["rewards"], b["rows"][known[0].row]["rewards"])
            for a, b in zip(row.runs, known[0].runs, strict=False)
            if row.row in a["rows"] and known[0].row in b["rows"]
        ]
        if row is known[0] or not pairs:
            return ""
        mine, first = zip(*pairs, strict=True)
        return pages.shown(shared.difference(mine, first), signed=True)

    def printed(row: _VariantRow, column: str) -> str:
        value = pages.paired(pages.published(paper), row.paper, column, theirs[column])
        if value is None:
            return ""
        return f"{value.printed} ± {value.error:g}" if value.error is not None else value.printed

    lines: list[list[str]] = []
    for row in known:
        mine, learned = shared.rewards(row.runs, row.row), row.row == shared.LEARNED
        routed = [shared.counts(run) for run in row.runs if run["routes"] and learned]
        training = fmean(run["training"]["tokens"] for run in row.runs)
        judged = [run for run in row.runs if row.row in run["rows"]]
        lines.append(
            [
                row.title,
                pages.shown(shared.score(mine)),
                over(row),
                f"{fmean(map(entropy, routed)):.2f}" if routed else "",
                f"{fmean(100 * utilisation(c) for c in routed):.0f} %" if routed else "",
                f"{fmean(shared.tokens(run, row.row) for run in judged):.0f}",
                f"{training:.0f}" if learned else "0",
                str(len(mine)),
                *(printed(row, column) for column in theirs),
            ]
        )
    return pages.PageTable(name, head, lines)


def _ablation(measured: shared.Results, runs: VariantRuns) -> list[pages.Block]:
    present = _VariantRow("present prompt", runs["pco"], "present", "Baseline")
    columns = {**_ACC, "Ent.": "routing_entropy", "Δ": "loose_share_gain"}
    rows = [*_titled("ablation", runs), present]
    return [_compared("ablation", rows, "Table 3", columns), shared.text("variants", "ablation")]


def _other_critics(order: shared.ExperimentRequest, spec: str) -> dict[str, str]:
    listed = pages.read_table("variants")["critic"].items()
    listed = {name: each for name, each in listed if "option" in each}
    models = {name: getattr(order, each["option"]) for name, each in listed.items()}
    if parse_spec(spec).kind == "simulated":
        models = {name: models[name] or each["simulated"] for name, each in listed.items()}
    return {name: model for name, model in models.items() if model}


def _critics(order: shared.ExperimentRequest, spec: str) -> Changes:
    others, listed = _other_critics(order, spec), pages.read_table("variants")["critic"]
    own = {name: listed[name].get("settings", {}) for name in ("pco", "fixed-critic")}
    return own | {name: {"roles": {"critic": {"model": model}}} for name, model in others.items()}


def _critic(measured: shared.Results, runs: VariantRuns) -> list[pages.Block]:
    models = _other_critics(measured.order, measured.lab.spec)
    listed = pages.read_table("variants")["critic"]
    lines = [f"{listed[name]['title']}: `{model}`." for name, model in models.items()]
    if absent := [variant["title"] for name, variant in listed.items() if name not in runs]:
        lines.append(shared.text("variants", "no_critic", critics=" and ".join(absent)))
    rows = _titled("critic", runs)
    return [_compared("critic", rows, "Table 4", {"IFBench": "loose_share"}), " ".join(lines)]


_SHOWN = 8  # first instincts that a table shows of each


def _init(measured: shared.Results, runs: VariantRuns) -> list[pages.Block]:
    columns, rows = {"Test Acc": "loose_share", "CSR": "csr"}, _titled("init", runs)
    blocks: list[pages.Block] = [_compared("initialisation", rows, "Table 11", columns)]
    if all(runs.values()):
        # The instincts of seed 0 before the first update, side by side.
        firsts = [made[0]["first"][:_SHOWN] for made in runs.values()]
        lines = [[str(k), *texts] for k, texts in enumerate(zip(*firsts, strict=False))]
        table = pages.PageTable("seeds", ["index", *(row.title for row in rows)], lines)
        blocks += ["## At the start, seed 0", table]
    return blocks


@dataclass(frozen=True, slots=True)
class _Sweep:
    """One setting over its values, by variant; the paper has it as `row` or by value."""

    key: str
    title: str
    values: Mapping[str, float]
    changes: Changes
    row: str


def _sweeps(name: str, order: shared.ExperimentRequest) -> list[_Sweep]:
    """Of the paper's values the first, middle and last, unless the preset is `paper`."""
    found: list[_Sweep] = []
    for key, each in pages.read_table("variants")["sweeps"][name].items():
        row, quick = each.get("row", ""), order.preset == "quick"
        values = each.get("quick" if quick else "values", ())
        if row:
            values = [float(v.column) for v in pages.published("Figure 6") if v.row == row]
            if quick:
                values = [values[0], values[-1]]
            elif order.preset != "paper" and len(values) > 3:
                values = [values[0], values[len(values) // 2], values[-1]]
        named = {f"{key}-{value:g}": value for value in values}
        changes: dict[str, Any] = dict(named)
        for part in reversed(each["setting"].split(".")):
            changes = {variant: {part: inner} for variant, inner in changes.items()}
        if key == "K":
            most = shared.scale_of(order.preset)["select"]
            changes = {n: {**own, "select": min(most, own["size"])} for n, own in changes.items()}
        found.append(_Sweep(key, each["title"], named, changes, row))
    return found


def _swept(name: str, paper: str, benchmark: str = "ifbench") -> shared.Experiment:
    def changes(order: shared.ExperimentRequest, spec: str) -> Changes:
        return {n: change for sweep in _sweeps(name, order) for n, change in sweep.changes.items()}

    def blocks(measured: shared.Results, runs: VariantRuns) -> list[pages.Block]:
        found: list[pages.Block] = []
        for sweep in _sweeps(name, measured.order):
            made = {value: runs[n] for n, value in sweep.values.items() if shared.rewards(runs[n])}
            found += _sweep_blocks(sweep, made, paper) if made else []
        return found

    return _over(name, paper, blocks, changes, benchmark)


def _sweep_blocks(sweep: _Sweep, runs: Mapping[float, Runs], paper: str) -> list[pages.Block]:
    named = ((f"{sweep.key} = {value:g}", made) for value, made in runs.items())
    rows = [_VariantRow(title, made, paper=title.replace(" ", "")) for title, made in named]
    table = _compared(sweep.key, rows, paper, {} if sweep.row else _ACC)
    blocks: list[pages.Block] = [f"## {sweep.title}", table]
    if sweep.row:
        theirs = (v for v in pages.published(paper) if v.row == sweep.row)
        points = ", ".join(f"{v.column}: {v.printed}" for v in theirs)
        blocks.append(f"The paper's exact match on HotpotQA (%): {points}.")
    ours = {value: shared.score(shared.rewards(made)) for value, made in runs.items()}
    mixed = {
        value: fmean(entropy(shared.counts(run)) for run in made if run["routes"])
        for value, made in runs.items()
        if any(run["routes"] for run in made)
    }
    figure = pages.Curves(
        name=f"{sweep.key}-figure",
        title=f"Reward and routing entropy by {sweep.title}",
        x=sweep.title,
        y="reward",
        lines={"reward": [pages.PlotPoint(x, i.mean, i.low, i.high) for x, i in ours.items()]},
        right={"entropy": [pages.PlotPoint(x, y) for x, y in mixed.items()]},
        y_right="entropy (bits)",
        log_x=sweep.key == "K",
    )
    return [*blocks, figure]


_SHORT = 70  # letters of an instinct that a table shows


def _usage(measured: shared.Results, runs: VariantRuns) -> list[pages.Block]:
    named = {row.title: row.runs for row in _titled("codebook-usage", runs)}
    first = {n: shared.counts(made[0]) for n, made in named.items() if made and made[0]["routes"]}
    blocks: list[pages.Block] = []
    if first:
        longest = max(map(len, first.values()))
        labels = [str(k) for k in range(longest)]
        padded = {n: [*map(float, c), *[None] * (longest - len(c))] for n, c in first.items()}
        title = "Usage by index, seed 0"
        blocks.append(pages.Bars("usage", title, "instinct", "times chosen", labels, padded))
    bars = [v for v in pages.published("Figure 4b") if v.metric == "selections"]
    rows: list[list[str]] = []
    for name, made in named.items():
        theirs = f"{entropy([round(v.value) for v in bars if v.row == name]):.2f}"
        for seed, run in enumerate(made):
            if run["routes"]:
                paper = "" if seed else theirs  # of the paper's own bars, once
                rows.append([name, str(seed), *_spread(shared.counts(run)), paper])
    head = ["training", "seed", "entropy (bits)", "used", "most / mean"]
    head.append("paper: entropy from its bars")
    return [*blocks, pages.PageTable("usage-by-seed", head, rows)]


def _spread(chosen: Sequence[int]) -> list[str]:
    mean = sum(chosen) / len(chosen)
    most = f"{max(chosen) / mean:.1f}" if mean else ""
    return [f"{entropy(chosen):.2f}", f"{100 * utilisation(chosen):.0f} %", most]


def _specialised(measured: shared.Results, runs: VariantRuns) -> list[pages.Block]:
    blocks: list[pages.Block] = []
    correlations: list[list[str]] = []
    for seed, run in enumerate(runs["pco"]):
        order = sorted(zip(shared.counts(run), run["success"], run["instincts"], strict=True))
        used = [(n, rate, text) for n, rate, text in order if n]
        rank = f"{_spearman([row[:2] for row in used]):+.2f}" if len(used) >= 3 else ""
        correlations.append([str(seed), rank])
        if seed == 0:
            short = [t if len(t) <= _SHORT else f"{t[: _SHORT - 1]}…" for *_, t in used]
            rows = [[t, str(n), f"{r:.3f}"] for t, (n, r, _) in zip(short, used, strict=True)]
            blocks.append(pages.PageTable("seed-0", ["instinct", "usage", "success"], rows))

    def theirs(metric: str) -> Mapping[str, pages.Published]:
        return {v.row: v for v in pages.published("Table 2") if v.metric == metric}

    rates = theirs("r_bar")
    paper = _spearman([(v.value, rates[row].value) for row, v in theirs("selections").items()])
    head = ["seed", "rank correlation of usage and success"]
    table = pages.PageTable("rank-correlation", head, correlations)
    return [*blocks, table, shared.text("variants", "rank", rank=paper)]


def _spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """Rank correlation; equal values share their mean rank; 0 where one of the two is constant."""
    ranks = [
        [sum(o < v for o in column) + (sum(o == v for o in column) - 1) / 2 for v in column]
        for column in zip(*pairs, strict=True)
    ]
    try:
        return correlation(*ranks)
    except StatisticsError:
        return 0.0


def _wide(order: shared.ExperimentRequest, spec: str) -> Changes:
    size = 16 if order.preset == "quick" else 32
    static = {"size": size, "encoder": {"mode": "static"}}
    return {f"adaptive-{size}": {"size": size}, f"static-{size}": static}


def _routing(measured: shared.Results, runs: VariantRuns) -> list[pages.Block]:
    blocks: list[pages.Block] = []
    rows: list[list[str]] = []
    for name, made in runs.items():
        for seed, run in enumerate(made):
            used = shared.counts(run)
            if seed == 0 and run["steps"]:
                blocks.append(_heat(name, run))
            if run["routes"]:
                success = f"{average_success(used, run['success']):.3f}"
                unique = f"{sum(n > 0 for n in used)}/{len(used)}"
                rows.append([name, str(seed), *_spread(used)[:2], unique, success])
    head = ["encoder", "seed", "entropy (bits)", "used", "unique", "mean success"]
    printed = [v for v in pages.published("Table 13") if v.row == "Average"]
    theirs = ", ".join(f"{v.column} {v.printed}" for v in printed)
    average = shared.text("variants", "diversity", averages=theirs)
    return [*blocks, pages.PageTable("diversity", head, rows), average]


def _heat(name: str, run: CellResult) -> pages.Heat:
    last = {step["epoch"]: step["selected"] for step in run["steps"]}
    counted = [[0] * len(run["first"]), *(last[epoch] for epoch in sorted(last))]
    chosen = [selected_since(before, now) for before, now in pairwise(counted)]
    columns = [[n / max(1, sum(now)) for n in now] for now in chosen]
    values = [list(row) for row in zip(*columns, strict=True)]
    title = f"Selection by epoch: {name}, seed 0"
    return pages.Heat(f"routing-{name}", title, "epoch", "instinct", values)


def _evolution(measured: shared.Results, runs: VariantRuns) -> list[pages.Block]:
    blocks: list[pages.Block] = []
    for seed, run in enumerate(runs["pco"]):
        changed = [r for r in run["rewrites"] if r["variable"].isdigit()]
        kinds = f"{len(changed)} rewrites of instincts and {len(run['rewrites']) - len(changed)} "
        blocks.append(f"Seed {seed} kept {kinds}of the directives θ, φ and ψ.")
        if seed == 0:
            rows: list[list[str]] = []
            for k, text in enumerate(run["first"]):
                later = [r for r in changed if r["variable"] == str(k)]
                rows += [[f"#{k}", "first", markdown(text)]] if later else []
                rows += [[f"#{k}", str(r["step"] + 1), markdown(r["text"])] for r in later]
            blocks.append(pages.PageTable("instincts", ["index", "step", "text"], rows))
    return blocks


def _prompts(measured: shared.Results, runs: VariantRuns) -> list[pages.Block]:
    """Each prompt with the audit lines of Figure 3: which instincts, why, and what came of it."""
    blocks: list[pages.Block] = []
    for run in runs["pco"][:1]:
        for each in run["prompts"]:
            lines = [f"- #{k}: {markdown(run['instincts'][k])}" for k in each["route"]]
            lines += [f"- why: {markdown(each['why'])}"] if each["why"] else []
            reward = "failed" if each["reward"] is None else f"{each['reward']:.2f}"
            lines.append(f"- reward: {reward}")
            blocks += [f"## {markdown(each['example'])}", "\n".join(lines), fenced(each["prompt"])]
        if run["rows"] and not run["prompts"]:
            blocks.append("The task's data is private, so no prompt is shown.")
    return blocks


ABLATION = _over("ablation", "Table 3", _ablation)
CRITIC = _over("critic", "Table 4", _critic, _critics)
INIT = _over("init", "Tables 11 and 12", _init)
SWEEP_K = _swept("sweep-k", "Figure 5a")
SWEEP_S = _swept("sweep-s", "Figure 5b")
SENSITIVITY = _swept("sensitivity", "Figure 6", "hotpotqa")
USAGE = _over("codebook-usage", "Figure 4b", _usage)
SPECIALISATION = _over("specialisation", "Table 2", _specialised)
ROUTING = _over("routing", "Figure 7 and Table 13", _routing, _wide)
EVOLUTION = _over("evolution", "Tables 14 and 15", _evolution)
PROMPTS = _over("prompts", "Figure 3", _prompts)
