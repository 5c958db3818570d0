"""Rows without training, each chosen as an optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest

import promptcodebook as pco
from promptcodebook.run.verdict import Row
from promptcodebook.store.run import RunStore
from tests.optimizers.teachable import model
from tests.run.test_optimize import train

BOOK = {"kind": "expert", "instincts": ["Count the words.", "Use the stated thing.", "Be kind."]}
SMALL = {"init": BOOK, "size": 3, "select": 2}


def row_of(run: pco.Run, name: str) -> Row:
    assert run.ended == "finished" and [*run.rows] == ["present", name]
    return run.rows[name]


def test_zero_shot_leaves_the_present_prompt_out(tmp_path: Path) -> None:
    own = {"init": {"prompt": "My own."}, "optimizer": "zero_shot", "base_prompt": "First."}
    run = train(tmp_path, config=own)
    assert row_of(run, "zero_shot").prompt == "First."
    assert run.rows["present"].prompt == "First.\n\nMy own."


def test_all_first_instincts_in_one_prompt(tmp_path: Path) -> None:
    run = train(tmp_path, config={**SMALL, "optimizer": "concat"})
    prompt = row_of(run, "concat").prompt
    assert prompt is not None and all(text in prompt for text in BOOK["instincts"])
    assert set(run.usage) == {"executor"}, "nothing is trained"


def test_the_first_codebook_routed(tmp_path: Path) -> None:
    run = train(tmp_path, config={**SMALL, "optimizer": "untrained"})
    assert row_of(run, "untrained").prompt is None and run.usage["encoder"].calls > 0
    assert run.codebook.texts[:3] == tuple(BOOK["instincts"])
    assert run.policy.prompt("In 4 words: what are rivers good for?")


def test_the_best_of_all_single_instincts(tmp_path: Path) -> None:
    levels = [f"Give the stated use, at level {n}." for n in (2, 7, 4)]
    config = {"optimizer": "best_single", "init": {**BOOK, "instincts": levels}, "size": 3}
    run = train(tmp_path, lm=model(), config={**config, "select": 2})
    assert row_of(run, "best_single").prompt == levels[1]
    assert run.policy.file.fixed_prompt("best_single").text == levels[1]


def test_random_routes_are_drawn_for_each_input_and_are_the_same_again(tmp_path: Path) -> None:
    def routes(name: str, seed: int) -> list[tuple[int, ...]]:
        config = {"optimizer": "random_routes", "select": 4}
        run = train(tmp_path, name, config=config, seed=seed)
        row_of(run, "random_routes")
        assert "encoder" not in run.usage and run.usage["generator"].calls > 0
        store = RunStore.open(run.path)
        made = [e for e in store.test_evaluations() if e.name == "random_routes"]
        store.close()
        return [r.route.indices for e in made for r in e.rollouts if r.route is not None]

    first = routes("a", 0)
    assert len(set(first)) > 4 and all(len(route) == 4 for route in first)
    assert routes("b", 0) == first != routes("c", 1)


@pytest.mark.parametrize("name", ["untrained", "best_single"])
def test_a_stopped_one_goes_on(tmp_path: Path, name: str) -> None:
    whole = train(tmp_path, "whole", config={**SMALL, "optimizer": name})
    part = train(tmp_path, "part", config={**SMALL, "optimizer": name}, budget="9calls")
    assert part.ended == "budget"
    rest = train(
        tmp_path, "part", config={**SMALL, "optimizer": name}, resume=part.id, budget="999calls"
    )
    assert (rest.ended, rest.verdict) == ("finished", whole.verdict)
