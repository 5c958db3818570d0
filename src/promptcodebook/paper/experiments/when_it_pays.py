"""`when-it-pays`: where a prompt for each input beats one for all. On `houserules`, four things are
changed one at a time: how many rules there are in all, how many an input needs, what share of them
all inputs have in common, and how much else the prompt holds. "A prompt for each input" holds the
right rules, so this is the most that routing could bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcodebook import types
from promptcodebook.assemble import Assembled
from promptcodebook.method import policy as policies
from promptcodebook.optimizers.fixed import OraclePrompt
from promptcodebook.paper.experiments import experiment as shared
from promptcodebook.paper.experiments import page as pages
from promptcodebook.paper.experiments.lab import Cell, CellResult, JudgedPrompters, Lab, row_json
from promptcodebook.paper.tasks.houserules import task as houserules

TASK = "houserules"
# A rule for every message; the check of the kind `emoji` tells whether it is kept.
COMMON = "Answer with emojis."
LITTLE = 0.1  # A gain that would not be worth a router


@dataclass(frozen=True, slots=True)
class Setting:
    """Messages on the first `topics` topics, with `needed` of them each; whether their `own` rules
    count, and the `common` one; `filled` neutral sentences before the rules."""

    topics: int = 14
    needed: int = 1
    own: bool = True
    common: bool = False
    filled: int = 0

    def rules(self, example: types.Example | None) -> list[str]:
        """The rules that a prompt names: an example's own, or all of them."""
        rules = [COMMON] if self.common else []
        if self.own and example is not None:
            rules += houserules.right_rules(example)
        elif self.own:
            rules += (
                houserules.present_prompt(tuple(houserules.RULES)[: self.topics])
                .partition("\n\n")[2]
                .splitlines()
            )
        return rules

    def examples(self, most: int | None) -> list[types.Example]:
        among = set(tuple(houserules.RULES)[: self.topics])
        pairs = ((e, houserules.topics_of(e)) for e in houserules.load_houserules().dataset.test)
        fitting = [e for e, on in pairs if len(on) == self.needed and set(on) <= among]
        return fitting[:: max(1, len(fitting) // most)][:most] if most else fitting


def _pays_cells(order: shared.ExperimentRequest, spec: str) -> Sequence[Cell]:
    most = {"quick": 8, "default": 96}.get(order.preset)
    executor = {"temperature": 0.0, "max_tokens": 64}
    base = {"task": TASK, "lm": spec, "roles": {"executor": executor}}

    def cell(name: str, place: Setting) -> Cell:
        settings = {**base, "place": str(place), "most": most}
        return Cell(name, settings, lambda lab: _judged(lab, base, place, most))

    # The first of each axis is where the others start from.
    places = pages.read_table("places")["quick" if order.preset == "quick" else "places"]
    return [cell(name, Setting(**own)) for name, own in places.items()]


def _judged(lab: Lab, base: Mapping[str, Any], place: Setting, most: int | None) -> CellResult:
    """One prompt with all rules, and each message's own: the share of what counts that was kept."""

    def judged(assembled: Assembled) -> JudgedPrompters:
        general = assembled.plan.templates.text("instincts").splitlines()
        filler = (general * (place.filled // len(general) + 1))[: place.filled]
        one = policies.FixedPrompt("\n".join([*filler, *place.rules(None)]))
        own = OraclePrompt(lambda e: "\n".join([*filler, *place.rules(e)]), "")
        return {"one": one, "own": own}, place.examples(most)

    found: dict[str, Any] = {}
    for name, row in lab.judge(base, judged).items():
        kept: list[float] = []
        for rollout, own in zip(row.rollouts, row.rewards, strict=True):
            common = float(houserules.check("emoji", rollout.output).satisfied)
            parts = [own] * place.own + [common] * place.common
            kept.append(sum(parts) / len(parts))
        found[name] = {**row_json(row), "rewards": kept}
    return found


def _pays_page(measured: shared.Results) -> pages.Page:
    head = ["messages", "one prompt (95 %)", "own prompt (95 %)", "own - one"]
    head += ["tokens, one", "tokens, own", "pays"]
    blocks: list[pages.Block] = []
    for axis in ("topics", "needed", "common", "filled"):
        rows: list[list[str]] = []
        for name, result in measured.results.items():
            on, _, value = name.partition("-")
            if on != axis:
                continue
            one, own = result["one"], result["own"]
            gain = shared.difference([own["rewards"]], [one["rewards"]])
            pays = "yes" if gain.low > 0 else "no" if gain.high < LITTLE else "not clear"
            found = [pages.shown(shared.score([way["rewards"]])) for way in (one, own)]
            tokens = [f"{way['prompt_tokens']:.0f}" for way in (one, own)]
            seen = str(len(own["rewards"]))
            rows.append([value, seen, *found, pages.shown(gain, signed=True), *tokens, pays])
        if rows:
            blocks.append(pages.PageTable(axis, [axis, *head], rows, shared.text("pays", axis)))
    return shared.framed(measured, TASK, [*blocks, shared.text("pays", "verdict", little=LITTLE)])


WHEN_IT_PAYS = shared.Experiment("when-it-pays", "", _pays_cells, _pays_page, seeds=1)
