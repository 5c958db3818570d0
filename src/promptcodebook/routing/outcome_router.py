"""A router that learns from outcomes, in place of E_θ (method decision 26, beyond the paper). In
training each example's route is drawn. `_DRAWS` draws from the posterior of what each instinct adds
(`outcomes.py`) give as many routes, each the best under its draw. With probability 1 - η one of
them is taken (Thompson sampling), with η a uniform set. `Step.ranking` holds what is learned; a
resumed run reads the outcomes back from the traces of its steps (`recall`).

An input's first route at temperature 0 is uniform; later ones are the best near a draw that it has
not tried, and draws spread by 0.2 of the posterior's there, elsewhere by 1. A solved input gives
its place in a batch to an unsolved one, by lot. Seed, step and example key the draws."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from promptcodebook.base.randomness import Draws
from promptcodebook.calls import LM, Tree, Usage
from promptcodebook.config import Config
from promptcodebook.config.schema import RoleSettings, RouterSettings
from promptcodebook.method.exploration import RoutedCall, Router
from promptcodebook.method.failures import gather_all
from promptcodebook.method.policy import Composer
from promptcodebook.method.state import State
from promptcodebook.routing.outcomes import OutcomeModel, Posterior
from promptcodebook.routing.ranking import Embedder, Features, chosen, dot
from promptcodebook.types import Codebook, Example, Expected, Outcome, Route, Step, Trace

RouteIndices = tuple[int, ...]
_DRAWS, _BLAME = 64, 0.25  # posterior draws for an example; the weight of blame beside a reward's 1
# The share of words and letters in an input's features.
_WORDS = {"words": 1.0, "embeddings": 0.0, "both": 0.5}


def make_router(config: Config, examples: Sequence[Example], composer: Composer, lm: LM) -> Router:
    """The router for the training examples. Raises MissingExtra when the settings need an optional
    dependency."""
    if not config.learns_routes:
        return Router(composer, config.explore, always=config.encoder.mode == "none")
    steady = config.roles.get("executor", RoleSettings()).temperature == 0.0
    repeats = not steady if config.router.repeats == "auto" else config.router.repeats == "yes"
    embedder = None if config.router.features == "words" else Embedder(lm)
    inputs = {example.id: example.input for example in examples}
    model = OutcomeModel(inputs)
    media = {example.id: example.media for example in examples if config.router.images}
    return OutcomeRouter(config.router, config.select, model, repeats, embedder, media)


def outcomes_of(model: OutcomeModel, before: State, traces: Sequence[Trace]) -> list[Outcome]:
    """What a batch that ran under `before` teaches: its rewards, and an even share of the
    codebook's severity (or of the whole penalty) for each instinct that was blamed."""
    texts = spelled(model, before.parameters.codebook)
    outcomes: list[Outcome] = []
    for trace in traces:
        route = trace.rollout.route
        if trace.unit is None or route is None:
            continue
        like = likeness(model.features(trace.rollout.example_id), texts)
        whole = Outcome(
            trace.rollout.example_id,
            route.indices,
            tuple(before.versions[k] for k in route.indices),
            tuple(like[k] for k in route.indices),
            trace.unit,
        )
        outcomes.append(whole)
        named = sorted(k for k, text in trace.gradients.codebook.items() if text)
        severity = trace.gradients.severity.get("codebook", trace.penalty) if trace.penalty else 0.0
        for k in named if severity else ():
            rho = severity / len(named)
            blamed = Outcome(
                example_id=whole.example_id,
                indices=(k,),
                versions=(before.versions[k],),
                likeness=(like[k],),
                reward=-rho,
                weight=_BLAME,
                part=True,
            )
            outcomes.append(blamed)
    return outcomes


def spelled(model: OutcomeModel, codebook: Codebook) -> list[Features]:
    """The instincts' texts, as `likeness` takes them."""
    return [model.vocabulary.spelled(text) for text in codebook.texts]


def likeness(features: Features, texts: Sequence[Features]) -> list[float]:
    """How like an input each instinct's text is."""
    return [round(dot(features, own), 5) for own in texts]


