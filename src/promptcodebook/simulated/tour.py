"""One simulated world, end to end: a run and the six ways of prompting it is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcodebook.assemble import Sources
from promptcodebook.calls import Usage
from promptcodebook.config import Config
from promptcodebook.errors import ConfigError
from promptcodebook.lm.spec import parse_spec
from promptcodebook.optimizers.base import Problem, evaluate
from promptcodebook.progress import Listener, silent
from promptcodebook.randomness import Draws
from promptcodebook.run.opening import Opened, Where, open_run
from promptcodebook.simulated.model import simulated_world
from promptcodebook.simulated.world import World, oracle_prompt
from promptcodebook.sync import run_sync
from promptcodebook.types import Evaluation, Example, Prompt, Route


@dataclass(frozen=True)
class Tour:
    """Rows `present`, `concat`, `best_fixed`, `untrained`, `learned`, `oracle`, all on test."""

    run_id: str
    path: Path
    sentence: str
    rows: tuple[Evaluation, ...]
    examples: Mapping[str, Example]

    def rewards(self) -> dict[str, tuple[float, ...]]:
        """By row, in the order of the test split."""
        return {row.name: row.rewards for row in self.rows}

    def as_json(self) -> dict[str, Any]:
        """What figures over several worlds are made of."""
        return {
            row.name: {
                "rewards": row.rewards,
                "calls": row.usage.calls / len(row.rollouts),
                "tokens": row.usage.tokens / len(row.rollouts),
                "longest_prompt": row.prompt_length.longest if row.prompt_length else 0,
            }
            for row in self.rows
        }


def tour(config: Config, sources: Sources, where: Where, listener: Listener = silent) -> Tour:
    """Trains and judges; raises the Stop that ended the run early, if one did."""
    opened = open_run(config, sources, where, listener)
    try:
        return run_sync(_whole(opened, listener), opened.session.interrupt)
    finally:
        opened.store.close()


async def _whole(opened: Opened, listener: Listener) -> Tour:
    assembled = opened.assembled
    try:
        outcome = await opened.session.run()
        if outcome.stop is not None:
            raise outcome.stop
        assert outcome.conclusion is not None, "a run that was not stopped has concluded"
        oracle = await _oracle_row(Problem(assembled, opened.store, listener))
    finally:
        await assembled.models.close()
    return Tour(
        run_id=opened.store.header.id,
        path=opened.store.path,
        sentence=outcome.conclusion.sentence,
        rows=(*opened.store.test_evaluations(), oracle),
        examples={e.id: e for _, split in assembled.dataset.items() for e in split},
    )


@dataclass(frozen=True)
class OraclePrompt:
    """A Prompter that knows the simulated world's hidden skills: just the advice an input needs."""

    world: World

    async def prompt(self, example: Example, draws: Draws) -> tuple[Route | None, Prompt, Usage]:
        return None, Prompt(oracle_prompt(self.world, example)), Usage()


async def _oracle_row(problem: Problem) -> Evaluation:
    """The oracle on the test split: an upper bound. ConfigError unless the model is simulated."""
    config, plan = problem.assembled.config, problem.assembled.plan
    spec = parse_spec(config.lm)
    if spec.kind != "simulated":
        raise ConfigError("only a simulated world has an oracle", hint="--lm simulated")
    oracle = OraclePrompt(simulated_world(config.task, plan.dataset, spec))
    return await evaluate(problem, "oracle", oracle, plan.judged, "judging oracle")
