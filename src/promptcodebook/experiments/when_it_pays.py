"""`when-it-pays`: where a prompt for each input beats one prompt for all, and where it does not.

On `houserules`, four things are changed one at a time: how many rules there are in all, how many an
input needs, what share of them all inputs have in common, and how much else the prompt holds.
"A prompt for each input" holds the right rules, so this is the most that routing could bring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcodebook.assemble import Assembled
from promptcodebook.calls import Usage
from promptcodebook.config import load_config
from promptcodebook.experiments.experiment import (
    Experiment,
    Measured,
    Order,
    about,
    difference,
    missing,
    said,
    score,
)
from promptcodebook.experiments.lab import Cell, Lab, Result, row_json
from promptcodebook.experiments.page import Block, Page, Table, shown
from promptcodebook.method.executor import Evaluator
from promptcodebook.randomness import Draws
from promptcodebook.tasks.houserules.task import (
    RULES,
    check,
    load_houserules,
    present_prompt,
    right_rules,
    topics_of,
)
from promptcodebook.types import Evaluation, Example, Prompt, Route

TASK = "houserules"
COMMON = "Answer with emojis."
"""A rule for every message; the check of the kind `emoji` tells whether it is kept."""
LITTLE = 0.1
"""A gain that would not be worth a router."""
TOPICS = (1, 2, 4, 8, 14)
NEEDED = (1, 2)
FILLED = (0, 8, 32)


@dataclass(frozen=True, slots=True)
class Setting:
    """One place of the map: messages on the first `topics` topics, with `needed` of them each;
    `own` = whether a message's own rules count, `common` = whether the common one does; `filled`
    neutral sentences before the rules."""

    topics: int = 14
    needed: int = 1
    own: bool = True
    common: bool = False
    filled: int = 0

    def examples(self, most: int | None) -> list[Example]:
        """Test messages, spread over the topics."""
        among = set(tuple(RULES)[: self.topics])
        fitting = [
            example
            for example in load_houserules().dataset.test
            if len(topics_of(example)) == self.needed and set(topics_of(example)) <= among
        ]
        return fitting[:: max(1, len(fitting) // most)][:most] if most else fitting


@dataclass(frozen=True, slots=True)
class _Rules:
    """A Prompter: one prompt with all rules of the setting, or each message's own."""

    setting: Setting
    routed: bool
    filler: Sequence[str]

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        lines = [*self.filler, *rules_of(self.setting, example if self.routed else None)]
        return None, Prompt("\n".join(lines)), Usage()


def rules_of(setting: Setting, example: Example | None) -> list[str]:
    """The rules that a prompt of the setting names: an example's own, or all of them; the common
    one comes first."""
    rules = [COMMON] if setting.common else []
    if setting.own and example is not None:
        rules += right_rules(example)
    elif setting.own:
        rules += present_prompt(tuple(RULES)[: setting.topics]).partition("\n\n")[2].splitlines()
    return rules


def settings_of(order: Order) -> Mapping[str, Setting]:
    """The map's places by name; the first of each axis is where the others start from."""
    quick = order.preset == "quick"
    topics = (1, 4, 14) if quick else TOPICS
    places = {f"topics-{count}": Setting(topics=count) for count in topics}
    places |= {f"needed-{count}": Setting(needed=count) for count in NEEDED}
    places |= {
        "common-none": Setting(topics=4),
        "common-half": Setting(topics=4, common=True),
        "common-all": Setting(topics=4, own=False, common=True),
    }
    filled = (0, 32) if quick else FILLED
    return places | {f"filled-{count}": Setting(topics=4, filled=count) for count in filled}


def _cells(order: Order, spec: str) -> Sequence[Cell]:
    most = {"quick": 8, "default": 96}.get(order.preset)
    base = {"task": TASK, "lm": spec, "roles": {"executor": {"temperature": 0.0, "max_tokens": 64}}}

    def cell(name: str, place: Setting) -> Cell:
        settings = {**base, "place": str(place), "most": most}
        return Cell(name, settings, lambda lab: _measure(lab, base, place, most))

    return [cell(name, place) for name, place in settings_of(order).items()]


def _measure(lab: Lab, base: Mapping[str, Any], place: Setting, most: int | None) -> Result:
    config = load_config(base, where="the experiment")

    async def work(assembled: Assembled) -> dict[str, Evaluation]:
        general = assembled.plan.templates.text("instincts").splitlines()
        filler = (general * (place.filled // len(general) + 1))[: place.filled]
        evaluator = Evaluator(assembled.trial(greedy=True), config.randomness)
        examples = place.examples(most)
        ways = {"one": _Rules(place, False, filler), "own": _Rules(place, True, filler)}
        return {n: await evaluator.evaluate(n, way, examples, "test") for n, way in ways.items()}

    rows = lab.work(config, work)
    return {name: {**row_json(row), "rewards": _kept(place, row)} for name, row in rows.items()}


def _kept(place: Setting, row: Evaluation) -> list[float]:
    """The share of the rules that count and were kept, by message."""
    rewards: list[float] = []
    for rollout, own in zip(row.rollouts, row.rewards, strict=True):
        common = float(check("emoji", rollout.output).satisfied)
        parts = [own] * place.own + [common] * place.common
        rewards.append(sum(parts) / len(parts))
    return rewards


_AXES = ("topics", "needed", "common", "filled")


def _page(measured: Measured) -> Page:
    blocks: list[Block] = about(measured, TASK, "Where a prompt for each input beats one for all.")
    for axis in _AXES:
        found = [(name.partition("-"), result) for name, result in measured.results.items()]
        rows = [_line(value, result) for (on, _, value), result in found if on == axis]
        if rows:
            head = [axis, "messages", "one prompt (95 %)", "own prompt (95 %)", "own - one"]
            head += ["tokens, one", "tokens, own", "pays"]
            blocks.append(Table(axis, head, rows, said("pays", axis)))
    blocks.append(said("pays", "verdict", little=LITTLE))
    return Page("When a prompt for each input pays", [*blocks, *missing(measured)])


def _line(value: str, result: Result) -> list[str]:
    one, own = result["one"], result["own"]
    gain = difference([own["rewards"]], [one["rewards"]])
    return [
        value,
        str(len(own["rewards"])),
        shown(score([one["rewards"]])),
        shown(score([own["rewards"]])),
        shown(gain, signed=True),
        f"{one['prompt_tokens']:.0f}",
        f"{own['prompt_tokens']:.0f}",
        "yes" if gain.low > 0 else "no" if gain.high < LITTLE else "not clear",
    ]


EXPERIMENT = Experiment("when-it-pays", "", _cells, _page, seeds=1)
