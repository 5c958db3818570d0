"""What was learned: each instinct of the deployed codebook with the inputs that get it, what it
earns, the words that lead to it, and its way from the first text through every rewrite. Of another
optimizer: the prompts that it tried."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from markupsafe import Markup

from promptcodebook.base.text import shorten
from promptcodebook.base.units import number, percent
from promptcodebook.errors import PolicyError
from promptcodebook.method.state import State, entropy, utilisation
from promptcodebook.policy.file import PRESENT, read_policy_file
from promptcodebook.policy.references import POLICY
from promptcodebook.report.context import Context, ReportSection, state_name, step_name
from promptcodebook.report.pages import render
from promptcodebook.routing.ranking import leading_words
from promptcodebook.store.effects import InstinctReward, instinct_rewards
from promptcodebook.store.events import Amended, Compared, Event, Started, Stepped
from promptcodebook.types import Evaluation, Parameters, Rewrite, Variable

LEARNED = "learned"  # the verdict's row of the learned policy
OPEN, INPUTS = 6, 3  # instincts that are shown open, and inputs of each
FIRST, LAST, REFUSED = 6, 14, 4  # Rewrites of a variable shown, on either side of the mark.
MOST_MARKUP = 5_000_000  # Characters that the section may have.


class _Most(NamedTuple):
    first: int
    last: int
    refused: int


# Fewer where the section would be too large to be mailed.
_SHARES = (_Most(FIRST, LAST, REFUSED), _Most(3, 5, 2), _Most(1, 2, 1), _Most(1, 1, 1))
_Dated = tuple[int, Rewrite]  # A rewrite with its step.


@dataclass
class _Stretch:
    """Kept rewrites: all are counted, the first and the latest remembered."""

    first: list[_Dated] = field(default_factory=list[_Dated])
    last: deque[_Dated] = field(default_factory=lambda: deque[_Dated](maxlen=LAST))
    count: int = 0

    def add(self, dated: _Dated) -> None:
        self.count += 1
        (self.first if len(self.first) < FIRST else self.last).append(dated)

    def shown(self, most: _Most) -> tuple[list[_Dated], int, list[_Dated]]:
        """The first, how many are left out, and the latest."""
        first = self.first[: most.first]
        latest = [*self.first[most.first :], *self.last][-most.last :]
        return first, self.count - len(first) - len(latest), latest


@dataclass
class _Biography:
    """One variable up to the deployed state and after it."""

    deployed: _Stretch = field(default_factory=_Stretch)
    later: _Stretch = field(default_factory=_Stretch)
    refused: deque[_Dated] = field(default_factory=lambda: deque[_Dated](maxlen=REFUSED))
    reasons: Counter[str] = field(default_factory=lambda: Counter[str]())

    def add(self, dated: _Dated, *, deployed: bool) -> None:
        if dated[1].kept:
            (self.deployed if deployed else self.later).add(dated)
            return
        # Up to the first colon, so that equal kinds are counted together.
        kind = dated[1].reason.partition(":")[0].strip() or "no reason given"
        self.reasons[shorten(kind, 120)] += 1
        self.refused.append(dated)

    def tally(self) -> str:
        """'5 kept (2 not deployed), 1 refused'."""
        kept, refused = self.deployed.count + self.later.count, self.reasons.total()
        later = f" ({self.later.count} not deployed)" if self.later.count else ""
        words = [f"{kept} kept{later}" if kept else "never rewritten"]
        words += [f"{refused} refused"] if refused else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class LearnedInstinct:
    """An instinct at work: the test `inputs` that get it, by example id, one of each group first,
    then those that get few others; the mean reward of the present prompt on them; the `words` that
    lead the router to it."""

    index: int
    reward: InstinctReward
    inputs: tuple[str, ...]
    present: float | None
    words: Sequence[str]


class LearnedSection(ReportSection):
    """Every instinct, those first that most test inputs get; then the three directives."""

    title, anchor = "What was learned", "learned"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._deployed = context.deployed_as.step
        self._biographies: dict[Variable, _Biography] = {}
        self._start: Parameters | None = None
        self._origin = ""
        self._tests: dict[str, Evaluation] = {}

    def add(self, event: Event) -> None:
        match event:
            case Started(parameters, origin):
                self._start, self._origin = parameters, origin
            case Stepped(step):
                self._tests = {}
                for rewrite in step.rewrites:
                    biography = self._biographies.setdefault(rewrite.variable, _Biography())
                    biography.add((step.index, rewrite), deployed=step.index <= self._deployed)
            case Amended(extended=True):
                self._tests = {}
            case Compared(evaluation):
                self._tests[evaluation.name] = evaluation
            case _:
                pass

    def render(self) -> Markup:
        context, shown = self.context, Markup()
        if context.deployed is None or self._start is None:
            return shown
        values = self._values(context.deployed)
        for most in _SHARES:
            shown = render("report/templates/learned.html.jinja", **values, most=most)
            if len(shown) <= MOST_MARKUP:
                break
        return shown

    def _values(self, deployed: State) -> dict[str, Any]:
        context, best = self.context, self.context.deployed_as
        texts = self._start.texts if self._start else {}
        selected = deployed.statistics.selected
        score = (
            "the last one" if best.score is None else f"best on validation, {number(best.score)}"
        )
        instincts = sorted(self._instincts(), key=lambda each: -len(each.inputs))
        used = [each for each in instincts if each.inputs] or instincts
        return {
            "context": context,
            "texts": texts,
            "origin": self._origin,
            "judged": LEARNED in self._tests and len(self._tests[LEARNED].rollouts),
            "open": used[:OPEN],
            "closed": [each for each in instincts if each not in used[:OPEN]],
            "selected": selected,
            "deployed": state_name(self._deployed),
            "score": score,
            "biographies": {v: self._biographies.get(v, _Biography()) for v in texts},
            "step_name": step_name,
            "inputs": INPUTS,
            "sums": f"The routes have an entropy of {number(entropy(selected), 2)} bits; "
            f"{sum(map(bool, selected))} of {len(selected)} instincts were tried in training "
            f"(utilisation {percent(utilisation(selected))}).",
        }

    def _instincts(self) -> list[LearnedInstinct]:
        context, texts, digest = self.context, self.context.codebook.texts, ""
        with suppress(PolicyError):  # it wrote none yet
            digest = read_policy_file(context.path / POLICY).digest
        rewards = instinct_rewards(
            context.path, context.header, digest, texts, self._tests.values()
        )
        ranking = context.deployed.statistics.ranking if context.deployed else None
        words: Sequence[Sequence[str]] = [()] * len(texts)
        if ranking is not None:
            words = leading_words(ranking, texts, [e.input for e in context.examples.values()])
        learned, present = self._tests.get(LEARNED), self._tests.get(PRESENT)
        before = {r.example_id: r.reward for r in present.rollouts} if present else {}
        names = [r.example_id for r in learned.rollouts] if learned else []
        groups = dict(zip(names, (learned.groups if learned else ()) or names, strict=True))
        made = list[LearnedInstinct]()
        for k, reward in enumerate(rewards):
            rollouts = learned.rollouts if learned else ()
            held = [(r.route.indices, r) for r in rollouts if r.route and k in r.route.indices]
            held.sort(key=lambda each: len(each[0]))
            firsts = {groups[r.example_id]: r.example_id for _, r in reversed(held)}.values()
            inputs = sorted((r.example_id for _, r in held), key=lambda name: name not in firsts)
            both = [before.get(r.example_id) for _, r in held if r.reward is not None]
            known = [earned for earned in both if earned is not None]
            present_mean = fmean(known) if known else None
            made.append(LearnedInstinct(k, reward, tuple(inputs), present_mean, words[k]))
        return made


class CandidatesSection(ReportSection):
    """The prompts that another optimizer tried, once there is a verdict."""

    title, anchor, folded = "Prompts tried", "candidates", True

    def values(self) -> Mapping[str, Any] | None:
        concluded = self.context.state.conclusion
        return {"candidates": concluded.candidates} if concluded and concluded.candidates else None
