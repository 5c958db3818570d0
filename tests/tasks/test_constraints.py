"""The shipped prompts are sound, and the reward is the share of constraints kept."""

import json
from collections import Counter
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.data import Dataset, examine
from promptcodebook.errors import TaskError
from promptcodebook.tasks.constraints.checks import KINDS, PARAMETERS, Constraint, check
from promptcodebook.tasks.constraints.task import (
    SIZES,
    compatible,
    compose,
    constraints_of,
    read_wordings,
    reward,
)
from promptcodebook.tasks.task import load_task
from promptcodebook.types import Example


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


@given(st.sampled_from([c for c, _, _ in CASES]), st.text(max_size=80))
def test_any_text_gets_a_verdict(constraint: dict[str, object], text: str) -> None:
    assert check(constraint, "prompt", text).explanation


def test_what_is_said_names_found_and_wanted() -> None:
    said = check({"kind": "sentences", "n": 3}, "p", "A b. C d. E f. G h.").explanation
    assert said == "The answer has 4 sentences; exactly 3 were asked for."


def test_malformed_constraints() -> None:
    with pytest.raises(TaskError, match=r"unknown constraint kind 'sentence'.*'sentences'"):
        check({"kind": "sentence", "n": 3}, "p", "x")
    with pytest.raises(TaskError, match="'letter_count' of the prompt 'p' lacks n"):
        check({"kind": "letter_count", "letter": "x"}, "p", "x")


# Builds an answer that keeps all constraints of a prompt at once: the proof that one exists.


FILLER = "zumble"


def witness(prompt: str, constraints: tuple[Constraint, ...]) -> str | None:
    """The shortest padded answer that keeps them all, None if there is none of this make."""
    asked = {str(c["kind"]): c for c in constraints}
    assert len(asked) == len(constraints), "no kind occurs twice in a prompt"
    for padding in range(200):
        text = _answer(asked, padding)
        if all(check(c, prompt, text).satisfied for c in constraints):
            return text
    return None


def _number(asked: Mapping[str, Constraint], kind: str, otherwise: int = 0) -> int:
    return int(str(asked[kind]["n"])) if kind in asked else otherwise


def _tokens(asked: Mapping[str, Constraint], padding: int) -> list[str]:
    """The words that single constraints want, and the padding."""
    tokens = [FILLER] * (padding + 1)
    if "include" in asked:
        tokens += asked["include"]["words"]  # type: ignore[arg-type]
    tokens += ["[gap]"] * _number(asked, "placeholders")
    tokens += ["7"] * _number(asked, "exact_numbers")
    if "letter_count" in asked:
        tokens.append(str(asked["letter_count"]["letter"]) * _number(asked, "letter_count"))
    return tokens


def _answer(asked: Mapping[str, Constraint], padding: int) -> str:
    tokens = _tokens(asked, padding)
    if "json" in asked:
        keys: list[str] = asked["json"]["keys"]  # type: ignore[assignment]
        values = {key: FILLER for key in keys} | {keys[0]: " ".join(tokens)}
        return json.dumps(values)
    text = _prose(asked, tokens)
    if "two_versions" in asked:
        first, rest = text.split(FILLER, 1)
        text = f"{first}{FILLER}\n******\n{rest.strip() or FILLER * 2}"
    if "quoted" in asked:
        text = f'"{text}"'
    if "uppercase" in asked:
        text = text.upper()
    return text


def _prose(asked: Mapping[str, Constraint], tokens: list[str]) -> str:
    closing = [str(asked["end_with"]["text"])] if "end_with" in asked else []
    blocks = _number(asked, "paragraphs", 2 if "postscript" in asked else 1)
    count = max(_number(asked, "sentences", blocks + len(closing)), blocks)
    opening = f"{asked['start_with']['text']} " if "start_with" in asked else ""
    sentences = [f"{opening}{' '.join(tokens)}."]
    sentences += [f"{FILLER}."] * (count - 1 - len(closing)) + closing
    paragraphs = [*sentences[: blocks - 1], " ".join(sentences[blocks - 1 :])]
    if "postscript" in asked:
        paragraphs[-1] = f"P.S. {paragraphs[-1]}"
    lines = [f"## {FILLER}" for _ in range(_number(asked, "headings"))]
    lines += ["<<" + FILLER + ">>"] if "title" in asked else []
    bullets = _number(asked, "bullets") + _number(asked, "alphabetical")
    items = ["- " + FILLER] * bullets
    items += [f"{k}. {FILLER}" for k in range(1, _number(asked, "numbered") + 1)]
    if "paragraphs" in asked or "postscript" in asked:
        paragraphs[0] = "\n".join([*lines, paragraphs[0], *items])
        return "\n\n".join(paragraphs)
    if closing and items:
        body = paragraphs[0].removesuffix(closing[0]).strip()
        return "\n".join([*lines, body, *items, closing[0]])
    return "\n".join([*lines, *paragraphs, *items])
