"""The scripted teacher, and the worlds of `what-learns`: with an executor that obeys one order, and
of the simulated model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from promptcodebook.assemble import simulated_model
from promptcodebook.calls import Message, Request
from promptcodebook.config import load_config
from promptcodebook.errors import ConfigError, RequestRefused
from promptcodebook.lm.spec import any_simulated, parse_spec
from promptcodebook.paper.experiments import what_learns
from promptcodebook.paper.experiments.experiment import ExperimentRequest, Results
from promptcodebook.paper.experiments.lab import CellResult, Lab, open_lab
from promptcodebook.paper.experiments.operators import OPERATORS
from promptcodebook.paper.experiments.page import Page, markdown, read_table
from promptcodebook.paper.experiments.reproduce import measure
from promptcodebook.paper.experiments.teacher import HouseRule, Teacher, rules_in
from promptcodebook.paper.experiments.what_learns import EXPERIMENT, one_topic, over_seeds, worlds
from promptcodebook.paper.simulated.executor import chance_of, obey
from promptcodebook.paper.simulated.world import SimulatedSettings, World
from promptcodebook.paper.tasks.constraints import task as constraints
from promptcodebook.types import Output
from tests.build.experiments import Obedient

SPEC = "http://127.0.0.1:9/v1#scripted"


def measured(folder: Path, *names: str) -> Results:
    def cells(order: ExperimentRequest, spec: str) -> list[Any]:
        return [c for c in EXPERIMENT.cells(order, spec) if c.name in names]

    with closing(open_lab(folder, SPEC, lm=Obedient())) as lab:
        order = ExperimentRequest(replace(EXPERIMENT, cells=cells), "default", 1)
        return measure(order, lab, lambda _: None)


def earned(results: Mapping[str, CellResult], name: str) -> float:
    return fmean(results[name]["rewards"])


@pytest.mark.slow
def test_a_sound_teacher_gains_and_one_that_changes_nothing_does_not(
    tmp_path: Path,
) -> None:
    arms = ("sound", "updater-identity", "critic-silent")
    found = measured(tmp_path, *(f"control/{arm}/0" for arm in arms))
    assert not found.missing
    sound, *broken = (earned(found.results, f"control/{arm}/0") for arm in arms)
    # Three of the six orders can be obeyed, and the route is not always right.
    assert sound > 0.2
    assert broken == [0.0, 0.0]
    page = markdown(EXPERIMENT.page(found))
    assert "rules, and no language model" in page
    assert "| control | updater-identity | +0." in page


def test_a_part_is_left_out_by_an_operator_or_by_a_setting() -> None:
    changes, named = read_table("what_learns")["real"]["arms"], set[str]()
    for world in worlds():
        assert world.argument.endswith(".")
        named |= {world.part} if world.expected == "matters" else set()
        assert set(world.arms) <= changes.keys() | OPERATORS.keys()
    assert named == {"attribution", "ψ", "θ", "φ", "r̄", "ε"}
    assert {w.part for w in worlds() if w.expected == "idle"} >= named
    cells = EXPERIMENT.cells(ExperimentRequest(EXPERIMENT, "default", 2), SPEC)
    assert len({cell.name for cell in cells}) == len(cells)


def test_the_first_codebooks_hold_what_their_world_says() -> None:
    named = {world.name: world for world in worlds()}
    first = what_learns.first_instincts
    assert rules_in(" ".join(first(named["control"]))) == []
    harmed = rules_in("\n".join(first(named["blame-harmful"])))
    assert [bool(rule.when) for rule in harmed] == [True] * 3 + [False] * 2
    assert HouseRule("in Chinese", "cancelling an order") in harmed
    assert HouseRule("with a Python program") in rules_in("\n".join(first(named["theta-misled"])))


def test_a_smaller_draw_of_messages_lies_in_a_larger_one() -> None:
    small, large = one_topic(2, 0, 1), one_topic(4, 1, 3)
    assert len(small.train) == 12
    assert {e.id for e in small.train} < {e.id for e in large.train}


def test_the_interval_over_seeds_is_students() -> None:
    found = over_seeds([0.1, 0.2, 0.3])
    assert found.mean == pytest.approx(0.2)
    assert found.high - found.mean == pytest.approx(4.3027 * 0.1 / 3**0.5)


async def test_the_teacher_refuses_what_it_cannot_read() -> None:
    with pytest.raises(RequestRefused, match="templates `default`"):
        await Teacher()(Request("critic", (Message("user", "How are you?"),)))


def test_the_spec_of_the_teacher_is_no_simulated_model() -> None:
    config = load_config({"task": "houserules_six", "lm": "rules?updater=obedient"})
    made = simulated_model(config.task, one_topic(1, 0, 0), parse_spec(config.lm))
    assert isinstance(made, Teacher)
    assert not any_simulated([config.lm])
    with pytest.raises(ConfigError, match=r"'updatr' \(did you mean 'updater'\?\)"):
        simulated_model("", one_topic(1, 0, 0), parse_spec("rules?updatr=obedient"))


# The simulated half: its worlds begin as they say; its page shows all.


DATA = constraints.draw_constraints(2)
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
    texts = what_learns.first_of("mixed", WORLD, 12, 2)
    right = [t for t in texts if t.startswith("When")]
    harmful = [t for t in texts if WORLD.skills.orders(t) and t not in right]
    assert (len(texts), len(right), len(harmful)) == (12, 4, 4)
    assert worth(*right) > worth() + 0.05
    assert sum(map(worth, harmful)) / 4 < worth() - 0.05


@pytest.mark.parametrize("size", [8, 16, 32])
def test_what_pays_late_is_the_last_eighth_of_a_codebook(size: int) -> None:
    texts = what_learns.first_of("late", WORLD, size, 2)
    paying = size // 8
    assert len(set(texts)) == size
    assert not WORLD.skills.orders(" ".join(texts[:-paying]))
    assert all(worth(text) > worth() + 0.03 for text in texts[-paying:])


async def test_a_flipped_reward_turns_a_share_of_the_demands() -> None:
    flips, wrong, whole = what_learns.FlippedChecks(0.3, 2), 0.0, 0
    for example in DATA.train:
        if demands := len(WORLD.problem(example.input).demands):
            whole += demands
            for text in ("hello", "a, b"):
                score = await flips(example, Output(text))
                wrong += abs(score.value - constraints.reward(example, text).value) * demands / 2
    assert 0.1 < wrong / whole < 0.35, "within an example two may cancel each other"


@pytest.mark.slow
def test_flipped_rewards_are_seen_in_training_and_never_in_a_test(tmp_path: Path) -> None:
    """The first state earns the same with them and without; what is learned differs."""
    few = {s.name: s for s in what_learns.setups()}
    noisy, sound = (
        what_learns.simulated_cell(replace(few[name], matters=(), idle=(), measured=()), 2, SHORT)
        for name in ("noise-0.3", "shipped")
    )
    lab = Lab(tmp_path, "simulated", None)
    made = [cell.measure(lab)["sound"] for cell in (noisy, sound)]
    assert made[0]["first"] == made[1]["first"]
    assert made[0]["calls"] != made[1]["calls"]


def test_each_arm_is_an_operator_or_listed_and_each_world_says_what_is_expected() -> None:
    listed = read_table("simulated_worlds")["arms"]
    for setup in what_learns.setups():
        assert setup.argument
        assert all((arm in OPERATORS) != (arm in listed) for arm in setup.arms), setup.name
    assert len({setup.name for setup in what_learns.setups()}) == len(what_learns.setups())


@pytest.mark.slow
def test_a_world_is_measured_with_all_arms_and_shown(tmp_path: Path) -> None:
    order = ExperimentRequest(EXPERIMENT, "quick", 1)
    lab = Lab(tmp_path, "simulated", None)
    names = ("sim/late-8/1", "sim/bare/1")
    listed = {cell.name: cell for cell in what_learns.simulated_cells(order)}
    results = {name: listed[name].measure(lab) for name in names}
    assert [*results["sim/bare/1"]] == ["sound", "phi-fixed"]
    page = markdown(Page("x", what_learns.simulated_blocks(Results(order, lab, results, {}))))
    assert "**Simulated.** 1 worlds" in page
    assert page.count("| late-8 |") == 3
