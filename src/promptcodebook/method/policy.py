"""The way to a prompt, Eqs. 3-4: route, then compose.

At deployment the encoder routes every input. A policy without an encoder (`encoder.mode: none`)
takes the S entries of highest r̄, where an untried one stands at the mean of the tried. One whose
router has learned from outcomes ranks the entries for the input, without a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from promptcodebook.calls import Usage
from promptcodebook.method.encoder import Embedder, Encoder, repair_route
from promptcodebook.method.explore import Explorer
from promptcodebook.method.failures import gather_all
from promptcodebook.method.generator import Generator
from promptcodebook.method.ranking import Expected, Ranker, chosen
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.randomness import Draws
from promptcodebook.types import Example, Parameters, Prompt, Ranking, Route, Trace


class Prompter(Protocol):
    """Gives the prompt for an example: a learned policy, or a fixed text to compare with."""

    async def prompt(
        self, example: Example, draws: Draws
    ) -> tuple[Route | None, Prompt, Usage]: ...


def _no_stages() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class FixedPrompt:
    """The same prompt for every input: zero-shot, the user's present prompt, `concat`; by its name
    also one for each of the `stages`."""

    text: str
    stages: Mapping[str, str] = field(default_factory=_no_stages)

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        return None, Prompt(self.text, self.stages), Usage()


class Composer:
    """Encoder and generator at work; Θ comes with each call, so that nothing is kept from one to
    the next.

    `stages` are those that get a prompt of their own (() = one prompt for the whole program).
    `embedder` reads the inputs for a ranking that was learned on embeddings.
    """

    def __init__(
        self,
        encoder: Encoder,
        generator: Generator,
        select: int,
        stages: Sequence[str] = (),
        embedder: Embedder | None = None,
    ) -> None:
        self._encoder = encoder
        self._embedder = embedder
        self._generator = generator
        self._select = select
        self._stages = tuple(stages)
        self._ready: tuple[Ranking, tuple[str, ...], Ranker] | None = None

    async def route(
        self, parameters: Parameters, statistics: RoutingStatistics, example: Example, draws: Draws
    ) -> tuple[Route, Usage]:
        """z = E_θ(x, C); a ranking comes before it, and an empty θ means no encoder."""
        if statistics.ranking is not None:
            route, _, usage = await self.rank(parameters, statistics.ranking, example.input)
            return route, usage
        if not parameters.encoder:
            return Route(repair_route((), statistics.standing, self._select)), Usage()
        return await self._encoder.route(
            parameters.encoder, parameters.codebook, statistics, example.input, draws
        )

    async def expected(
        self, parameters: Parameters, statistics: RoutingStatistics, text: str
    ) -> Expected | None:
        """What each instinct promises for an input; None where nothing ranks them."""
        if statistics.ranking is None:
            return None
        return (await self.rank(parameters, statistics.ranking, text))[1]

    async def rank(
        self, parameters: Parameters, ranking: Ranking, text: str
    ) -> tuple[Route, Expected, Usage]:
        """z of a ranking, and what each instinct promises, by one reading of the input."""
        vector, usage = await self._vector(ranking, text)
        expected = self._ranker(ranking, parameters.codebook.texts).expected(text, vector)
        picked = chosen(expected.marginal, expected.more, self._select, ranking.least)
        return Route(picked), expected, usage

    async def _vector(self, ranking: Ranking, text: str) -> tuple[Sequence[float], Usage]:
        """The input's embedding, where the ranking was learned on such; else ()."""
        if not ranking.center or self._embedder is None:
            return (), Usage()
        return await self._embedder.read(text)

    def _ranker(self, ranking: Ranking, texts: tuple[str, ...]) -> Ranker:
        """Made ready once for input after input."""
        if self._ready is None or self._ready[0] is not ranking or self._ready[1] != texts:
            self._ready = ranking, texts, Ranker(ranking, texts)
        return self._ready[2]

    async def compose(
        self, parameters: Parameters, route: Route, example: Example, draws: Draws
    ) -> tuple[Prompt, Usage]:
        """p = G_φ(x, C[z]); for a compound executor with `compose_per_stage`, one a stage.

        The whole is then what the critic and the report read: every stage's prompt under its name.
        """
        phi, book = parameters.generator, parameters.codebook
        if not self._stages:  # no task for the one: others would take their turn before it
            text, usage = await self._generator.compose(phi, book, route, example.input, draws)
            return Prompt(text), usage
        made = await gather_all(
            self._generator.compose(phi, book, route, example.input, draws, stage)
            for stage in self._stages
        )
        usage = sum((spent for _, spent in made), Usage())
        by_stage = {stage: text for stage, (text, _) in zip(self._stages, made, strict=True)}
        return Prompt.of_stages(by_stage), usage