class OutcomeRouter(Router):
    """Draws routes in training and learns from what came of them."""

    def __init__(
        self,
        settings: RouterSettings,
        select: int,
        model: OutcomeModel,
        repeats: bool = True,
        embedder: Embedder | None = None,
        media: Mapping[str, Sequence[Tree]] | None = None,
    ) -> None:
        self._settings, self._select, self._embedder = settings, select, embedder
        self._media = media or {}
        self.model, self.repeats = model, repeats
        usual = 1.0 if repeats else 0.2
        self._scale = usual if settings.scale is None else settings.scale
        self._fitted: tuple[State, Posterior] | None = None
        self._texts: tuple[Codebook, list[Features]] | None = None

    async def prepare(self) -> None:
        """Embed the inputs, where `router.features` says so. Raises LMError when the model
        cannot."""
        if self._embedder is None or self.model.vocabulary.center:
            return
        inputs, read_one = self.model.inputs, self._embedder.read
        read = await gather_all(read_one(x, self._media.get(n, ())) for n, x in inputs.items())
        vectors = {name: vector for name, (vector, _) in zip(inputs, read, strict=True)}
        words = _WORDS[self._settings.features]
        self.model = OutcomeModel(inputs, vectors, words, self.model.priors)
        self.model.vocabulary = replace(self.model.vocabulary, images=self._settings.images)

    def begin(self, state: State) -> State:
        return replace(state, outcomes=(), versions=(0,) * len(state.parameters.codebook))

    def recall(self, state: State, first: State, steps: Iterable[Step]) -> State:
        """The state after the steps, as training left it."""
        state = self.begin(first)
        for step in steps:
            state = self.note(state, step.traces, State.after(step))
        return state

    def attend(
        self, planned: Sequence[Example], examples: Sequence[Example], state: State, draws: Draws
    ) -> Sequence[Example]:
        """The batch, or without repeats with unsolved examples in the places of solved ones."""
        if self.repeats:
            return planned
        solved = {o.example_id for o in _current(state) if o.reward >= 1.0}
        batch = [example for example in planned if example.id not in solved]
        taken = solved.union(example.id for example in batch)
        others = [example for example in examples if example.id not in taken]
        free = len(planned) - len(batch)
        batch += draws.generator("unsolved").sample(others, min(free, len(others)))
        rest = [example for example in planned if example.id in solved]
        return [*batch, *rest[: len(planned) - len(batch)]]

    async def route(
        self, example: Example, state: State, epsilon: float, draws: Draws
    ) -> RoutedCall:
        """A drawn route; `explored` = it is not the one that ranks first."""
        state = state if state.versions else self.begin(state)
        book, features = state.parameters.codebook, self.model.features(example.id)
        if self._texts is None or self._texts[0] is not book:
            self._texts = book, spelled(self.model, book)
        adding = self._posterior(state).at(features, likeness(features, self._texts[1]))
        settings, floor = self._settings, self._settings.floor
        parts = adding.draws(_DRAWS, draws.sample("route draws"), self._scale)
        tried = frozenset[RouteIndices]()
        if not self.repeats:
            tried = frozenset(o.indices for o in _current(state) if o.example_id == example.id)
            floor = floor if any(o.example_id == example.id for o in state.outcomes) else 1.0
        sizes = RouteSets(settings.least, self._select, len(book), tried)
        routes = [sizes.best(own, more) for own, more in parts]
        draw = draws.generator("route")
        uniform = draw.random() < floor
        indices = sizes.draw(draw) if uniform else routes[draw.randrange(len(routes))]
        best = chosen(*adding.means, self._select, settings.least)
        return RoutedCall(Route(indices, explored=indices != best), Usage())

    def learn(self, before: State, traces: Sequence[Trace], after: State) -> State:
        """`after` with the traces' outcomes and the ranking that follows from all so far."""
        before = before if before.versions else self.begin(before)
        state = self.note(before, traces, after)
        ranking = self._posterior(state).ranking(self._settings.least)
        return replace(state, statistics=replace(state.statistics, ranking=ranking))

    def note(self, before: State, traces: Sequence[Trace], after: State) -> State:
        """`after` with all outcomes so far; no fit."""
        texts = before.parameters.codebook.texts, after.parameters.codebook.texts
        rows = zip(before.versions, *texts, strict=True)
        versions = tuple(v + (old != new) for v, old, new in rows)
        outcomes = (*before.outcomes, *outcomes_of(self.model, before, traces))
        return replace(after, outcomes=outcomes, versions=versions)

    def _posterior(self, state: State) -> Posterior:
        if (
            self._fitted is None
            or self._fitted[0].outcomes is not state.outcomes
            or self._fitted[0].versions != state.versions
        ):
            self._fitted = state, self.model.fit(state.outcomes, state.versions)
        return self._fitted[1]


def _current(state: State) -> Iterator[Outcome]:
    return (o for o in state.outcomes if not o.part and o.reads_as(state.versions))


@dataclass(frozen=True, slots=True)
class RouteSets:
    """The sets that may be routes: `least` to `select` of `size`; some were `tried` already."""

    least: int
    select: int
    size: int
    tried: frozenset[RouteIndices]

    def draw(self, draw: random.Random) -> RouteIndices:
        """An untried set: its size first, then its members, equally likely; any set if all were."""
        while True:
            if self.least == 0 and draw.random() < 1.0 / (self.size + 1):
                count = 0
            else:
                count = draw.randint(max(1, self.least), self.select)
            indices = tuple(sorted(draw.sample(range(self.size), count)))
            if indices not in self.tried or self._all_tried:
                return indices

    @property
    def _all_tried(self) -> bool:
        counts = Counter(map(len, self.tried))
        sizes = range(self.least, self.select + 1)
        return all(counts[n] == math.comb(self.size, n) for n in sizes)

    def chance(self, count: int) -> float:
        """The chance of any one set of `count` under `draw`, where none was tried."""
        if self.least == 0 and count == 0:
            return 1.0 / (self.size + 1)
        some = 1.0 if self.least else self.size / (self.size + 1)
        return some / (self.select - max(1, self.least) + 1) / math.comb(self.size, count)

    def best(self, own: Sequence[float], more: float) -> RouteIndices:
        """The best route under a draw or, if tried, the best untried one a swap away, if any."""
        best = chosen(own, more, self.select, self.least)
        if best not in self.tried:
            return best
        others = [k for k in range(self.size) if k not in best]
        near = [tuple(sorted((*best, k))) for k in others] if len(best) < self.select else []
        for without in best:
            rest = tuple(k for k in best if k != without)
            near += [rest] if len(rest) >= self.least else []
            near += [tuple(sorted((*rest, k))) for k in others]
        promise = Expected(0.0, tuple(own), more)
        fresh = [route for route in near if route not in self.tried]
        return min(fresh, key=lambda route: (-promise.of(route), route), default=best)
