"""The test split, example by example: what the result won and lost against the present prompt, the
prompts that the verdict compared, and how its result is put to use."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from promptcodebook.optimizers.fixed import UNTRAINED
from promptcodebook.report.context import Context
from promptcodebook.report.html import Content, Html, el, together
from promptcodebook.report.traces import part, pre, reward_text, rollout_parts
from promptcodebook.run.verdict import Row, read_rows
from promptcodebook.store.events import Amended, Compared, Event, RunState, Started, Stepped
from promptcodebook.text import shorten
from promptcodebook.types import Codebook, Evaluation, Rollout
from promptcodebook.units import number, plural

UNJUDGED = "It is not judged to its end yet, so there is no result to set beside the first row."
"""Said where rows are judged and no verdict is reached."""

MOST, _OF_A_KIND = 12, 5
"""Test examples shown, and wins or losses among them while there are enough of the other."""
_TITLE = 160
_PROMPT = 20_000
"""Characters of a compared prompt that are shown."""


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


class JudgedSection:
    """Keeps two rows of the verdict: the one that gains are measured from, and the result."""

    title = "Test examples"
    anchor = "test"

    def __init__(self, context: Context) -> None:
        self._context = context
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

    def render(self) -> Html:
        if self._rows and self._context.state.conclusion is None:
            return el("p.empty", UNJUDGED)
        if len(self._rows) < 2:
            return el("p.empty", "Nothing was compared on the test split yet.")
        base, result = self._rows
        pairs = pairs_of(base, result)
        chosen = _choose(pairs)
        counts = {kind: sum(p.outcome == kind for p in pairs) for kind in ("win", "loss", "tie")}
        shown = {kind: sum(p.outcome == kind for p in chosen) for kind in counts}
        note = (
            f"{result.name} against {base.name} on {plural(len(pairs), 'test example')}: "
            f"{_tally(counts)}. Shown here, a sample: {_tally(shown)}, the greatest differences "
            "first. Texts that are very long are cut in their middle, and say so."
        )
        badge = " All models here are simulated." if self._context.simulated else ""
        names = (base.name, result.name)
        return together(el("p.note", note + badge), [self._example(p, names) for p in chosen])

    def _example(self, pair: Pair, names: tuple[str, str]) -> Html:
        known = self._context.inputs.get(pair.second.example_id)
        title = shorten(" ".join((known or pair.second.example_id).split()), _TITLE)
        change = f"{_reward(pair.first)} → {_reward(pair.second)}"
        return el(
            "details.example",
            el(
                "summary",
                el("span.what", el(f"span.tag.{pair.outcome}", pair.outcome), " ", title),
                el("span.tally", change),
            ),
            el(
                "dl.trace",
                part("example", pair.second.example_id),
                part("input", None if known is None else pre(known)),
            ),
            [self._side(name, r) for name, r in zip(names, (pair.first, pair.second), strict=True)],
        )

    def _side(self, name: str, rollout: Rollout) -> Html:
        texts = self._context.instincts_of(name, rollout, self._first)
        heading = el("h4", f"{name}: {reward_text(rollout)}")
        return el(
            "div.side",
            heading,
            el("dl.trace", rollout_parts(rollout, texts, self._context.own_words)),
        )


def _choose(pairs: tuple[Pair, ...]) -> list[Pair]:
    """Wins and losses in equal parts, then whatever there is."""
    wins = [pair for pair in pairs if pair.outcome == "win"]
    losses = [pair for pair in pairs if pair.outcome == "loss"]
    ties = [pair for pair in pairs if pair.outcome == "tie"]
    first = [*wins[:_OF_A_KIND], *losses[:_OF_A_KIND]]
    rest = [*wins[_OF_A_KIND:], *losses[_OF_A_KIND:], *ties]
    chosen = [*first, *rest[: MOST - len(first)]]
    return [pair for kind in (wins, losses, ties) for pair in kind if pair in chosen]


def _tally(counts: dict[str, int]) -> str:
    return ", ".join(
        plural(counts[kind], kind, nouns)
        for kind, nouns in (("win", "wins"), ("loss", "losses"), ("tie", "ties"))
    )


def _reward(rollout: Rollout) -> str:
    return "failed" if rollout.reward is None else number(rollout.reward, 2)


class PromptsSection:
    """The text of every row of the verdict that is one prompt for all inputs."""

    title = "Prompts compared"
    anchor = "prompts"

    def __init__(self, context: Context) -> None:
        self._context = context

    def add(self, event: Event) -> None:
        """The conclusion is part of the run's state: nothing to gather."""

    def render(self) -> Html:
        texts = self._texts()
        if not texts:
            return el("p.empty", "No prompt that is the same for all inputs is on record.")
        if self._context.header.private:
            return el(
                "p.note", "Left out: the run's data are private, and a prompt may quote them."
            )
        return together(
            el("p.note", "One text for every input each. The learned policy composes its own."),
            [
                el(
                    "details.prompt",
                    el(
                        "summary",
                        el("span.what", title),
                        el("span.tally", plural(len(text), "character")),
                    ),
                    el("pre", shorten(text, _PROMPT))
                    if text
                    else el("p.empty", "(no prompt at all)"),
                )
                for title, text in texts
            ],
        )

    def _texts(self) -> list[tuple[Content, str]]:
        conclusion = self._context.state.conclusion
        rows = read_rows(conclusion.rows) if conclusion is not None else ()
        known = [(_name(row), row.prompt) for row in rows if row.prompt is not None]
        if known or self._context.header.present is None:
            return known
        return [("present", self._context.header.present)]


