"""What rewards say before any training: where their variance lies, and what prompts could gain.

Inputs are answered under each prompt, the first of which is today's; where the executor draws its
answers, some once more: the difference is noise, which a greedy executor has none of. The variance
is split by moments of crossed random effects (inputs x prompts; Searle, Casella and McCulloch 1992,
ch. 5), with a bootstrap over inputs. Three gains are measured:

- one prompt: the best on four fifths of the inputs, on the fifth held out, over today's.

- a router: the outcome router (`routing/outcomes.py`), fitted to the same four fifths, over that.

- an oracle: the best prompt of each input, over that one prompt. The best of noisy answers is too
good: what is apart from an input's mean shrinks to its variance without noise (Louis 1984). No
router that has to generalise reaches it.

Only the first two decide what is said: their intervals err in 2.5 % of cases a side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from promptcodebook.base.intervals import SIDE, Interval, mean_interval
from promptcodebook.errors import import_extra
from promptcodebook.routing.outcomes import OutcomeModel
from promptcodebook.routing.ranking import Ranker, dot
from promptcodebook.types import Outcome

RESAMPLES, FOLDS = 1000, 5
SOURCES = ("input", "prompt", "input x prompt", "noise")
HeadroomAnswer = Literal["routing", "one prompt", "nothing"]


@dataclass(frozen=True, slots=True)
class TriedPrompts:
    """Rewards in [0, 1]: `first` has a row of P for each of `inputs` (text by id), `again` the
    second rewards of the first few of them (none = the executor is greedy). `groups` has the group
    of each input (none = each by itself)."""

    inputs: Mapping[str, str]
    prompts: Sequence[str]
    first: Sequence[Sequence[float]]
    again: Sequence[Sequence[float]] = ()
    groups: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Headroom:
    """`shares` of the variance by source; gains in rewards. `greedy` = no noise by construction."""

    answer: HeadroomAnswer
    sentence: str
    shares: Mapping[str, Interval]
    prompt: Interval
    router: Interval
    oracle: Interval
    prompts: int
    greedy: bool


def split(tried: TriedPrompts, width: float = 1.0, seed: int = 0) -> Headroom:
    """What can be won, where the rewards' range is that wide. Raises MissingExtra without numpy."""
    np: Any = import_extra("numpy", "pco headroom", "router")
    first, again = np.array(tried.first), np.array(tried.again)
    noise = 0.0
    if len(again):
        noise = float(((first[: len(again)] - again) ** 2).mean() / 2)
    single, routed = _chosen(np, tried, first)
    rows = np.arange(len(first))
    one, best = first[rows, single], _without_noise(np, first, noise).max(axis=1)

    def gain(values: Any) -> Interval:
        found = mean_interval(np.round(values, 12).tolist(), (-1.0, 1.0), groups=tried.groups)
        return found.scaled(0.0, width)

    prompt, router = gain(one - first[:, 0]), gain(first[rows, routed] - one)
    oracle = gain(best - one)
    answer: HeadroomAnswer = "nothing"
    if router.low > 0:
        answer = "routing"
    elif prompt.low > 0:
        answer = "one prompt"
    return Headroom(
        answer=answer,
        sentence=_sentence(answer, prompt, router, oracle),
        shares=_shares(np, first, again, seed),
        prompt=prompt,
        router=router,
        oracle=oracle,
        prompts=len(tried.prompts),
        greedy=not len(again),
    )


def _components(np: Any, first: Any, again: Any) -> Any:
    n, p = first.shape
    by_input, by_prompt, mean = first.mean(axis=1), first.mean(axis=0), first.mean()
    apart = first - by_input[:, None] - by_prompt + mean
    both = (apart**2).sum() / ((n - 1) * (p - 1))
    noise = ((first[: len(again)] - again) ** 2).mean() / 2 if len(again) else 0.0
    inputs, prompts = by_input.var(ddof=1) - both / p, by_prompt.var(ddof=1) - both / n
    return np.maximum(np.array([inputs, prompts, both - noise, noise]), 0.0)


