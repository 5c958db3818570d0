"""The livebench_math task: its data, its reward and what it tells the critic."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from promptcodebook.data import SPLITS
from promptcodebook.errors import DataError, TaskError
from promptcodebook.tasks.livebench_math.readings import option_value
from promptcodebook.tasks.livebench_math.score import kind_of
from promptcodebook.tasks.livebench_math.task import load_livebench_math, reward
from promptcodebook.tasks.task import load_task
from promptcodebook.types import Example

SHARED = Path(os.environ.get("PCO_SHARED") or Path(__file__).parents[4] / "shared")
FORMS = {"choice": "{}", "aime": "{}", "rearrangement": "Answer: {}", "amps": r"\boxed{{{}}}"}
ROW: dict[str, object] = {
    "question_id": "one",
    "task": "math_comp",
    "subtask": "smc",
    "question": "What is 2 + 3?",
    "ground_truth": "A",
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data folder, and no public copy that someone fetched earlier."""
    monkeypatch.delenv("PCO_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def folder(path: Path, **changed: object) -> Path:
    """A data folder whose train.jsonl has a good row and then one with `changed` fields."""
    for split in SPLITS:
        rows = [{**ROW, "question_id": split}]
        if split == "train":
            rows.append({k: v for k, v in {**ROW, **changed}.items() if v is not ...})
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (path / f"{split}.jsonl").write_text(text, "utf-8")
    return path


def example(subtask: str, gold: str, question: str = "?") -> Example:
    return Example("x", question, gold, fields={"task": "t", "subtask": subtask})


@pytest.mark.usefixtures("own")
async def test_own_examples_cover_the_four_scorers_and_their_gold_is_right() -> None:
    task = load_task("livebench_math")
    kinds = Counter[str]()
    for _, examples in task.dataset.items():
        for one in examples:
            kind = kind_of(str(one.fields["subtask"]))
            kinds[kind] += 1
            gold = one.target or ""
            said = FORMS[kind].format(gold * 5 if kind == "choice" else gold)
            assert (await reward(one, said)).value == 1.0
            assert (await reward(one, "I do not know.")).value == 0.0
            if kind == "choice":
                assert option_value(one.input, gold) != "FAILURE"
    assert set(kinds) == set(FORMS) and kinds.total() >= 8
    assert len(task.seeds) >= 16 and len(set(task.seeds)) == len(task.seeds)
    assert "our own" in task.description and "pco data fetch livebench_math" in task.description


def test_the_shared_data_are_read_and_every_gold_has_its_form() -> None:
    path = SHARED / "data" / "livebench_math"
    if not path.is_dir():
        pytest.skip(f"no data at {path}; set PCO_SHARED to the folder that holds them")
    task = load_livebench_math(path)
    assert len(task.dataset.train) == len(task.dataset.val) == 123
    assert load_livebench_math(path.parent).dataset.train == task.dataset.train


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"question": ...}, r"train\.jsonl:2: the field 'question' is missing"),
        ({"question": " "}, r"train\.jsonl:2: the field 'question' is empty"),
        ({"question": 5}, r"train\.jsonl:2: the field 'question' must be a text"),
        ({"subtask": "poetry"}, r"train\.jsonl:2: unknown subtask 'poetry'"),
        ({"ground_truth": "F"}, r"train\.jsonl:2: .* of a smc row must be one letter"),
        ({"subtask": "aime_i", "ground_truth": "7"}, r"train\.jsonl:2: .* must be three digits"),
        ({"subtask": "imo", "ground_truth": "1;2"}, r"train\.jsonl:2: .* must be a list"),
        ({"subtask": "amps_hard", "ground_truth": ""}, r"train\.jsonl:2: .* must be LaTeX"),
        ({"question_id": "val"}, r"'val' occurs twice"),
    ],
)
def test_malformed_rows(tmp_path: Path, changed: dict[str, object], match: str) -> None:
    with pytest.raises(DataError, match=match) as caught:
        load_livebench_math(folder(tmp_path, **changed))
    assert caught.value.hint


def test_a_line_that_is_no_json_and_a_missing_split(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "val.jsonl").write_text("{oops\n", "utf-8")
    with pytest.raises(DataError, match=r"val\.jsonl:1"):
        load_livebench_math(tmp_path)
    (tmp_path / "val.jsonl").unlink()
    with pytest.raises(TaskError, match=r"val\.jsonl, which is missing"):
        load_livebench_math(tmp_path)


CUBE = r"How many corners? $\textbf{(A)}~6 \qquad \textbf{(B)}~8 \qquad \textbf{(C)}~10$"


@pytest.mark.parametrize(
    ("subtask", "gold", "answer", "said"),
    [
        ("smc", "B", "BBBBB", ["Right: the answer is B (read from: repeated letter)"]),
        ("smc", "B", "AAAAA", ["chose A (6)", "right choice is B, which is 8"]),
        ("smc", "B", "Who knows?", ["No choice could be read", "BBBBB"]),
        ("aime_i", "057", "It is 57", ["57 is right", "exactly three digits", "057"]),
        ("aime_i", "057", "057 it is" + "." * 60, ["not at the end"]),
        ("aime_i", "057", "058", ["Wrong: the right answer is 057"]),
        ("imo", "3,1,2", "Answer: 3,2", ["67%", "3, 1, 2", "2 numbers for 3 gaps", "gap 2 needs"]),
        ("imo", "3,1,2", "no idea", ["No list", "'Answer: '"]),
        ("amps_hard", "x+1", r"\boxed{x+2}", ['read as "x+2"', "right answer is x+1"]),
        ("amps_hard", "x+1", "x plus one", [r"\boxed{...}"]),
        ("amps_hard", "x+1", r"\boxed{?}", ["could not be read as a formula"]),
    ],
)
async def test_feedback(subtask: str, gold: str, answer: str, said: list[str]) -> None:
    given = await reward(example(subtask, gold, CUBE), answer)
    for piece in said:
        assert piece in given.feedback
