"""`small-real-model`: what a codebook, a router and text updates do on a 135M model (`houserules`).
The cells come in order of worth, so that a run that is cut off has the headline. Replies are greedy
where they are judged, and kept. Nothing was chosen on the test split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from promptcodebook.assemble import Assembled
from promptcodebook.base.randomness import keyed_random
from promptcodebook.base.text import sentences_of
from promptcodebook.base.units import percent, plural
from promptcodebook.config import merge
from promptcodebook.optimizers.fixed import OraclePrompt
from promptcodebook.paper.experiments import experiment as shared
from promptcodebook.paper.experiments import lab as labs
from promptcodebook.paper.experiments.lab import Cell, CellResult, JudgedPrompters, Lab, Runs
from promptcodebook.paper.experiments.page import Block, Page, PageTable, read_table, shown
from promptcodebook.paper.tasks.houserules import task as houserules
from promptcodebook.policy.references import state_at
from promptcodebook.store.run import RunStore
from promptcodebook.types import Example

COUNTS = (1, 2, 4, 8, 14)  # rules in one prompt
SELECTS = (1, 2, 4)
ModelScale = Mapping[str, Any]  # how much is measured, as settings.toml has it


def scale_of(preset: str) -> ModelScale:
    return read_table("settings")["small"][preset]


def cells(scale: ModelScale, seeds: int, spec: str) -> list[Cell]:
    """All of them, in order of worth."""
    prompt = houserules.present_prompt()
    sentences = sentences_of(prompt)
    base: dict[str, Any] = {
        **read_table("settings")["small"]["base"],
        "lm": spec,
        "size": len(sentences),
        "init": {"kind": "from_prompt", "prompt": prompt},
        "verdict_examples": scale.get("test"),
        **scale["run"],
    }
    seeded = {seed: {**base, "seed": seed} for seed in range(seeds)}
    made = [_judged(f"route-{seed}", settings) for seed, settings in seeded.items()]
    both = {"router": {"features": "both"}}
    made += [_judged(f"embed-{seed}", {**own, **both}) for seed, own in seeded.items()]
    made += [_rules(count, base, scale.get("test")) for count in COUNTS]
    made += [_curve(f"curve-{seed}", own, scale["curve"]) for seed, own in seeded.items()]
    last = scale["encoder_steps"]
    asks = {"router": {"kind": "encoder"}, "update": {"epochs": last}, "seed": 0}
    points = sorted({last, *(n for n in scale["curve"] if n <= last)})
    made.append(_curve("encoder-0", merge(base, asks), points))
    swept = merge(base, {"update": {"epochs": scale["sweep_steps"]}})
    made += [_last(f"select-{s}", {**swept, "select": s}) for s in SELECTS]
    for k in (len(sentences) // 2, len(sentences), len(sentences) + 8):
        # The first of the prompt's sentences, all of them, or all and idle ones beside.
        init = {"kind": "expert", "instincts": tuple(sentences)[:k], "prompt": prompt}
        made.append(_last(f"size-{k}", {**swept, "init": init, "size": k}))
    # With text updates, until the calls are used up; nothing is kept back for a verdict.
    calls = scale["text_calls"]
    budget = {"budget": {"calls": calls, "reserve_for_verdict": 0.0}}
    updating = {"text_updates": True, "epochs": calls, "batch_size": 16}
    made += [
        _last(f"texts-{name}", merge(base, budget, {"update": {**updating, **update}}))
        for name, update in read_table("variants")["texts"].items()
    ]
    return made


def _judged(name: str, settings: Mapping[str, Any]) -> Cell:
    """A run with its verdict: every row's rewards on the test messages."""

    def measure(lab: Lab) -> CellResult:
        path = lab.train(settings)
        with closing(RunStore.open(path)) as store:
            rows = {each.name: labs.row_json(each) for each in store.test_evaluations()}
            conclusion = store.outline().conclusion
        verdict = conclusion.text if conclusion is not None else ""
        return {**labs.read_training(path), "rows": rows, "verdict": verdict}

    return Cell(name, settings, measure)


def _curve(name: str, settings: Mapping[str, Any], steps: Sequence[int]) -> Cell:
    def measure(lab: Lab) -> CellResult:
        path = lab.train(settings)
        with closing(RunStore.open(path)) as store:
            made = [len(step.traces) for step in store.steps(traces=True)]
        rows = [lab.judge_state(settings, path, step - 1) for step in steps]
        points = {str(sum(made[:step])): row for step, row in zip(steps, rows, strict=True)}
        return {**labs.read_training(path), "points": points}

    return Cell(name, {**settings, "points": list(steps)}, measure)