def _name(row: Row) -> Content:
    return together(el("b", row.name), f": {row.title}" if row.title else None)


class UseSection:
    """What to type to put the result to work, by what the verdict says."""

    title = "How to use this result"
    anchor = "use"

    def __init__(self, context: Context) -> None:
        self._context = context

    def add(self, event: Event) -> None:
        """The conclusion is part of the run's state: nothing to gather."""

    def render(self) -> Html:
        conclusion, run = self._context.state.conclusion, self._context.header.id
        if conclusion is None:
            todo = self._context.next
            return together(
                el("p.note", "There is no verdict to go by yet."),
                _commands([(todo, "resumes it")]) if todo else None,
            )
        rows = [row for row in read_rows(conclusion.rows) if not row.reference]
        if not conclusion.deploy or not rows:
            return together(
                el("p.note", "The verdict names nothing to deploy. What was learned can be read:"),
                _commands([(f"pco codebook show {run}", "the codebook")]),
            )
        if conclusion.deploy == rows[-1].name and self._context.deployed is not None:
            return together(el("p", "Deploy the learned policy."), _commands(_learned(run)))
        typed = f"pco prompt {run} --row {shlex.quote(conclusion.deploy)}"
        if conclusion.deploy == UNTRAINED:
            return together(
                el("p", "Deploy the codebook as it was before training."),
                _commands([(f'{typed} "an input"', "the prompt that it composes for an input")]),
            )
        return together(
            el("p", "Deploy one prompt for all inputs: ", el("b", conclusion.deploy), "."),
            _commands([(typed, "prints it, alone")]),
        )


def _learned(run: str) -> list[tuple[str, str]]:
    return [
        (f'pco prompt {run} "an input"', "the prompt that it composes for an input"),
        (f'pco explain {run} "an input"', "the same with the route and the reasons"),
        (f"pco serve {run}", "an OpenAI-compatible endpoint that prompts with it"),
        (f"pco batch {run} IN.jsonl OUT.jsonl", "every row of a file with its answer"),
        (f"pco codebook freeze {run} NAME", "keeps it as a version that never changes"),
    ]


def _commands(lines: list[tuple[str, str]]) -> Html:
    return el("dl.commands", [el("div", el("dt", el("code", c)), el("dd", w)) for c, w in lines])
