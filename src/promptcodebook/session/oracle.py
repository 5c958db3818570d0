"""The oracle of a simulated world: for each input just the advice it needs. An upper bound."""

from __future__ import annotations

from dataclasses import dataclass

from promptcodebook.errors import ConfigError
from promptcodebook.lm.spec import parse_spec
from promptcodebook.method.draws import Draws
from promptcodebook.method.evaluate import Evaluator
from promptcodebook.session.events import Listener
from promptcodebook.session.opening import Opened
from promptcodebook.session.selection import progress
from promptcodebook.session.simulation import simulated_world
from promptcodebook.simulated.world import World, oracle_prompt
from promptcodebook.types import Evaluation, Example, Route, Usage

__all__ = ["OraclePrompt", "oracle_row"]


@dataclass(frozen=True)
class OraclePrompt:
    """A Prompter that knows the world's hidden skills."""

    world: World

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, str, Usage]:
        return None, oracle_prompt(self.world, example), Usage()


async def oracle_row(opened: Opened, tell: Listener) -> Evaluation:
    """The oracle on the test split. Raises ConfigError unless the run's model is simulated."""
    spec = parse_spec(opened.config.lm)
    if spec.kind != "simulated":
        raise ConfigError("only a simulated world has an oracle", hint="--lm simulated")
    world = simulated_world(opened.config.task, opened.task.dataset, spec)
    test = opened.task.dataset.test
    low, _ = opened.config.reward_range
    evaluator = Evaluator(opened.session.greedy, opened.config.seed, low)
    told = progress(tell, "judging oracle", len(test))
    return await evaluator.evaluate("oracle", OraclePrompt(world), test, "test", told)
