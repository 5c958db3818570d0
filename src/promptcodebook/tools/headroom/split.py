"""What rewards say before any training: what better prompts could gain.

Inputs are answered under each prompt, the first of which is today's. Two gains are measured:

- one prompt: the best on four fifths of the inputs, on the fifth held out, over today's.

- a router: the outcome router (`routing/outcomes.py`), fitted to the same four fifths, over that.

Their intervals err in 2.5 % of cases a side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from promptcodebook.base.intervals import Interval, mean_interval
from promptcodebook.errors import import_extra
from promptcodebook.routing.outcomes import OutcomeModel
from promptcodebook.routing.ranking import Ranker, dot
from promptcodebook.types import Outcome

FOLDS = 5
HeadroomAnswer = Literal["routing", "one prompt", "nothing"]


@dataclass(frozen=True, slots=True)
class TriedPrompts:
    """Rewards in [0, 1]: `rewards` has a row of P for each of `inputs` (text by id), `groups` the
    group of each input (none = each by itself)."""

    inputs: Mapping[str, str]
    prompts: Sequence[str]
    rewards: Sequence[Sequence[float]]
    groups: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Headroom:
    """What there is to win, and the gains in rewards."""

    answer: HeadroomAnswer
    sentence: str
    prompt: Interval
    router: Interval
    prompts: int


def split(tried: TriedPrompts, width: float = 1.0) -> Headroom:
    """What can be won, where the rewards' range is that wide. Raises MissingExtra without numpy."""
    np: Any = import_extra("numpy", "pco headroom", "router")
    rewards = np.array(tried.rewards)
    single, routed = _chosen(tried, rewards)
    rows = np.arange(len(rewards))
    one = rewards[rows, single]

    def gain(values: Any) -> Interval:
        found = mean_interval(np.round(values, 12).tolist(), (-1.0, 1.0), groups=tried.groups)
        return found.scaled(0.0, width)

    prompt, router = gain(one - rewards[:, 0]), gain(rewards[rows, routed] - one)
    answer: HeadroomAnswer = "nothing"
    if router.low > 0:
        answer = "routing"
    elif prompt.low > 0:
        answer = "one prompt"
    return Headroom(answer, _sentence(answer, prompt, router), prompt, router, len(tried.prompts))


def _chosen(tried: TriedPrompts, rewards: Any) -> tuple[list[int], list[int]]:
    """For each input the best prompt for all, and a router's; both by the other folds."""
    names, model = list(tried.inputs), OutcomeModel(tried.inputs)
    spelled = [model.vocabulary.spelled(text) for text in tried.prompts]
    like = {x: [round(dot(model.features(x), own), 5) for own in spelled] for x in names}
    versions, single, routed = (0,) * len(spelled), [0] * len(names), [0] * len(names)
    for fold in range(FOLDS):
        inside = range(fold, len(names), FOLDS)
        others = [i for i in range(len(names)) if i not in inside]
        best = int(rewards[others].mean(axis=0).argmax())
        outcomes = [
            Outcome(names[i], (k,), (0,), (like[names[i]][k],), float(rewards[i, k]))
            for i in others
            for k in range(len(spelled))
        ]
        ranker = Ranker(model.fit(outcomes, versions).ranking(), tried.prompts)
        for i in inside:
            promised = ranker.of(model.features(names[i])).marginal
            single[i], routed[i] = best, max(range(len(promised)), key=promised.__getitem__)
    return single, routed


def _sentence(answer: HeadroomAnswer, prompt: Interval, router: Interval) -> str:
    one, learned = prompt.text(signed=True), router.text(signed=True)
    if answer == "routing":
        return (
            f"Routing would pay. On held-out inputs, a router trained on the other inputs added "
            f"{learned} over the best single prompt; that prompt gains {one} over today's."
        )
    if answer == "one prompt":
        return (
            f"One better prompt would do: up to {prompt.high:+.3f} over today's. On held-out "
            f"inputs, it gained {one}; a router trained on the other inputs added {learned}."
        )
    return (
        f"No gain was found with these prompts. On held-out inputs, the best one gained {one} over "
        f"today's, and a router trained on the other inputs added {learned}."
    )
