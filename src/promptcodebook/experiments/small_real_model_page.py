"""The page of `small-real-model`: tables and plain sentences out of the cells' results.

Every sentence that judges is made from an interval; what is not measured is said to be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from promptcodebook.experiments.experiment import (
    Experiment,
    Measured,
    Order,
    difference,
    score,
    share,
)
from promptcodebook.experiments.lab import Cell
from promptcodebook.experiments.page import Block, Page, Table, shown
from promptcodebook.experiments.small_real_model import ACCEPTING, COUNTS, SELECTS, cells, scale_of
from promptcodebook.units import percent

Results = Mapping[str, Mapping[str, Any]]

_TITLES: Mapping[str, str] = {
    "none": "no instructions",
    "present": "the present prompt",
    "best_single": "the best single instinct",
    "concat": "all instincts in one prompt (concat)",
    "learned": "learned: up to S instincts for each message",
    "oracle": "the right rules (oracle)",
}
_GOAL = 0.8
"""Share of the right rules' gain that was aimed at."""


def _page(measured: Measured) -> Page:
    """All of it, however far the cells came."""
    results = measured.results
    parts = [
        *_head(measured),
        *_headline(results),
        *_lengths(results),
        *_curves(results),
        *_sweeps(results),
        *_texts(results),
        *_missing(measured.missing),
    ]
    return Page("What routing does on a small real model", parts)


def _head(measured: Measured) -> list[Block]:
    order, lab = measured.order, measured.lab
    scale = scale_of(order.preset, order.seeds)
    versions = ", ".join(f"{name} {version}" for name, version in lab.versions.items())
    weights = f" (SHA-256 of its file {lab.weights})" if lab.weights else ""
    test = "all test messages" if scale.test is None else f"{scale.test} test messages"
    return [
        "A generated page: every figure and every judgement on it comes from",
        "```\n"
        f"pco reproduce small-real-model --preset {order.preset} --seeds {order.seeds} "
        f"--lm {lab.spec}\n```",
        f"Model: `{lab.spec}`{weights}. Versions: {versions}. Task: `houserules`, messages to "
        f"a shop, each topic with a house rule for the form of its answer; {test}. Replies are "
        "greedy, 64 new tokens at the most, in training too, and kept: all seeds see the same "
        "reply to a message under an instruction, and differ in what they try. "
        "Preset `small`: verbatim composition, one call a query, the router learns from "
        f"outcomes; {scale.steps} steps of at most {scale.batch} rollouts, {scale.seeds} "
        f"{'seed' if scale.seeds == 1 else 'seeds'}. Hyperparameters were chosen on training "
        "messages; nothing was chosen on the test split. Intervals are 95 %; differences are "
        "paired by message, and where several seeds took part, the interval covers other seeds as "
        "well, by Student's t over the seeds (`intervals.py::crossed_interval`). The same command "
        "again measures only what is missing.",
    ]


def _numbered(results: Results, prefix: str) -> list[Mapping[str, Any]]:
    """The results of `PREFIX-0`, `PREFIX-1` ..."""
    found = [name for name in results if name.rpartition("-")[0] == prefix]
    return [results[name] for name in sorted(found, key=lambda n: int(n.rpartition("-")[2]))]


def _rows(runs: Sequence[Mapping[str, Any]], name: str) -> list[list[float]]:
    return [run["rows"][name]["rewards"] for run in runs if name in run["rows"]]


def _headline(results: Results) -> list[Block]:
    runs, read = _numbered(results, "route"), _numbered(results, "embed")
    parts: list[Block] = ["## 1. Routed prompts against one prompt"] if runs or read else []
    if runs:
        parts += [*_judged("routed", runs), _verdicts(runs)]
    if read:
        parts += [
            "### With embeddings",
            "The same with `router.features = both`: beside a message's words and letters the "
            "router reads the embedding that this same model makes of it, one more and cheaper "
            "call a query. That embeddings help was seen before on training messages alone (their "
            "topics told by a ridge regression, four folds).",
            *_judged("embeddings", read),
            *_both(runs, read),
            _verdicts(read),
        ]
    return parts


def _both(runs: Sequence[Mapping[str, Any]], read: Sequence[Mapping[str, Any]]) -> list[str]:
    """Embeddings beside words, for the seeds that have both."""
    if len(read) > len(runs):
        read = read[: len(runs)]
    if not read or not runs:
        return []
    words = _rows(runs, "learned")[: len(read)]
    gain = difference(_rows(read, "learned"), words)
    return [
        f"Learned with embeddings - learned by words, {_seeds(len(read))}: "
        f"{shown(gain, signed=True)}."
    ]


