"""The test split, example by example: what the result won and lost against the present prompt, the
prompts that the verdict compared, and how its result is put to use."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcodebook.optimizers.fixed import UNTRAINED
from promptcodebook.report.context import Context, Section
from promptcodebook.report.traces import parts_of, reward_text
from promptcodebook.run.verdict import read_rows
from promptcodebook.store.events import Amended, Compared, Event, RunState, Started, Stepped
from promptcodebook.text import shorten
from promptcodebook.types import Codebook, Evaluation, Rollout
from promptcodebook.units import number, plural

UNJUDGED = "It is not judged to its end yet, so there is no result to set beside the first row."
"""Said where rows are judged and no verdict is reached."""

MOST, _OF_A_KIND = 12, 5
"""Test examples shown, and wins or losses among them while there are enough of the other."""
_TITLE = 160


@dataclass(frozen=True, slots=True)
class Pair:
    """One test example under two rows; `difference` is the second's reward less the first's, where
    a failed one counts as the bottom of the range."""

    first: Rollout
    second: Rollout
    difference: float

    @property
    def outcome(self) -> str:
        """'win', 'loss' or 'tie', of the second."""
        if not self.difference:
            return "tie"
        return "win" if self.difference > 0 else "loss"


def pairs_of(first: Evaluation, second: Evaluation) -> tuple[Pair, ...]:
    """The examples that both have: wins first, the greatest difference before the others, then
    losses, then ties."""
    earlier = {r.example_id: (r, x) for r, x in zip(first.rollouts, first.rewards, strict=True)}
    pairs = [
        Pair(earlier[r.example_id][0], r, x - earlier[r.example_id][1])
        for r, x in zip(second.rollouts, second.rewards, strict=True)
        if r.example_id in earlier
    ]
    order = {"win": 0, "loss": 1, "tie": 2}
    return tuple(sorted(pairs, key=lambda pair: (order[pair.outcome], -abs(pair.difference))))


def result_of(state: RunState, rows: Sequence[Evaluation]) -> Evaluation | None:
    """The row that the verdict is about, its last; None until there is a verdict: whichever row was
    judged latest is no result. Raises StoreError where the stored verdict is damaged."""
    name = _result_name(state)
    return next((row for row in rows[::-1] if row.name == name), None)


def _result_name(state: RunState) -> str | None:
    rows = read_rows(state.conclusion.rows) if state.conclusion is not None else ()
    return rows[-1].name if rows else None


class JudgedSection(Section):
    """Keeps two rows of the verdict: the one that gains are measured from, and the result."""

    title = "Test examples"
    anchor = "test"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._rows: list[Evaluation] = []
        self._first = Codebook(())
        self._result = _result_name(context.state)

    def add(self, event: Event) -> None:
        match event:
            case Started(parameters):
                self._first = parameters.codebook
            case Compared(evaluation):
                if not self._rows or evaluation.name == self._result:
                    self._rows[1:] = [evaluation]
            case Stepped() | Amended(extended=True):
                self._rows = []
            case _:
                pass

    def values(self) -> Mapping[str, Any]:
        if self._rows and self.context.state.conclusion is None:
            return {"empty": UNJUDGED}
        if len(self._rows) < 2:
            return {"empty": "Nothing was compared on the test split yet."}
        base, result = self._rows
        pairs = pairs_of(base, result)
        chosen = _choose(pairs)
        return {
            "empty": "",
            "note": f"{result.name} against {base.name} on {plural(len(pairs), 'test example')}: "
            f"{tally(pairs)}. Shown here, a sample: {tally(chosen)}, the greatest differences "
            "first.",
            "examples": [self._example(pair, base.name, result.name) for pair in chosen],
        }

    def _example(self, pair: Pair, first: str, second: str) -> Mapping[str, Any]:
        name, context = pair.second.example_id, self.context
        known = context.inputs.get(name, "")
        sides = ((first, pair.first), (second, pair.second))
        return {
            "outcome": pair.outcome,
            "title": shorten(" ".join((known or name).split()), _TITLE),
            "change": " → ".join(number(r.reward, 2, missing="failed") for _, r in sides),
            "parts": [("example", name), *([("input", known)] if known else [])],
            "sides": [
                (
                    f"{row}: {reward_text(r)}",
                    parts_of(r, context.instincts_of(row, r, self._first), context.own_words),
                )
                for row, r in sides
            ],
        }


def _choose(pairs: tuple[Pair, ...]) -> list[Pair]:
    """Wins and losses in equal parts, then whatever there is."""
    wins = [pair for pair in pairs if pair.outcome == "win"]
    losses = [pair for pair in pairs if pair.outcome == "loss"]
    ties = [pair for pair in pairs if pair.outcome == "tie"]
    first = [*wins[:_OF_A_KIND], *losses[:_OF_A_KIND]]
    rest = [*wins[_OF_A_KIND:], *losses[_OF_A_KIND:], *ties]
    chosen = [*first, *rest[: MOST - len(first)]]
    return [pair for pair in pairs if pair in chosen]


def tally(pairs: Sequence[Pair]) -> str:
    """'2 wins, 1 loss, 0 ties'."""
    return ", ".join(
        plural(sum(p.outcome == kind for p in pairs), kind, nouns)
        for kind, nouns in (("win", "wins"), ("loss", "losses"), ("tie", "ties"))
    )


class PromptsSection(Section):
    """The text of every row of the verdict that is one prompt for all inputs."""

    title = "Prompts compared"
    anchor = "prompts"

    def values(self) -> Mapping[str, Any]:
        conclusion, present = self.context.state.conclusion, self.context.header.present
        rows = read_rows(conclusion.rows) if conclusion is not None else ()
        known = [(row.name, row.title, row.prompt) for row in rows if row.prompt is not None]
        if not known and present is not None:
            known = [("present", "", present)]
        return {"prompts": known}


class UseSection(Section):
    """What to type to put the result to work, by what the verdict says."""

    title = "How to use this result"
    anchor = "use"

    def values(self) -> Mapping[str, Any]:
        conclusion = self.context.state.conclusion
        rows = read_rows(conclusion.rows) if conclusion is not None else ()
        rows = [row for row in rows if not row.reference]
        deploy = conclusion.deploy if conclusion is not None and rows else ""
        learned = bool(rows) and deploy == rows[-1].name and self.context.deployed is not None
        return {
            "concluded": conclusion is not None,
            "deploy": deploy,
            "kind": "learned" if learned else "untrained" if deploy == UNTRAINED else "prompt",
            "typed": f"pco prompt {self.context.header.id} --row {shlex.quote(deploy)}",
        }
