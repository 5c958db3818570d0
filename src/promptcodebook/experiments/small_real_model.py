"""`small-real-model`: what a codebook, a router and text updates do on a 135M model (`houserules`).

The cells come in order of worth, so that a run that is cut off has the headline:

1. `route-SEED`: the demo's comparison at full length: the small preset, at most 1,500 rollouts;
   `embed-SEED`: the same where the router reads the model's embeddings beside words and letters.
2. `rules-N`: the rule that applies among N rules in one prompt.
3. `curve-SEED`: what each of these routers was worth on the way; `encoder-SEED`: the same with an
   LLM encoder and epsilon-greedy exploration, every role on the same model.
4. `select-S`, `size-K`: other S and K. `texts-...`: text updates and what accepts them, all at
   equal calls.

Replies are greedy where they are judged, and kept: the seeds share the reward of (message,
instincts). (Another batch sums in another order and may break a near tie otherwise.)
Hyperparameters are the small preset's, chosen on training messages; nothing here was chosen on the
test split. Every sentence of the page that judges is made from an interval; missing measurements
are named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcodebook.assemble import Assembled
from promptcodebook.calls import Usage
from promptcodebook.config import Config, load_config
from promptcodebook.errors import TooManyFailures
from promptcodebook.experiments.experiment import (
    Experiment,
    Measured,
    Order,
    difference,
    score,
    share,
)
from promptcodebook.experiments.lab import Cell, Lab, Training, read_training, row_json
from promptcodebook.experiments.page import Block, Page, Table, shown
from promptcodebook.method.policy import Prompter
from promptcodebook.policy.references import state_at
from promptcodebook.randomness import Draws, keyed_random
from promptcodebook.store.run import RunStore
from promptcodebook.tasks.houserules.task import (
    load_houserules,
    present_prompt,
    right_rules,
    topics_of,
)
from promptcodebook.text import sentences_of
from promptcodebook.types import Example, Prompt, Route
from promptcodebook.units import percent

BATCH = 32
COUNTS = (1, 2, 4, 8, 14)
"""Rules in one prompt."""
SELECTS = (1, 2, 4)
_REPLY = 64
"""The most new tokens of a reply."""
_ROLE_TOKENS = 200
"""Of the critic, the attribution and the updater, where they are asked."""
ACCEPTING: Mapping[str, Mapping[str, Any]] = {
    "off": {"text_updates": False},
    "always": {"accept": "always"},
    "improve": {"accept": "improve"},
    "improve-others": {"accept": "improve", "accept_on": "others"},
    "improve_each-others": {"accept": "improve_each", "accept_on": "others"},
    "always-maintain": {"accept": "always", "maintain_every": 4},
}
"""The variants of text updates, by name."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured: seeds, steps of at most `batch` rollouts, at which steps curves are
    drawn, the encoder's seeds and steps, the steps of the S and K sweeps, the calls of a text
    variant, the test messages (None = all), and the validation messages of a run (None = as many
    as any run takes; else its last state is kept)."""

    seeds: int
    steps: int
    curve: tuple[int, ...]
    encoder_seeds: int
    encoder_steps: int
    sweep_steps: int
    text_calls: int
    test: int | None = None
    batch: int = BATCH
    val: int | None = None


def scale_of(preset: str, seeds: int) -> Scale:
    """`default` is what the page shows, `quick` whether everything runs."""
    if preset == "quick":
        return Scale(seeds, 2, (0, 2), 1, 1, 1, 30, test=8, batch=8, val=4)
    return Scale(seeds, 46, (0, 3, 6, 12, 23, 46), 1, 23, 46, 400)


def sizes(whole: int) -> tuple[int, ...]:
    """K: half of the present prompt's sentences, all of them, and with idle ones beside them."""
    return whole // 2, whole, whole + 8


def cells(scale: Scale, spec: str) -> list[Cell]:
    """All of them, in order of worth."""
    base = demo_settings(spec, scale)
    seeded = {seed: {**base, "seed": seed} for seed in range(scale.seeds)}
    made = [_judged(f"route-{seed}", settings) for seed, settings in seeded.items()]
    both = {"router": {"features": "both"}}
    made += [_judged(f"embed-{seed}", {**own, **both}) for seed, own in seeded.items()]
    made += [_rules(count, base, scale) for count in COUNTS]
    made += [_curve(f"curve-{seed}", settings, scale.curve) for seed, settings in seeded.items()]
    for seed in range(scale.encoder_seeds):
        update = {**base["update"], "epochs": scale.encoder_steps}
        asks = {"router": {"kind": "encoder"}, "update": update}
        points = tuple(step for step in scale.curve if step <= scale.encoder_steps)
        if scale.encoder_steps not in points:
            points = (*points, scale.encoder_steps)
        made.append(_curve(f"encoder-{seed}", {**base, **asks, "seed": seed}, points))
    swept = {**base, "update": {**base["update"], "epochs": scale.sweep_steps}}
    made += [_last(f"select-{s}", {**swept, "select": s}) for s in SELECTS]
    made += [_last(f"size-{k}", _sized(swept, k)) for k in sizes(base["size"])]
    made += [
        _last(f"texts-{name}", _texts(base, update, scale.text_calls))
        for name, update in ACCEPTING.items()
    ]
    return made