def _shares(np: Any, first: Any, again: Any, seed: int) -> dict[str, Interval]:
    """Of the sum of all, with a bootstrap over inputs that is centred at the shares: to draw inputs
    again adds to the variance of prompts. Those answered twice are drawn apart."""
    draw, n, twice = np.random.default_rng(seed), len(first), len(again)

    def shares(first: Any, again: Any) -> Any:
        parts = _components(np, first, again)
        return parts / max(float(parts.sum()), 1e-12)

    found, drawn = shares(first, again), list[Any]()
    for _ in range(RESAMPLES):
        # The first `twice` rows stay those with a second answer.
        rows = [draw.integers(0, twice, twice), draw.integers(twice, n, n - twice)]
        rows = np.concatenate(rows) if twice else rows[1]
        drawn.append(shares(first[rows], again[rows[:twice]] if twice else again))
    ends = np.quantile(drawn, (SIDE, 1 - SIDE), axis=0) - np.mean(drawn, axis=0) + found
    low, high = np.clip(np.minimum(ends[0], found), 0, 1), np.clip(np.maximum(ends[1], found), 0, 1)
    columns = zip(SOURCES, found.tolist(), low.tolist(), high.tolist(), strict=True)
    return {name: Interval(at, below, above, n) for name, at, below, above in columns}


def _without_noise(np: Any, first: Any, noise: float) -> Any:
    """The rewards; what is apart from an input's mean shrinks to its variance without noise."""
    (n, p), by_input, mean = first.shape, first.mean(axis=1)[:, None], first.mean()
    by_prompt = first.mean(axis=0) - mean
    apart = first - by_input - by_prompt
    both, prompts = (apart**2).sum() / ((n - 1) * (p - 1)), by_prompt.var(ddof=1)

    def kept(variance: float, noise: float) -> float:
        return max(0.0, 1 - noise / variance) ** 0.5 if variance > 1e-12 else 0.0

    return by_input + kept(prompts, noise / n) * by_prompt + kept(both, noise) * apart


def _chosen(np: Any, tried: TriedPrompts, first: Any) -> tuple[list[int], list[int]]:
    """For each input the best prompt for all, and a router's; both by the other folds."""
    names, model = list(tried.inputs), OutcomeModel(tried.inputs)
    spelled = [model.vocabulary.spelled(text) for text in tried.prompts]
    like = {x: [round(dot(model.features(x), own), 5) for own in spelled] for x in names}
    versions, single, routed = (0,) * len(spelled), [0] * len(names), [0] * len(names)
    for fold in range(FOLDS):
        inside = range(fold, len(names), FOLDS)
        others = [i for i in range(len(names)) if i not in inside]
        best = int(first[others].mean(axis=0).argmax())
        outcomes = [
            Outcome(names[i], (k,), (0,), (like[names[i]][k],), float(first[i, k]))
            for i in others
            for k in range(len(spelled))
        ]
        ranker = Ranker(model.fit(outcomes, versions).ranking(), tried.prompts)
        for i in inside:
            promised = ranker.of(model.features(names[i])).marginal
            single[i], routed[i] = best, max(range(len(promised)), key=promised.__getitem__)
    return single, routed


def _sentence(answer: HeadroomAnswer, prompt: Interval, router: Interval, oracle: Interval) -> str:
    one, learned = prompt.text(signed=True), router.text(signed=True)
    if answer == "routing":
        return (
            f"Routing could add up to {max(oracle.high, router.mean):+.3f} over the best single "
            f"prompt. On inputs held out a router that learned from the others added {learned}; "
            f"that single prompt gains {one} over today's."
        )
    if answer == "one prompt":
        return (
            f"One better prompt would do: up to {prompt.high:+.3f} over today's. On inputs held "
            f"out it gained {one}; a router that learned from the others added {learned}."
        )
    return (
        f"Nothing to win was seen with these prompts: one of them for all gained {one} over "
        f"today's on inputs held out, and a router that learned from the others added {learned}."
    )
