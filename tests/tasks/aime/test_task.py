"""The aime task on our own problems, on a folder, and on folders that lack something."""

import json
import os
from pathlib import Path

import pytest

from promptcodebook.errors import DataError, TaskError
from promptcodebook.tasks.aime.score import reward
from promptcodebook.tasks.aime.task import load_aime
from promptcodebook.types import Example

SHARED = Path(os.environ.get("PCO_SHARED") or Path(__file__).parents[4] / "shared")


def write(folder: Path, split: str, rows: list[dict[str, object]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


def problems(split: str, count: int = 2, answer: str = "7") -> list[dict[str, object]]:
    return [
        {"id": f"{split}-{n}", "problem": f"{split} {n}?", "answer": answer, "solution": "Because."}
        for n in range(count)
    ]


def test_without_a_folder_our_own_problems_stand_in_and_it_says_so() -> None:
    task = load_aime()
    assert [len(part) for _, part in task.dataset.items()] == [4, 4, 4]
    assert "12 problems; a few examples of our own" in task.description
    assert len(task.seeds) >= 16
    assert all(e.fields["solution"] for e in task.dataset.test)


@pytest.mark.parametrize("nested", [False, True])
def test_a_folder_or_its_parent(tmp_path: Path, nested: bool) -> None:
    folder = tmp_path / "aime" if nested else tmp_path
    for split in ("train", "val", "test"):
        write(folder, split, problems(split))
    task = load_aime(tmp_path)
    assert [e.id for e in task.dataset.test] == ["test-0", "test-1"]
    assert "of our own" not in task.description


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no train\.jsonl in") as caught:
        load_aime(tmp_path)
    assert "--data" in caught.value.hint
    write(tmp_path, "train", problems("train"))
    with pytest.raises(TaskError, match=r"needs .*val\.jsonl, which is missing"):
        load_aime(tmp_path)


def test_bad_rows_are_named(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        write(tmp_path, split, problems(split))
    write(tmp_path, "test", problems("test", answer="1000"))
    with pytest.raises(DataError, match=r"test\.jsonl:1: .*'1000' is not an integer from 0 to 999"):
        load_aime(tmp_path)
    (tmp_path / "test.jsonl").write_text("{")
    with pytest.raises(DataError, match=r"test\.jsonl:1: not valid JSON"):
        load_aime(tmp_path)


def test_the_real_problems() -> None:
    folder = SHARED / "data" / "aime"
    if not folder.is_dir():
        pytest.skip(f"no AIME data at {folder}; set PCO_SHARED to the folder that holds data/aime")
    dataset = load_aime(SHARED / "data").dataset
    assert (len(dataset.train), len(dataset.val)) == (45, 45)
    assert len(dataset.test) >= 20


def test_feedback() -> None:
    example = Example("a", "p", "7", fields={"solution": "Add them. " * 400})
    assert reward(example, r"\boxed{7}").feedback == "The answer 7 is right."
    wrong = reward(example, r"\boxed{8}")
    assert wrong.value == 0.0
    assert wrong.feedback.startswith("The answer 8 is wrong; the right answer is 7. A worked")
    assert len(wrong.feedback) < 1700
    unread = reward(Example("a", "p", "7"), "seven")
    assert unread.feedback.startswith("No answer could be read")
    assert unread.feedback.endswith("The right answer is 7.")
