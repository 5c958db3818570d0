"""The simulated half of `what-learns`: its worlds begin as they say; its page shows all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from promptcodebook.experiments import simulated_worlds
from promptcodebook.experiments.experiment import Measured, Order
from promptcodebook.experiments.lab import Lab
from promptcodebook.experiments.operators import OPERATORS
from promptcodebook.experiments.page import markdown, read_table
from promptcodebook.experiments.reproduce import experiment_named
from promptcodebook.experiments.simulated_worlds import (
    Flipping,
    blocks,
    cells,
    first_instincts,
    setups,
)
from promptcodebook.simulated.executor import chance_of, obey
from promptcodebook.simulated.world import SimulatedSettings, World
from promptcodebook.tasks.constraints.task import draw_constraints, reward

DATA = draw_constraints(2)
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


def test_a_flipped_reward_turns_a_share_of_the_training_demands_and_no_test() -> None:
    flips, wrong, whole = Flipping(0.3, 2), 0.0, 0
    for example in DATA.train:
        if demands := len(WORLD.problem(example.input).demands):
            whole += demands
            for text in ("hello", "a, b"):
                apart = flips(example, text).value - reward(example, text).value
                wrong += abs(apart) * demands / 2
    assert 0.1 < wrong / whole < 0.35, "within an example two may cancel each other"
    test = DATA.test[0]
    assert flips(test, "hello") == reward(test, "hello")


def test_each_arm_is_an_operator_or_listed_and_each_world_says_what_is_expected() -> None:
    listed = read_table("simulated_worlds")["arms"]
    for setup in setups():
        assert setup.why
        assert all((arm in OPERATORS) != (arm in listed) for arm in setup.arms), setup.name
    assert max(Counter(setup.name for setup in setups()).values()) == 1


def test_a_world_is_measured_with_all_arms_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [s for s in setups() if s.name in ("late-8", "bare")]
    monkeypatch.setattr(simulated_worlds, "setups", lambda: few)
    order = Order(experiment_named("what-learns"), "quick", 1)
    lab, cell = Lab(tmp_path, "simulated", None), cells(order)[0]
    result = cell.measure(lab)
    assert {*result} == {f"{s.name}/{arm}" for s in few for arm in ("sound", *s.arms)}
    page = markdown(simulated_worlds.Page("x", blocks(Measured(order, lab, {"sim/1": result}, {}))))
    assert "**Simulated.** 1 worlds" in page
    assert page.count("| late-8 |") == 4
