"""The scripted teacher, and the worlds of `what-learns` with an executor that obeys one order."""

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
from promptcodebook.paper.experiments.lab import CellResult, open_lab
from promptcodebook.paper.experiments.operators import OPERATORS
from promptcodebook.paper.experiments.page import markdown, read_table
from promptcodebook.paper.experiments.reproduce import measure
from promptcodebook.paper.experiments.teacher import HouseRule, Teacher, TeacherBehaviour, rules_in
from promptcodebook.paper.experiments.what_learns import EXPERIMENT, one_topic, over_seeds, worlds
from tests.build.experiments import Obedient

SPEC = "http://127.0.0.1:9/v1#scripted"


def measured(folder: Path, *names: str) -> Results:
    def cells(order: ExperimentRequest, spec: str) -> list[Any]:
        return [c for c in EXPERIMENT.cells(order, spec) if c.name in names]

    with closing(open_lab(folder, SPEC, lm=Obedient())) as lab:
        return measure(
            ExperimentRequest(replace(EXPERIMENT, cells=cells), "default", 1), lab, lambda _: None
        )


def earned(results: Mapping[str, CellResult], name: str) -> float:
    return fmean(results[name]["rewards"])


@pytest.mark.slow
def test_a_sound_teacher_gains_and_one_that_changes_or_says_nothing_does_not(
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
        TeacherBehaviour.of({"updatr": "obedient"})