def _judged(title: str, runs: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Every row's reward, and what learned gains."""
    names = [name for name in _TITLES if all(name in run["rows"] for run in runs)]
    rows = [
        [
            _TITLES[name],
            shown(score(_rows(runs, name))),
            f"{_mean(runs, name, 'calls'):.1f}",
            f"{_mean(runs, name, 'prompt_tokens') + _mean(runs, name, 'completion_tokens'):.0f}",
            f"{_mean(runs, name, 'seconds'):.2f}",
        ]
        for name in names
    ]
    n = len(runs[0]["rows"][names[0]]["rewards"])
    head = ["prompt", "reward (95 %)", "calls", "tokens", "seconds"]
    parts: list[Block] = [
        f"{n} test messages, {_seeds(len(runs))}, {runs[0]['rollouts']} training rollouts each; "
        "calls, tokens and seconds are per query; seconds are those of a reply among up to 32 at "
        "once, its wait for a place and whatever else the machine did included. What no seed has "
        "a part in (no instructions, present prompt, concat, right rules) is the same for all.",
        Table(title, head, rows),
    ]
    return [*parts, *_gains(title, runs, set(names))]


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _mean(runs: Sequence[Mapping[str, Any]], name: str, key: str) -> float:
    return sum(run["rows"][name][key] for run in runs) / len(runs)


_PAIRS = (
    ("learned", "best_single"),
    ("learned", "present"),
    ("learned", "concat"),
    ("learned", "none"),
    ("oracle", "none"),
    ("oracle", "learned"),
)


def _gains(title: str, runs: Sequence[Mapping[str, Any]], names: set[str]) -> list[Block]:
    pairs = [pair for pair in _PAIRS if set(pair) <= names]
    gains = {pair: difference(_rows(runs, pair[0]), _rows(runs, pair[1])) for pair in pairs}
    rows = [[f"{a} - {b}", shown(gain, signed=True)] for (a, b), gain in gains.items()]
    parts: list[Block] = [Table(f"{title}-differences", ["paired difference", "95 %"], rows)]
    if not {"learned", "none", "oracle", "best_single", "present"} <= names:
        return parts
    learned, oracle, none = (_rows(runs, name) for name in ("learned", "oracle", "none"))
    part = share(learned, oracle, none)
    above = [
        f"{name.replace('_', ' ')} {_met(gains['learned', name].low > 0)}"
        for name in ("best_single", "present")
    ]
    return [
        *parts,
        f"Share of the right rules' gain over no instructions: {percent(part.mean)} "
        f"({percent(part.low)} to {percent(part.high)}).",
        "Goals, set before the run: learned above "
        f"{' and above '.join(above)} (the whole interval above 0); at least {percent(_GOAL)} of "
        f"the right rules' gain: {_met(part.mean >= _GOAL)}.",
    ]


def _met(holds: bool) -> str:
    return "**met**" if holds else "**not met**"


def _verdicts(runs: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"- seed {seed}: {run['verdict']}" for seed, run in enumerate(runs)]
    return "\n".join(["The verdict of each run:", "", *lines])


def _lengths(results: Results) -> list[Block]:
    found = {count: results.get(f"rules-{count}") for count in COUNTS}
    rows = {count: result["row"] for count, result in found.items() if result is not None}
    if not rows:
        return []
    first = rows[min(rows)]["rewards"]
    table = [
        [
            str(count),
            shown(score([row["rewards"]])),
            "" if count == min(rows) else shown(difference([row["rewards"]], [first]), signed=True),
            f"{row['prompt_tokens']:.0f}",
        ]
        for count, row in rows.items()
    ]
    head = ["rules", "reward (95 %)", f"against {min(rows)}", "prompt tokens"]
    return [
        "## 2. What a long prompt costs",
        f"The {len(first)} test messages with one topic. The rule that applies stands in the "
        "prompt among others, drawn by message, in the present prompt's order; the reward is of "
        "the one that applies.",
        Table("lengths", head, table),
    ]


def _curves(results: Results) -> list[Block]:
    learned, asked = _numbered(results, "curve"), _numbered(results, "encoder")
    if not (learned or asked):
        return []
    single = _rows(_numbered(results, "route"), "best_single")
    head = ["training rollouts", "learned router", "minus best single", "LLM encoder"]
    points = sorted({int(p) for run in (*learned, *asked) for p in run["points"]})
    rows: list[list[str]] = []
    for point in points:
        ours, theirs = _at(learned, point), _at(asked, point)
        over = difference(ours, single) if ours and len(single) == len(ours) else None
        rows.append(
            [
                str(point),
                shown(score(ours)) if ours else "",
                shown(over, signed=True) if over is not None else "",
                shown(score(theirs)) if theirs else "",
            ]
        )
    return ["## 3. Learning curve", _about_curves(learned, asked), Table("curve", head, rows)]


def _about_curves(learned: Sequence[Mapping[str, Any]], asked: Sequence[Mapping[str, Any]]) -> str:
    text = "On the test messages, after so many training rollouts: the router that learns from "
    text += f"outcomes ({_seeds(len(learned))})"
    if not asked:
        return f"{text}."
    text += (
        ", and the paper's epsilon-greedy exploration with an LLM encoder on this same model "
        f"({_seeds(len(asked))}), which costs one more call a query. Text updates are off, so that "
        "its directive stays as it began: what it learns is how often each instinct did well."
    )
    shares = [row["fallbacks"] for run in asked for row in run["points"].values()]
    known = [share for share in shares if share is not None]
    if not known:
        return text
    fallen = percent(sum(known) / len(known))
    return f"{text} For {fallen} of the messages the encoder named no valid route."


def _at(runs: Sequence[Mapping[str, Any]], point: int) -> list[list[float]]:
    key = str(point)
    return [run["points"][key]["rewards"] for run in runs if key in run["points"]]


def _sweeps(results: Results) -> list[Block]:
    selects = {str(s): results.get(f"select-{s}") for s in SELECTS}
    sized = {n.rpartition("-")[2]: r for n, r in results.items() if n.startswith("size-")}
    parts: list[Block] = []
    for letter, what, found in (
        ("S", "instincts in a route at the most", selects),
        (
            "K",
            "instincts in the codebook: the present prompt's first sentences, or all of them and "
            "general ones that apply to nothing",
            sized,
        ),
    ):
        rows = {key: result for key, result in found.items() if result is not None}
        if rows:
            parts += [f"{letter}, {what} (1 seed):", _compared(letter, rows)]
    return ["## 4. S, K, and text updates", *parts] if parts else []


def _compared(head: str, rows: Results) -> Table:
    """Rows beside the first of them."""
    first = next(iter(rows))
    base = rows[first]["row"]["rewards"]
    table = [
        [
            key,
            shown(score([result["row"]["rewards"]])),
            ""
            if key == first
            else shown(difference([result["row"]["rewards"]], [base]), signed=True),
            str(result["rollouts"]),
            str(result["calls"]),
            str(result["rewrites"]),
        ]
        for key, result in rows.items()
    ]
    return Table(
        head.replace(" ", "-"),
        [head, "reward (95 %)", f"against {first}", "rollouts", "calls", "rewrites kept"],
        table,
    )


def _texts(results: Results) -> list[Block]:
    rows = {name: results[f"texts-{name}"] for name in ACCEPTING if f"texts-{name}" in results}
    if not rows:
        return []
    stopped = [f"{name}: {r['stopped']}" for name, r in rows.items() if r["stopped"]]
    return [
        "Text updates, with the critic, the attribution and the updater on this same model; every "
        "variant ends after the same number of calls, of all roles together (1 seed):",
        _compared("text updates", rows),
        *_what_updates_did(rows),
        *(["Stopped before that:\n\n" + "\n".join(f"- {s}" for s in stopped)] if stopped else []),
    ]


def _what_updates_did(rows: Results) -> list[str]:
    """Where no variant kept a rewrite, what accepts them cannot be told apart."""
    updating = [result for name, result in rows.items() if name != "off"]
    if not updating or any(result["rewrites"] for result in updating):
        return []
    return [
        "No variant kept a rewrite, so that all have the same policy, and which rule of acceptance "
        "is best cannot be seen on this model. What critic, attribution and updater cost shows in "
        "the rollouts that the same calls leave."
    ]


def _missing(missing: Mapping[str, str]) -> list[str]:
    if not missing:
        return []
    lines = [f"- `{name}`{f': {why}' if why else ''}" for name, why in missing.items()]
    return ["\n".join(["## Not measured", "", *lines])]


def _cells(order: Order, spec: str) -> Sequence[Cell]:
    return cells(scale_of(order.preset, order.seeds), spec)


EXPERIMENT = Experiment(
    name="small-real-model",
    paper="",
    cells=_cells,
    page=_page,
    presets=("quick", "default"),
    folder="small-real-model",
)
