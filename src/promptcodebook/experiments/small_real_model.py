"""`small-real-model`: what a codebook, a router and text updates do on a 135M model (`houserules`).

Cells in order of worth, so that a run that is cut off has the headline:

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
test split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcodebook.assemble import Assembled
from promptcodebook.calls import Usage
from promptcodebook.config import Config, load_config
from promptcodebook.errors import TooManyFailures
from promptcodebook.experiments.lab import Cell, Lab, Training, read_training, row_json
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

BATCH = 32
COUNTS = (1, 2, 4, 8, 14)
"""Rules in one prompt."""
SELECTS = (1, 2, 4)
_REPLY = 64
"""New tokens of a reply at the most."""
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
    """With text updates, to the end of so many calls; nothing is kept back for a verdict."""
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
    """What a run's policy was worth after so many steps."""

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
    """The reward of messages with one topic, whose rule stands among `count`."""

    def measure(lab: Lab) -> Mapping[str, Any]:
        def among(_: Assembled) -> Prompter:
            return _Among(count)

        examples = [e for e in load_houserules().dataset.test if len(topics_of(e)) == 1]
        return {"row": row_json(lab.judge(_config(settings), among, examples[: scale.test]))}

    return Cell(f"rules-{count}", {**settings, "rules": count}, measure)
