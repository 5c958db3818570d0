"""The shipped prompts are sound, and the reward is the share of constraints kept."""

import json
from collections import Counter
from importlib import resources

import pytest

from promptcodebook.data import Dataset, examine
from promptcodebook.tasks.constraints.checks import KINDS, PARAMETERS, check
from promptcodebook.tasks.constraints.compose import SIZES, compatible, compose, read_wordings
from promptcodebook.tasks.constraints.task import constraints_of, reward
from promptcodebook.tasks.task import load_task
from promptcodebook.types import Example

from .witness import witness


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return load_task("constraints").dataset


def everything(dataset: Dataset) -> list[Example]:
    return [example for _, part in dataset.items() for example in part]


def test_the_shipped_data_is_what_the_composer_writes() -> None:
    shipped = resources.files("promptcodebook.tasks.constraints").joinpath("data.jsonl")
    rows = [json.loads(line) for line in shipped.read_text("utf-8").splitlines()]
    assert rows == list(compose())


def test_sizes_ids_and_splits(dataset: Dataset) -> None:
    assert {split: len(part) for split, part in dataset.items()} == SIZES
    assert len({e.id for e in everything(dataset)}) == len(dataset) == 160
    found = examine(dataset)
    assert not found.overlaps
    assert not found.duplicates
    assert not found.near
    assert all(e.target is None for e in everything(dataset))


def test_every_kind_occurs_in_every_split(dataset: Dataset) -> None:
    for split, part in dataset.items():
        used = Counter(str(c["kind"]) for e in part for c in constraints_of(e))
        assert set(used) == set(KINDS), split
        assert min(used.values()) >= 4


def test_prompts_carry_zero_to_eight_constraints(dataset: Dataset) -> None:
    for _, part in dataset.items():
        counts = Counter(len(constraints_of(e)) for e in part)
        assert set(counts) == set(range(9))
        assert sum(counts[n] for n in (2, 3, 4)) / len(part) == pytest.approx(0.6, abs=0.05)


def test_constraints_are_well_formed_and_compatible(dataset: Dataset) -> None:
    for example in everything(dataset):
        kinds = [str(c["kind"]) for c in constraints_of(example)]
        for position, constraint in enumerate(constraints_of(example)):
            assert set(constraint) == {"kind", *PARAMETERS[kinds[position]]}
            assert compatible(kinds[position], kinds[:position] + kinds[position + 1 :])


def test_every_prompt_can_be_satisfied(dataset: Dataset) -> None:
    for example in everything(dataset):
        text = witness(example.input, constraints_of(example))
        assert text is not None, example
        if constraints_of(example):
            assert reward(example, text).value == 1.0


def test_every_constraint_is_stated_with_its_parameters(dataset: Dataset) -> None:
    for example in everything(dataset):
        for constraint in constraints_of(example):
            for name, value in constraint.items():
                if name == "kind":
                    continue
                shown = ", ".join(value) if isinstance(value, list) else str(value)
                assert shown in example.input


def test_phrasings() -> None:
    wordings = read_wordings()
    assert set(wordings) == set(KINDS)
    assert all(len(set(texts)) >= 4 for texts in wordings.values())


def test_seeds() -> None:
    task = load_task("constraints")
    assert 16 <= len(task.seeds) == len(set(task.seeds)) <= 20
    assert all(len(seed.split()) <= 60 for seed in task.seeds)


def example_with(*constraints: dict[str, object]) -> Example:
    return Example("x", "prompt", fields={"constraints": list(constraints)})


def test_the_reward_is_the_share_kept() -> None:
    example = example_with(
        {"kind": "sentences", "n": 1}, {"kind": "no_commas"}, {"kind": "no_digits"}
    )
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


def test_the_seeds_leave_something_to_learn(dataset: Dataset) -> None:
    """A plain paragraph keeps some constraints and breaks many: there is room above zero-shot."""
    plain = "Here is a plain answer, written without any regard for what was asked. " * 3
    values = [reward(e, plain).value for e in everything(dataset) if constraints_of(e)]
    assert 0.05 < sum(values) / len(values) < 0.6
    assert check({"kind": "no_digits"}, "p", plain).satisfied
