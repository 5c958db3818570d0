"""The simulated half of `what-learns`: its worlds begin as they say; its page shows all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from promptcodebook.paper.experiments import simulated_worlds
from promptcodebook.paper.experiments.experiment import ExperimentRequest, Results
from promptcodebook.paper.experiments.lab import Lab
from promptcodebook.paper.experiments.operators import OPERATORS
from promptcodebook.paper.experiments.page import Page, markdown, read_table
from promptcodebook.paper.experiments.reproduce import experiment_named
from promptcodebook.paper.experiments.simulated_worlds import (
    FlippedChecks,
    blocks,
    cells,
    first_instincts,
    setups,
)
from promptcodebook.paper.simulated.executor import chance_of, obey
from promptcodebook.paper.simulated.world import SimulatedSettings, World
from promptcodebook.paper.tasks.constraints.task import draw_constraints, reward
from promptcodebook.types import Output

DATA = draw_constraints(2)
SHORT = {"epochs": 2, "batch_size": 6}
SETTINGS = SimulatedSettings(world=2)
WORLD = World("constraints", [e for _, split in DATA.items() for e in split], SETTINGS)


def worth(*texts: str) -> float:
    """The mean chance of a test input's demands under a prompt of these texts."""
    chances: list[float] = []
    for example in DATA.test:
        problem = WORLD.problem(example.input)
        obeyed = obey(WORLD, problem, " ".join(texts))
        for demand in problem.demands:
            about = frozenset(() if demand.skill is None else (demand.skill,))
            chances.append(chance_of(about, problem.needs, obeyed, SETTINGS))
    return sum(chances) / len(chances)


def test_a_mixed_codebook_holds_four_orders_that_help_and_four_that_harm() -> None:
    texts = first_instincts("mixed", WORLD, 12, 2)
    right = [t for t in texts if t.startswith("When")]
    harmful = [t for t in texts if WORLD.skills.orders(t) and t not in right]
    assert (len(texts), len(right), len(harmful)) == (12, 4, 4)
    assert worth(*right) > worth() + 0.05
    assert sum(map(worth, harmful)) / 4 < worth() - 0.05


@pytest.mark.parametrize("size", [8, 16, 32])
def test_what_pays_late_is_the_last_eighth_of_a_codebook(size: int) -> None:
    texts = first_instincts("late", WORLD, size, 2)
    paying = size // 8
    assert len(set(texts)) == size
    assert not WORLD.skills.orders(" ".join(texts[:-paying]))
    assert all(worth(text) > worth() + 0.03 for text in texts[-paying:])


async def test_a_flipped_reward_turns_a_share_of_the_demands() -> None:
    flips, wrong, whole = FlippedChecks(0.3, 2), 0.0, 0
    for example in DATA.train:
        if demands := len(WORLD.problem(example.input).demands):
            whole += demands
            for text in ("hello", "a, b"):
                score = await flips(example, Output(text))
                wrong += abs(score.value - reward(example, text).value) * demands / 2
    assert 0.1 < wrong / whole < 0.35, "within an example two may cancel each other"


@pytest.mark.slow
def test_flipped_rewards_are_seen_in_training_and_never_in_a_test(tmp_path: Path) -> None:
    """The first state earns the same with them and without; what is learned differs."""
    few = {s.name: s for s in setups()}
    noisy, sound = (
        simulated_worlds.cell_of(replace(few[name], matters=(), idle=(), measured=()), 2, SHORT)
        for name in ("noise-0.3", "shipped")
    )
    lab = Lab(tmp_path, "simulated", None)
    made = [cell.measure(lab)["sound"] for cell in (noisy, sound)]
    assert made[0]["first"] == made[1]["first"]
    assert made[0]["calls"] != made[1]["calls"]


def test_each_arm_is_an_operator_or_listed_and_each_world_says_what_is_expected() -> None:
    listed = read_table("simulated_worlds")["arms"]
    for setup in setups():
        assert setup.why
        assert all((arm in OPERATORS) != (arm in listed) for arm in setup.arms), setup.name
    assert len({setup.name for setup in setups()}) == len(setups())


@pytest.mark.slow
def test_a_world_is_measured_with_all_arms_and_shown(tmp_path: Path) -> None:
    order = ExperimentRequest(experiment_named("what-learns"), "quick", 1)
    lab = Lab(tmp_path, "simulated", None)
    names = ("sim/late-8/1", "sim/bare/1")
    results = {c.name: c.measure(lab) for c in cells(order) if c.name in names}
    assert [*results["sim/bare/1"]] == ["sound", "phi-fixed"]
    page = markdown(Page("x", blocks(Results(order, lab, results, {}))))
    assert "**Simulated.** 1 worlds" in page
    assert page.count("| late-8 |") == 3
