"""Controls of the simulated model: what must not win does not, over five world seeds.

Every figure here is simulated. The controls run the same tour as the demo.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from promptcodebook.simulated.recipes import build_world

import promptcodebook as pco
from promptcodebook.assemble import Sources
from promptcodebook.config import load_config
from promptcodebook.data import Dataset
from promptcodebook.intervals import Interval, clustered_interval
from promptcodebook.method.evaluate import Evaluator
from promptcodebook.method.executor import Trial
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.protocols import Reward
from promptcodebook.randomness import Randomness, keyed_int
from promptcodebook.run.opening import Where
from promptcodebook.run.tour import Tour, tour
from promptcodebook.simulated.model import SimulatedLM
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.world import World, all_advice
from promptcodebook.store.run import RunStore
from promptcodebook.tasks.registry import load_task
from promptcodebook.tasks.rewards import apply_reward
from promptcodebook.types import (
    Example,
    Output,
    Score,
)

pytestmark = pytest.mark.slow

SEEDS = (1, 2, 3, 4, 5)
SETTINGS: dict[str, Any] = {
    "task": "constraints",
    "preset": "quick",
    "update": {"epochs": 30},
    "validation": {"every": 6, "subset": 40},
}
EQUAL = 0.03
"""Rewards closer than this count as equal: a tenth of what training gains."""


@cache
def toured(extra: str, seed: int) -> Tour:
    spec = f"simulated?world_seed={seed}{extra}"
    config = load_config(SETTINGS, {"lm": spec, "seed": seed})
    with TemporaryDirectory() as folder:
        return tour(config, Sources(), Where(Path(folder)))


def difference(extra: str, row: str, other: str) -> Interval:
    """`row` minus `other`, paired by example, over all seeds."""
    pairs = [(t.rewards()[row], t.rewards()[other]) for t in (toured(extra, s) for s in SEEDS)]
    return clustered_interval([[a - b for a, b in zip(x, y, strict=True)] for x, y in pairs])


def everything(seed: int, extra: Mapping[str, float]) -> Any:
    """The task, its world, and the settings behind both."""
    task = load_task("constraints")
    settings = replace(SimulatedSettings(world_seed=seed), **extra)
    examples = [e for _, split in task.dataset.items() for e in split]
    return task, build_world("constraints", examples, settings), settings


async def fixed(seed: int, prompt: str, extra: Mapping[str, float]) -> tuple[float, ...]:
    """Test rewards of one prompt for all inputs."""
    task, world, settings = everything(seed, extra)
    reward = task.reward(None)

    async def score(example: Example, output: Output) -> Score:
        return await apply_reward(reward, example, output, task.reward_range)

    trial = Trial(task.program, score, SimulatedLM(world, settings), greedy=True)
    made = await Evaluator(trial, Randomness(seed)).evaluate(
        "fixed", FixedPrompt(prompt), task.dataset.test, "test"
    )
    assert made.failed == 0
    return made.rewards


def test_training_gains_where_inputs_differ_and_long_prompts_cost() -> None:
    """The reference against which the controls mean something."""
    assert difference("", "learned", "present").low > 0.15
    assert difference("", "learned", "concat").low > 0.05
    assert difference("", "learned", "untrained").low > 0.10
    assert difference("", "oracle", "learned").low > 0.0


async def test_where_length_is_free_one_prompt_with_all_advice_does_as_well() -> None:
    """Control 1, our half of it: at dilution 0 routing has nothing to save."""
    gaps = []
    for seed in SEEDS:
        _, world, _ = everything(seed, {"dilution": 0.0})
        advised = await fixed(seed, all_advice(world), {"dilution": 0.0})
        learned = toured("&dilution=0", seed).rewards()["learned"]
        gaps.append([a - b for a, b in zip(learned, advised, strict=True)])
    assert clustered_interval(gaps).high < EQUAL


async def test_where_all_inputs_need_the_same_routing_wins_nothing() -> None:
    """Control 2: in a homogeneous world the one right prompt for all is not beaten."""
    gaps = []
    for seed in SEEDS:
        made = toured("&homogeneous=1", seed)
        (oracle,) = (row for row in made.rows if row.name == "oracle")
        ((prompt, _),) = Counter(r.prompt for r in oracle.rollouts).most_common(1)
        single = await fixed(seed, prompt, {"homogeneous": True})
        gaps.append([a - b for a, b in zip(made.rewards()["learned"], single, strict=True)])
    assert clustered_interval(gaps).high < EQUAL


def shuffled(data: Dataset, seed: int) -> dict[str, Example]:
    """Each example outside the test split with another one's demands: a permutation."""
    pool = [*data.train, *data.val]
    order = sorted(range(len(pool)), key=lambda i: keyed_int("shuffled", seed, pool[i].id))
    return {e.id: pool[i] for e, i in zip(pool, order, strict=True)}


@dataclass(frozen=True)
class Shuffled:
    """Grades an example under another one's demands; test examples keep their own."""

    true: Reward
    other: Mapping[str, Example]

    def __call__(self, example: Example, output: str) -> Score:
        graded = self.true(self.other.get(example.id, example), output)
        assert isinstance(graded, Score)
        return graded


def test_shuffled_rewards_teach_nothing() -> None:
    """Control 3: graded under another input's demands, training gains nothing on test."""
    gaps = []
    for seed in SEEDS:
        task, world, settings = everything(seed, {})
        reward = Shuffled(task.reward(None), shuffled(task.dataset, seed))
        rewards = _trained_on(task.dataset, reward, world, settings, seed)
        gaps.append([a - b for a, b in zip(*rewards, strict=True)])
    gain = clustered_interval(gaps)
    assert gain.low <= 0.0
    assert gain.mean < EQUAL


def _trained_on(
    data: Dataset, reward: Any, world: World, settings: SimulatedSettings, seed: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Test rewards of the learned and of the untrained policy."""
    task = load_task("constraints")
    config = {
        **{k: v for k, v in SETTINGS.items() if k != "task"},
        "init": {"instincts": task.seeds, "prompt": task.zero_shot},
        "output_format": task.output_format,
    }
    lm = SimulatedLM(world, settings)
    with TemporaryDirectory() as folder:
        run = pco.optimize(data, reward, lm, config=config, seed=seed, runs_dir=folder)
        store = RunStore.open(run.path)
        rows = {e.name: e.rewards for e in store.test_evaluations()}
        store.close()
    return rows["learned"], rows["untrained"]


def test_intervals_cover_five_world_seeds() -> None:
    """Control 4: an interval over worlds is wider than one over the examples of one world."""
    tours = [toured("", seed) for seed in SEEDS]
    assert len({t.rewards()["learned"] for t in tours}) == len(SEEDS)
    over_all = clustered_interval([t.rewards()["learned"] for t in tours])
    means = [sum(t.rewards()["learned"]) / 60 for t in tours]
    assert over_all.n == 60 * len(SEEDS)
    assert over_all.low < sum(means) / len(means) < over_all.high