class Router(Protocol):
    """Routes the examples of training, and learns from what came of it."""

    def attend(
        self, planned: Sequence[Example], examples: Sequence[Example], state: State, draws: Draws
    ) -> Sequence[Example]:
        """Whom to route now: the planned batch, or others of the `examples` in some places."""
        ...

    async def route(
        self, example: Example, state: State, epsilon: float, draws: Draws
    ) -> tuple[Route, Usage]: ...

    def learn(self, before: State, traces: Sequence[Trace], after: State) -> State:
        """`after` with what the traces, made under `before`, teach of routing."""
        ...


@dataclass(frozen=True)
class EpsilonGreedy:
    """E_θ, or with probability ε z ~ SuccWtd. What is learned stands in θ and r̄."""

    composer: Composer
    explorer: Explorer

    def attend(
        self, planned: Sequence[Example], examples: Sequence[Example], state: State, draws: Draws
    ) -> Sequence[Example]:
        return planned

    async def route(
        self, example: Example, state: State, epsilon: float, draws: Draws
    ) -> tuple[Route, Usage]:
        draw = draws.generator("explore")
        if self.explorer.explores(epsilon, draw):
            return self.explorer.route(state.statistics.ema, draw), Usage()
        return await self.composer.route(state.parameters, state.statistics, example, draws)

    def learn(self, before: State, traces: Sequence[Trace], after: State) -> State:
        return after


Made = tuple[Route, Usage]
"""A route with what it took."""


@dataclass(frozen=True)
class Exploring:
    """The policy in training: the router's routes, composed; `made` is the route, if it is there
    already."""

    composer: Composer
    router: Router
    state: State
    epsilon: float
    made: Made | None = None

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        state = self.state
        route, usage = self.made or await self.router.route(example, state, self.epsilon, draws)
        prompt, composing = await self.composer.compose(state.parameters, route, example, draws)
        return route, prompt, usage + composing


@dataclass(frozen=True)
class Deployed:
    """A policy with its parameters fixed: x -> p."""

    composer: Composer
    parameters: Parameters
    statistics: RoutingStatistics

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        route, routing = await self.route(example, draws)
        prompt, composing = await self.compose(route, example, draws)
        return route, prompt, routing + composing

    async def route(self, example: Example, draws: Draws) -> tuple[Route, Usage]:
        """The first half of the way."""
        return await self.composer.route(self.parameters, self.statistics, example, draws)

    async def compose(self, route: Route, example: Example, draws: Draws) -> tuple[Prompt, Usage]:
        """The second half."""
        return await self.composer.compose(self.parameters, route, example, draws)

    async def explain(
        self, example: Example, draws: Draws
    ) -> tuple[Route, Prompt, Expected | None]:
        """z, p, and what each instinct promises for the input, where the policy learned that."""
        parameters, ranking = self.parameters, self.statistics.ranking
        expected: Expected | None = None
        if ranking is not None:
            route, expected, _ = await self.composer.rank(parameters, ranking, example.input)
        else:
            route, _ = await self.composer.route(parameters, self.statistics, example, draws)
        prompt, _ = await self.composer.compose(parameters, route, example, draws)
        return route, prompt, expected
