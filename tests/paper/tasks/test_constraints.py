"""The shipped prompts are sound, and the reward is the share of constraints kept."""

import json
from importlib import resources
from pathlib import Path

import pytest

from promptcodebook.data import examine
from promptcodebook.errors import TaskError
from promptcodebook.paper.tasks.constraints.checks import KINDS, PARAMETERS, check
from promptcodebook.paper.tasks.constraints.task import compose, reward
from promptcodebook.tasks.task import load_task
from promptcodebook.types import Example


def test_the_shipped_data_is_what_the_composer_writes() -> None:
    shipped = resources.files("promptcodebook.paper.tasks.constraints").joinpath("data.jsonl")
    rows = [json.loads(line) for line in shipped.read_text("utf-8").splitlines()]
    assert rows == list(compose())
    found = examine(load_task("constraints").dataset)
    assert not found.overlaps and not found.duplicates and not found.near


def example_with(*constraints: dict[str, object]) -> Example:
    return Example("x", "prompt", fields={"constraints": list(constraints)})


def test_the_reward_is_the_share_kept() -> None:
    none = ({"kind": "no_commas"}, {"kind": "no_digits"})
    example = example_with({"kind": "sentences", "n": 1}, *none)
    score = reward(example, "One, two. Three.")
    assert score.value == pytest.approx(1 / 3)
    assert "Not satisfied: The answer has 2 sentences; exactly 1 was asked for." in score.feedback
    assert "Satisfied: The answer has 0 digits; none was allowed." in score.feedback
    assert reward(example, "").value == 0.0
    assert reward(example, "One two.").value == 1.0


def test_prompts_without_constraints_want_an_answer() -> None:
    assert reward(example_with(), "This is a short answer.").value == 1.0
    assert reward(example_with(), "No.").value == 0.0
    assert reward(Example("x", "prompt"), "").value == 0.0


# Each kind of constraint, on answers that keep and that break it.


CASES: list[tuple[dict[str, object], list[str], list[str]]] = [
    tuple(json.loads(line).values())
    for line in Path(__file__).with_name("constraints_cases.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize(
    ("constraint", "text", "expected"),
    [(c, text, True) for c, kept, _ in CASES for text in kept]
    + [(c, text, False) for c, _, broken in CASES for text in broken],
)
def test_kinds(constraint: dict[str, object], text: str, expected: bool) -> None:
    checked = check(constraint, "prompt", text)
    assert checked.satisfied is expected, checked.explanation
    assert checked.explanation.endswith(".")


def test_every_kind_has_cases() -> None:
    assert [c["kind"] for c, _, _ in CASES] == list(KINDS)
    assert len(KINDS) == 24
    for constraint, _, _ in CASES:
        assert set(PARAMETERS[str(constraint["kind"])]) == set(constraint) - {"kind"}
        assert not check(constraint, "prompt", " \n").satisfied, "a blank answer keeps nothing"


def test_malformed_constraints() -> None:
    with pytest.raises(TaskError, match=r"unknown constraint kind 'sentence'.*'sentences'"):
        check({"kind": "sentence", "n": 3}, "p", "x")
    with pytest.raises(TaskError, match="'letter_count' of the prompt 'p' lacks n"):
        check({"kind": "letter_count", "letter": "x"}, "p", "x")