def _last(name: str, settings: Mapping[str, Any]) -> Cell:
    """What a run's policy is worth at its end, or where too many of its calls had failed."""

    def measure(lab: Lab) -> CellResult:
        path, stopped = lab.attempt(settings, counted="budget" in settings)
        with closing(RunStore.open(path)) as store:
            step = store.outline().step
            texts = state_at(store, step).parameters.codebook.texts
        row = lab.judge_state(settings, path, step)
        found = {"row": row, "stopped": stopped, "instincts": list(texts)}
        return {**labs.read_training(path), **found}

    return Cell(name, settings, measure)


def _rules(count: int, settings: Mapping[str, Any], most: int | None) -> Cell:
    """Messages with one topic, whose rule is one of `count`; which others is drawn by message."""
    rules = houserules.present_prompt().partition("\n\n")[2].splitlines()

    def among(example: Example) -> str:
        [own] = houserules.right_rules(example)
        others = [rule for rule in rules if rule != own]
        keyed_random("rules beside", example.id).shuffle(others)
        chosen = {own, *others[: count - 1]}
        return "\n".join(rule for rule in rules if rule in chosen)

    def judged(_: Assembled) -> JudgedPrompters:
        test = houserules.load_houserules().dataset.test
        examples = [e for e in test if len(houserules.topics_of(e)) == 1]
        return {"row": OraclePrompt(among, "")}, examples[:most]

    return labs.judged_cell(f"rules-{count}", settings, judged, rules=count)


Results = Mapping[str, CellResult]

_GOAL = 0.8  # share of the right rules' gain that was aimed at


def _page(measured: shared.Results) -> Page:
    results, order = measured.results, measured.order
    scale = scale_of(order.preset)
    words = shared.lab_words(measured, scale.get("test"), "messages")
    update = scale["run"]["update"]
    head = shared.text("small", "head", steps=update["epochs"], batch=update["batch_size"], **words)
    blocks = [*_headline(results), *_lengths(results), *_curves(results), *_sweeps(results)]
    return shared.framed(measured, "", blocks, [head])


def _headline(results: Results) -> list[Block]:
    runs, read = shared.runs_of(results, "route", "-"), shared.runs_of(results, "embed", "-")

    def verdicts(runs: Runs) -> str:
        heads = Counter(str(run["verdict"]).partition(":")[0] for run in runs)
        return f"Verdicts: {', '.join(f'{head} ({n})' for head, n in heads.items())}."

    parts: list[Block] = ["## 1. Routed prompts against one prompt"] if runs or read else []
    if runs:
        parts += [*_judged_blocks("routed", runs), verdicts(runs)]
    if read:
        parts += ["### With embeddings", shared.text("small", "embeddings")]
        parts += _judged_blocks("embeddings", read, beside=runs)
        both = min(len(runs), len(read))  # the seeds that have both
        if both:
            words, learned = (shared.rewards(each[:both]) for each in (runs, read))
            gain = shown(shared.difference(learned, words), signed=True)
            what = "Learned with embeddings minus learned from words"
            parts.append(f"{what}, {plural(both, 'seed')}: {gain}.")
        parts.append(verdicts(read))
    return parts


def _judged_blocks(title: str, runs: Runs, beside: Runs = ()) -> list[Block]:
    """Rows that are as in the runs `beside` are not shown again."""

    def mean(name: str, key: str) -> float:
        return sum(run["rows"][name][key] for run in runs) / len(runs)

    titles = read_table("pages")["rows"]
    names = [name for name in titles if all(name in run["rows"] for run in runs)]
    rows = [
        [
            titles[name],
            shown(shared.score(shared.rewards(runs, name))),
            f"{mean(name, 'calls'):.1f}",
            f"{mean(name, 'prompt_tokens') + mean(name, 'completion_tokens'):.0f}",
        ]
        for name in names
        if not beside or shared.rewards(runs, name) != shared.rewards(beside, name)
    ]
    n, seeds = len(runs[0]["rows"][names[0]]["rewards"]), plural(len(runs), "seed")
    head = ["prompt", "reward (95 %)", "calls", "tokens"]
    words = shared.text("small", "judged", n=n, seeds=seeds, rollouts=runs[0]["rollouts"])
    table = PageTable(title, head, rows)
    return [*([] if beside else [words]), table, *_gains(title, runs, set(names))]


