"""A router that learns from outcomes, in place of E_θ (method decision 26, beyond the paper).

In training each example's route is drawn: `_DRAWS` draws from the posterior of what each instinct
adds (`outcomes.py`) make as many routes, each the best under its draw; with probability 1 - η one
of them is taken (Thompson sampling), with η a set drawn uniformly, its size first. So the chance
that a route had is known exactly given the draws, (1 - η)·share + η·uniform, and is logged with it:
an off-policy estimate needs it (`offpolicy.py`). With `router.explore: upper` there is one route
instead of the draws', the best by upper bounds. All is keyed by seed, step and example.

What is learned stands in `Step.ranking`; the outcomes themselves are the traces of the steps, so a
run that goes on reads them back (`recall`).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from promptcodebook.calls import Usage
from promptcodebook.config import RouterSettings
from promptcodebook.method.outcomes import Outcome, OutcomeModel, Posterior
from promptcodebook.method.ranking import Features, chosen, dot
from promptcodebook.method.state import State
from promptcodebook.randomness import Draws
from promptcodebook.types import Codebook, Example, Route, Step, Trace

__all__ = ["OutcomeRouter", "outcomes_of", "recall"]

_DRAWS = 64
"""Posterior draws for an example."""
_BLAME = 0.25
"""Weight of what a critic lays at an instinct, beside a reward's 1."""


def outcomes_of(model: OutcomeModel, before: State, traces: Sequence[Trace]) -> list[Outcome]:
    """What a batch that ran under `before` teaches: its rewards, and what instincts were blamed."""
    texts = _Texts(model, before.parameters.codebook)
    outcomes: list[Outcome] = []
    for trace in traces:
        route = trace.rollout.route
        if trace.unit is None or route is None:
            continue
        features = model.features(trace.rollout.example_id)
        like = texts.likeness(features)
        whole = Outcome(
            trace.rollout.example_id,
            route.indices,
            tuple(before.versions[k] for k in route.indices),
            tuple(like[k] for k in route.indices),
            trace.unit,
            propensity=route.propensity,
        )
        outcomes.append(whole)
        outcomes += [
            replace(
                whole,
                indices=(k,),
                versions=(before.versions[k],),
                likeness=(like[k],),
                reward=-severity,
                weight=_BLAME,
                part=True,
            )
            for k, severity in sorted(_blamed(trace).items())
        ]
    return outcomes


def _blamed(trace: Trace) -> Mapping[int, float]:
    """ρ of each instinct that is blamed: of the codebook's severity, where it was given, else of
    the whole penalty, an even share."""
    named = [k for k, text in trace.gradients.codebook.items() if text]
    if not named or not trace.penalty:
        return {}
    severity = trace.gradients.severity.get("codebook", trace.penalty)
    return {k: severity / len(named) for k in named} if severity else {}


class _Texts:
    """How like an input each instinct's text is."""

    def __init__(self, model: OutcomeModel, codebook: Codebook) -> None:
        self._features = [model.vocabulary.features(text) for text in codebook.texts]

    def likeness(self, features: Features) -> list[float]:
        return [round(dot(features, own), 5) for own in self._features]


def recall(router: OutcomeRouter, first: State, steps: Iterable[Step]) -> State:
    """The state after stored steps, their traces with them, as training left it."""
    state = router.begin(first)
    for step in steps:
        state = router.note(state, step.traces, State.after(step))
    return state


@dataclass(frozen=True)
class _Fitted:
    """The last fit, by what it was made of: a batch's examples share one."""

    outcomes: tuple[Outcome, ...]
    versions: tuple[int, ...]
    posterior: Posterior


class OutcomeRouter:
    """Draws routes in training and learns from what came of them."""

    def __init__(self, settings: RouterSettings, select: int, model: OutcomeModel) -> None:
        self._settings = settings
        self._select = select
        self.model = model
        self._fitted: _Fitted | None = None
        self._texts: tuple[Codebook, _Texts] | None = None

    def begin(self, state: State) -> State:
        """A state that nothing was learned in yet."""
        return replace(state, outcomes=(), versions=(0,) * len(state.parameters.codebook))

    async def route(
        self, example: Example, state: State, epsilon: float, draws: Draws
    ) -> tuple[Route, Usage]:
        """A drawn route with its propensity; `explored` = it is not the one that ranks first."""
        state = state if state.versions else self.begin(state)
        posterior = self._posterior(state)
        features = self.model.vocabulary.features(example.input)
        like = self._likeness(state.parameters.codebook, features)
        settings, select = self._settings, self._select
        adding = posterior.at(features, like)
        if settings.explore == "upper":
            parts = [adding.upper(settings.scale)]
        else:
            parts = adding.draws(_DRAWS, draws.sample("route draws"), settings.scale)
        routes = [chosen(own, more, select, settings.least) for own, more in parts]
        draw = draws.generator("route")
        size = len(state.parameters.codebook)
        if draw.random() < settings.floor:
            indices = _uniform(draw, size, select, settings.least)
        else:
            indices = routes[draw.randrange(len(routes))]
        share = Counter(routes)[indices] / len(routes)
        uniform = _chance(len(indices), size, select, settings.least)
        own, more = adding.means
        best = chosen(own, more, select, settings.least)
        return (
            Route(
                indices,
                explored=indices != best,
                propensity=round((1 - settings.floor) * share + settings.floor * uniform, 9),
            ),
            Usage(),
        )

    def learn(self, before: State, traces: Sequence[Trace], after: State) -> State:
        """`after` with the traces' outcomes and the ranking that follows from all so far."""
        before = before if before.versions else self.begin(before)
        state = self.note(before, traces, after)
        ranking = self._posterior(state).ranking(self._settings.least)
        return replace(state, statistics=replace(state.statistics, ranking=ranking))

    def note(self, before: State, traces: Sequence[Trace], after: State) -> State:
        """`after` with all outcomes so far; no fit."""
        texts = zip(before.parameters.codebook.texts, after.parameters.codebook.texts, strict=True)
        versions = tuple(
            version + (old != new)
            for version, (old, new) in zip(before.versions, texts, strict=True)
        )
        new = outcomes_of(self.model, before, traces)
        return replace(after, outcomes=(*before.outcomes, *new), versions=versions)

    def _posterior(self, state: State) -> Posterior:
        fitted = self._fitted
        if (
            fitted is None
            or fitted.outcomes is not state.outcomes
            or fitted.versions != state.versions
        ):
            posterior = self.model.fit(state.outcomes, state.versions)
            fitted = self._fitted = _Fitted(state.outcomes, state.versions, posterior)
        return fitted.posterior

    def _likeness(self, codebook: Codebook, features: Features) -> list[float]:
        if self._texts is None or self._texts[0] is not codebook:
            self._texts = codebook, _Texts(self.model, codebook)
        return self._texts[1].likeness(features)


def _uniform(draw: random.Random, size: int, select: int, least: int) -> tuple[int, ...]:
    """A set of `least` to `select` instincts: its size uniformly, then its members."""
    return tuple(sorted(draw.sample(range(size), draw.randint(least, select))))


def _chance(count: int, size: int, select: int, least: int) -> float:
    """The chance of any one set of `count` under `_uniform`."""
    return 1.0 / (select - least + 1) / math.comb(size, count)