def demo_settings(spec: str, scale: Scale) -> dict[str, Any]:
    """The small preset over the sentences of the present prompt, at this scale."""
    prompt = present_prompt()
    capped = {"temperature": 0.0, "max_tokens": _ROLE_TOKENS}
    quick = {"validation": {"every": 0, "subset": scale.val}, "keep": "last"}
    return {
        **({} if scale.val is None else quick),
        "task": "houserules",
        "preset": "small",
        "lm": spec,
        "size": len(sentences_of(prompt)),
        "init": {"kind": "from_prompt", "prompt": prompt},
        "roles": {
            "executor": {"temperature": 0.0, "max_tokens": _REPLY},
            **{role: capped for role in ("encoder", "critic", "attribution", "updater")},
        },
        "update": {"epochs": scale.steps, "batch_size": scale.batch},
        "verdict_examples": scale.test,
    }


def _sized(settings: Mapping[str, Any], size: int) -> dict[str, Any]:
    """With K instincts: the first of the prompt's sentences, or all and general ones beside."""
    texts = tuple(sentences_of(present_prompt()))[:size]
    init = {"kind": "expert", "instincts": texts, "prompt": present_prompt()}
    return {**settings, "init": init, "size": size}


def _texts(settings: Mapping[str, Any], update: Mapping[str, Any], calls: int) -> dict[str, Any]:
    """With text updates, until `calls` are used up; nothing is kept back for a verdict."""
    whole = {"text_updates": True, "epochs": calls, "batch_size": 16, **update}
    return {
        **settings,
        "update": {**settings["update"], **whole},
        "budget": {"calls": calls, "reserve_for_verdict": 0.0},
    }


def _config(settings: Mapping[str, Any]) -> Config:
    return load_config(settings, where="the experiment")


def _judged(name: str, settings: Mapping[str, Any]) -> Cell:
    """A run with its verdict: every row's rewards on the test messages."""

    def measure(lab: Lab) -> Mapping[str, Any]:
        training = lab.train(_config(settings))
        store = RunStore.open(training.path)
        try:
            rows = {each.name: row_json(each) for each in store.test_evaluations()}
            conclusion = store.outline().conclusion
        finally:
            store.close()
        verdict = conclusion.text if conclusion is not None else ""
        return {**_took(training), "rows": rows, "verdict": verdict}

    return Cell(name, settings, measure)


def _took(training: Training) -> dict[str, Any]:
    return {
        "run": training.run,
        "rollouts": training.rollouts,
        "calls": training.calls,
        "rewrites": training.rewrites,
        "ended": training.ended,
    }


def _curve(name: str, settings: Mapping[str, Any], steps: Sequence[int]) -> Cell:
    """What a run's policy was worth after each of these steps."""

    def measure(lab: Lab) -> Mapping[str, Any]:
        config = _config(settings)
        training = lab.train(config)
        points = {
            str(training.rollouts_after(step)): row_json(
                lab.judge_state(config, training.path, step - 1)
            )
            for step in steps
        }
        return {**_took(training), "points": points}

    return Cell(name, {**settings, "points": list(steps)}, measure)


def _last(name: str, settings: Mapping[str, Any]) -> Cell:
    """What a run's policy is worth at its end, or where too many of its calls had failed."""

    def measure(lab: Lab) -> Mapping[str, Any]:
        config = _config(settings)
        stopped = ""
        try:
            training = lab.train(config, counted=config.budget.calls is not None)
        except TooManyFailures as failures:
            if failures.run is None:
                raise
            training, stopped = read_training(failures.run.path), str(failures)
        store = RunStore.open(training.path)
        try:
            step = store.outline().step
            texts = state_at(store, step).parameters.codebook.texts
        finally:
            store.close()
        row = row_json(lab.judge_state(config, training.path, step))
        return {**_took(training), "row": row, "stopped": stopped, "instincts": list(texts)}

    return Cell(name, settings, measure)


@dataclass(frozen=True, slots=True)
class _Among:
    """A Prompter: the rule that applies to a message among others, as the present prompt orders
    them. Which others is drawn by message; fewer are part of more."""

    count: int

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        rules = present_prompt().partition("\n\n")[2].splitlines()
        [own] = right_rules(example)
        others = [rule for rule in rules if rule != own]
        keyed_random("rules beside", example.id).shuffle(others)
        chosen = {own, *others[: self.count - 1]}
        return None, Prompt("\n".join(rule for rule in rules if rule in chosen)), Usage()


def _rules(count: int, settings: Mapping[str, Any], scale: Scale) -> Cell:
    """The reward of messages with one topic, whose rule is one of `count`."""

    def measure(lab: Lab) -> Mapping[str, Any]:
        def among(_: Assembled) -> Prompter:
            return _Among(count)

        examples = [e for e in load_houserules().dataset.test if len(topics_of(e)) == 1]
        return {"row": row_json(lab.judge(_config(settings), among, examples[: scale.test]))}

    return Cell(f"rules-{count}", {**settings, "rules": count}, measure)


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
        *_text_blocks(results),
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
        parts += [*_judged_blocks("routed", runs), _verdicts(runs)]
    if read:
        parts += [
            "### With embeddings",
            "The same with `router.features = both`: beside a message's words and letters the "
            "router reads the embedding that this same model makes of it, one more and cheaper "
            "call a query. That embeddings help was seen before on training messages alone (their "
            "topics told by a ridge regression, four folds).",
            *_judged_blocks("embeddings", read),
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


def _judged_blocks(title: str, runs: Sequence[Mapping[str, Any]]) -> list[Block]:
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


def _text_blocks(results: Results) -> list[Block]:
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
    """Where no variant kept a rewrite, the rules of acceptance cannot be compared."""
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