def _gains(title: str, runs: Runs, names: set[str]) -> list[Block]:
    pairs = [("learned", other) for other in ("best_single", "present", "concat", "none")]
    pairs = [p for p in (*pairs, ("oracle", "none"), ("oracle", "learned")) if set(p) <= names]
    by_row = {name: shared.rewards(runs, name) for pair in pairs for name in pair}
    gains = {(a, b): shared.difference(by_row[a], by_row[b]) for a, b in pairs}
    rows = [[f"{a} - {b}", shown(gain, signed=True)] for (a, b), gain in gains.items()]
    parts: list[Block] = [PageTable(f"{title}-differences", ["paired difference", "95 %"], rows)]
    if not {"learned", "none", "oracle", "best_single", "present"} <= names:
        return parts

    learned, oracle, none = (shared.rewards(runs, name) for name in ("learned", "oracle", "none"))
    part, met = shared.share(learned, oracle, none), {True: "**met**", False: "**not met**"}
    mean, low, high = map(percent, (part.mean, part.low, part.high))
    above = " and ".join(
        f"{name.replace('_', ' ')} ({met[gains['learned', name].low > 0]})"
        for name in ("best_single", "present")
    )
    goal = {"goal": percent(_GOAL), "met": met[part.mean >= _GOAL]}
    goals = shared.text("small", "goals", above=above, **goal)
    return [*parts, shared.text("small", "share", mean=mean, low=low, high=high), goals]


def _against(row: CellResult, first: CellResult) -> list[str]:
    """Its reward, and the difference to the first row ('' of that one)."""
    own, base = [row["rewards"]], [first["rewards"]]
    over = "" if row is first else shown(shared.difference(own, base), signed=True)
    return [shown(shared.score(own)), over]


def _lengths(results: Results) -> list[Block]:
    found = {count: results.get(f"rules-{count}") for count in COUNTS}
    rows = {count: result["row"] for count, result in found.items() if result is not None}
    if not rows:
        return []
    first = rows[min(rows)]
    table = [[str(n), *_against(r, first), f"{r['prompt_tokens']:.0f}"] for n, r in rows.items()]
    head = ["rules", "reward (95 %)", f"against {min(rows)}", "prompt tokens"]
    words = shared.text("small", "lengths", n=len(first["rewards"]))
    return ["## 2. What a long prompt costs", words, PageTable("lengths", head, table)]


def _curves(results: Results) -> list[Block]:
    learned, asked = shared.runs_of(results, "curve", "-"), shared.runs_of(results, "encoder", "-")
    if not (learned or asked):
        return []
    single = shared.rewards(shared.runs_of(results, "route", "-"), "best_single")
    head = ["training rollouts", "learned router", "minus best single", "LLM encoder"]
    rows: list[list[str]] = []
    for point in sorted({int(p) for run in (*learned, *asked) for p in run["points"]}):
        at = [
            [run["points"][str(point)]["rewards"] for run in runs if str(point) in run["points"]]
            for runs in (learned, asked)
        ]
        ours, theirs = (shown(shared.score(each)) if each else "" for each in at)
        over = at[0] and len(single) == len(at[0])
        minus = shown(shared.difference(at[0], single), signed=True) if over else ""
        rows.append([str(point), ours, minus, theirs])
    text = shared.text("small", "curve", seeds=plural(len(learned), "seed"))
    text += shared.text("small", "encoder", seeds=plural(len(asked), "seed")) if asked else "."
    shares = [row["fallbacks"] for run in asked for row in run["points"].values()]
    known = [share for share in shares if share is not None]
    if known:
        text += shared.text("small", "fallen", share=percent(sum(known) / len(known)))
    return ["## 3. Learning curve", text, PageTable("curve", head, rows)]


def _sweeps(results: Results) -> list[Block]:
    parts: list[Block] = []
    for letter, axis in (("S", "select"), ("K", "size")):
        found = {n.rpartition("-")[2]: r for n, r in results.items() if n.startswith(f"{axis}-")}
        if found:
            parts += [shared.text("small", axis), _compared(letter, found)]
    parts = ["## 4. S, K, and text updates", *parts] if parts else []
    names = read_table("variants")["texts"]
    rows = {name: results[f"texts-{name}"] for name in names if f"texts-{name}" in results}
    if rows:
        parts += [shared.text("small", "texts"), _compared("text updates", rows)]
    updating = [result for name, result in rows.items() if name != "off"]
    # Where no variant kept a rewrite, the rules of acceptance cannot be compared.
    if updating and not any(result["rewrites"] for result in updating):
        parts.append(shared.text("small", "no_rewrite"))
    stopped = [f"- {name}: {r['stopped']}" for name, r in rows.items() if r["stopped"]]
    return [*parts, "Stopped early:\n\n" + "\n".join(stopped)] if stopped else parts


def _compared(head: str, rows: Results) -> PageTable:
    first = next(iter(rows))
    table = [
        [
            key,
            *_against(result["row"], rows[first]["row"]),
            *(str(result[what]) for what in ("rollouts", "calls", "rewrites")),
        ]
        for key, result in rows.items()
    ]
    columns = [head, "reward (95 %)", f"against {first}", "rollouts", "calls", "rewrites kept"]
    return PageTable(head.replace(" ", "-"), columns, table)


EXPERIMENT = shared.Experiment(
    name="small-real-model",
    real=True,
    paper="",
    cells=lambda order, spec: cells(scale_of(order.preset), order.seeds, spec),
    page=_page,
    presets=("quick", "default"),
    folder="small-real-model",
)
