"""A reward tried on the user's own rows, before anything is paid for: what it gives a row's own
reference, those of other rows, an empty answer, and one that lists every label."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from promptcodebook.errors import RewardError
from promptcodebook.tasks.rewards.reading import accepted_answers
from promptcodebook.types import Example, Output, Score

OWN, OTHERS, EMPTY, EVERYTHING = (
    "its reference",
    "the references of other rows",
    "an empty answer",
    "all labels at once",
)
_OTHERS, _MOST_LABELS = 3, 500
# Of what the reference earns: who gives a wrong answer as much cannot tell them apart.
_AS_MUCH = 0.9


@dataclass(frozen=True, slots=True)
class RewardTable:
    """The mean reward by the kind of answer; None: the reward failed on such an answer."""

    means: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    low: float = 0.0

    @property
    def fault(self) -> str:
        """Why the reward cannot tell a right answer from a wrong one; '' = it can."""
        own = self.means.get(OWN, self.low)
        if not self.means:
            return ""
        if own is None or own <= self.low:
            given = "fails on" if own is None else f"gives {own:g} to"
            return f"it {given} the references themselves"
        for kind in (OTHERS, EMPTY, EVERYTHING):
            value = self.means.get(kind)
            if value is not None and value - self.low >= _AS_MUCH * (own - self.low):
                return f"it gives {value:g} to {kind}, and {own:g} to the reference"
        return ""


async def try_on_rows(
    score: Callable[[Example, Output], Awaitable[Score]],
    examples: Sequence[Example],
    *,
    rows: int,
    low: float = 0.0,
) -> RewardTable:
    """What the reward gives on `rows` of the examples that have a reference, spread over all."""

    async def tried(example: Example, answer: str) -> float | None:
        try:
            return (await score(example, Output(answer))).value
        except RewardError:
            return None

    known = [each for each in examples if each.target is not None]
    texts = {each.id: accepted_answers(each.target or "")[0] for each in known}
    different = list(dict.fromkeys(texts.values()))
    # References that repeat are labels, and an answer that lists all has each.
    labels = len(different) <= min(len(known) // 2, _MOST_LABELS)
    given = dict[str, list[float | None]]()
    for example in known[:: max(1, len(known) // max(1, rows))][:rows]:
        own = texts[example.id]
        at = different.index(own)
        others = [text for text in different[at + 1 :] + different[:at]][:_OTHERS]
        answers = [(OWN, own), *((OTHERS, text) for text in others), (EMPTY, "")]
        answers += [(EVERYTHING, ", ".join(different))] if labels and others else []
        for kind, answer in answers:
            value = await tried(example, answer)
            if kind == OWN and example.target not in (own, None) and value is not None:
                # A list holds answers of which any is right, or labels that all are asked for.
                value = max(value, await tried(example, example.target) or low)
            given.setdefault(kind, []).append(value)
    means = {
        kind: None if None in values else fmean(value for value in values if value is not None)
        for kind, values in given.items()
    }
    return RewardTable(means, low)
