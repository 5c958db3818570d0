"""What each ready-made reward gives right, nearly right, wrong and odd answers: a table of cases in
ready_rewards.toml."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.errors import ConfigError
from promptcodebook.tasks.rewards import make_reward, reward_kinds
from promptcodebook.types import Score
from tests.build.cases import table


def score(reward: Any, target: str, answer: str, input: str = "") -> Score:
    made: Any = make_reward(reward, Path())
    scored: Any = made(pco.Example("e", input, target), answer)
    return asyncio.run(scored) if asyncio.iscoroutine(scored) else scored


@pytest.mark.parametrize("case", table(__file__, "table"), ids=lambda case: case["reward"]["kind"])
def test_right_is_one_and_wrong_empty_and_everything_are_not(case: dict[str, Any]) -> None:
    reward, target = case["reward"], case["target"]
    for answer in case["right"]:
        assert score(reward, target, answer).value == 1.0, answer
    for answer, value in case["nearly"]:
        assert score(reward, target, answer).value == pytest.approx(value, abs=1e-9), answer
    for answer in ["", *case["wrong"]]:
        given = score(reward, target, answer)
        assert given.value == 0.0 and given.feedback, answer
    assert score(reward, target, case["everything"]).value < 0.5


def test_each_ready_made_reward_is_in_the_table() -> None:
    kinds = {case["reward"]["kind"] for case in table(__file__, "table")}
    assert kinds == set(reward_kinds()) - {"judge", "sum"}


@pytest.mark.parametrize("case", table(__file__, "label"), ids=lambda case: case["target"])
def test_exactly_one_label_is_named_as_a_whole(case: dict[str, Any]) -> None:
    reward = {"kind": "label", "labels": case["labels"]}
    values = {
        answer: score(reward, case["target"], answer, case.get("input", "")).value
        for answer in [*case["right"], *case["wrong"]]
    }
    expected = dict.fromkeys(case["right"], 1.0) | dict.fromkeys(case["wrong"], 0.0)
    assert values == expected


@pytest.mark.parametrize("count", [2, 20, 77, 500])
def test_labels_are_told_apart_however_many_there_are(count: int) -> None:
    labels = [f"kind {n} of {('card', 'loan')[n % 2]}" for n in range(count)]
    reward: Any = pco.rewards.label(*labels)
    started = time.process_time()
    for n, label in enumerate(labels):
        example = pco.Example("e", "", label)
        assert reward(example, f"It is {label}.").value == 1.0
        assert reward(example, labels[n - 1]).value == 0.0
        assert reward(example, ", ".join(labels)).value == 0.0
    assert time.process_time() - started < 60
    two = reward(pco.Example("e", "", labels[0]), f"{labels[0]} or {labels[1]}").feedback
    assert "names 2 labels" in two and labels[1] in two
    assert "names none" in reward(pco.Example("e", "", labels[0]), "no idea").feedback


@pytest.mark.parametrize("labels", table(__file__, "twins"))
def test_labels_that_cannot_be_told_apart_are_reported(labels: list[str]) -> None:
    with pytest.raises(ConfigError, match="cannot be distinguished") as caught:
        make_reward({"kind": "label", "labels": labels}, Path())
    assert repr(labels[0]) in str(caught.value) and repr(labels[1]) in str(caught.value)


@pytest.mark.parametrize("case", table(__file__, "number"), ids=lambda case: case["target"])
def test_a_number_is_read_as_people_write_it(case: dict[str, Any]) -> None:
    answers = [*case["right"], *case["wrong"]]
    values = {answer: score("numeric", case["target"], answer).value for answer in answers}
    expected = dict.fromkeys(case["right"], 1.0) | dict.fromkeys(case["wrong"], 0.0)
    assert values == expected


@pytest.mark.parametrize("case", table(__file__, "several"), ids=lambda case: case["target"])
def test_any_of_several_accepted_answers_is_right(case: dict[str, Any]) -> None:
    for kind, answer in case["right"]:
        assert score(kind, case["target"], answer).value == 1.0, (kind, answer)
    for kind, answer in case["wrong"]:
        assert score(kind, case["target"], answer).value == 0.0, (kind, answer)


@pytest.mark.parametrize(("text", "answer", "found"), table(__file__, "contains"))
def test_what_is_contained_is_whole_words(text: str, answer: str, found: bool) -> None:
    assert score("contains", text, answer).value == found
    assert score({"kind": "contains", "text": text}, "", answer).value == found


def test_the_fields_that_are_wrong_are_named() -> None:
    target = {"name": "mug", "price": {"value": 4, "unit": "EUR"}, "tags": ["red", "red"]}
    answer = {"name": "mug", "price": {"value": 5}, "tags": ["red"], "note": "new"}
    given = score("fields", json.dumps(target), json.dumps(answer))
    assert given.value == pytest.approx(1.5 / 5)
    for words in (
        "price.value is '5', not '4'",
        "price.unit is missing",
        "tags",
        "note is not asked",
    ):
        assert words in given.feedback
    assert "not valid JSON" in score("fields", '{"a": 1}', "{").feedback
