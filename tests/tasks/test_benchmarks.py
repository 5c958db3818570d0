"""What the six benchmarks have in common: our own examples, data folders, and faulty files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from promptcodebook import tasks
from promptcodebook.errors import DataError, TaskError
from promptcodebook.tasks.task import load_task
from tests.tasks.shared import shared

REAL = {
    "aime": [45, 45, 20],
    "hotpotqa": [150, 300, 200],
    "hover": [43, 86, 58],
    "ifbench": [150, 300, 196],
    "livebench_math": [123, 123, 81],
    "pupa": [111, 111, 147],
}
"""Examples of each split in the shared data."""
each = pytest.mark.parametrize("name", REAL)
FAULTS: dict[str, list[tuple[dict[str, object] | str, str]]] = {
    "aime": [({"answer": "1000"}, "the answer '1000' is not an integer from 0 to 999")],
    "hotpotqa": [
        ({"answer": None}, "'answer' must be a text"),
        ({"question": " "}, "'question' is empty"),
        *(({"gold_titles": t}, "'gold_titles' must be a list of titles") for t in ([], [1])),
        ({"gold_titles": "Oak"}, "'gold_titles' must be a list, not a text"),
        *(
            ({"supporting_facts": facts}, "'supporting_facts' must hold pairs")
            for facts in (["Oak"], [["Oak", "0"]], [["Oak", True]])
        ),
        ({"supporting_facts": ...}, "'supporting_facts' is missing"),
    ],
    "hover": [
        ({"claim": 7}, "the field 'claim' must be a text"),
        ({"claim": " "}, "the uid or the claim is empty"),
        ({"label": "perhaps"}, "the label 'perhaps' is neither SUPPORTED nor"),
        *(({"gold_titles": t}, "gold_titles names no gold pages") for t in ([], "Mill", ["M", 3])),
        ({"gold_titles": None, "supporting_facts": [[]]}, "supporting_facts names no gold pages"),
    ],
    "ifbench": [
        ({"kwargs": None}, "the field 'kwargs' must be a list, not null"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": [None]}, "one object for"),
        (
            {"instruction_id_list": ["a"], "kwargs": []},
            "1 constraints in instruction_id_list",
        ),
        ({"instruction_id_list": [], "kwargs": []}, "0 constraints"),
        ({"instruction_id_list": ["a"], "kwargs": [{}]}, "unknown instruction id"),
        ({"instruction_id_list": ["count:numbers"], "kwargs": [{}]}, "needs the argument 'N'"),
        ({"prompt": " "}, "the prompt is blank"),
    ],
    "livebench_math": [
        ({"question": ...}, "the field 'question' is missing"),
        ({"question": " "}, "the field 'question' is empty"),
        ({"subtask": "poetry"}, "unknown subtask 'poetry'"),
        ({"subtask": "smc", "ground_truth": "F"}, "of a smc row must be one letter"),
        ({"subtask": "aime_i", "ground_truth": "7"}, "must be three digits"),
        ({"subtask": "imo", "ground_truth": "1;2"}, "must be a list"),
        ({"subtask": "amps_hard", "ground_truth": ""}, "must be LaTeX"),
    ],
    "pupa": [
        ('{"id": "SECRET', "cannot be read"),
        ({"target_response": ["SECRET"]}, "'target_response' must be a text"),
        ({"user_query": "SECRET", "target_response": " "}, "'target_response' is empty"),
        ({"user_query": "SECRET"}, "the field 'id' is that of an earlier row"),
    ],
}
"""Changes of a good row, or a line, and what is said of it."""


@pytest.fixture(autouse=True)
def _own_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test meets a data folder or a public copy of the person who runs it."""
    monkeypatch.delenv("PCO_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no copy here"))


@pytest.fixture
def folder(tmp_path: Path, name: str) -> Path:
    """A data folder that holds what ships as examples."""
    shipped = Path(tasks.__file__).parent / name / "examples"
    return Path(shutil.copytree(shipped, tmp_path / "data" / name))


@each
def test_without_data_our_own_examples_stand_in_and_the_task_says_so(name: str) -> None:
    task = load_task(name)
    assert task.name == task.dataset.name == name
    assert all(len(part) >= 3 for _, part in task.dataset.items())
    assert len(task.seeds) == len(set(task.seeds)) >= 16
    assert "examples of our own" in task.description
    assert f"pco data fetch {name}" in task.description


@each
def test_a_folder_or_its_parent(name: str, folder: Path) -> None:
    for given in (folder, folder.parent):
        task = load_task(name, given)
        assert task.dataset == load_task(name).dataset
        assert "of our own" not in task.description


@each
def test_what_is_missing_is_named(name: str, folder: Path) -> None:
    if name in ("hotpotqa", "hover"):
        (folder / "corpus.jsonl").rename(folder / "kept")
        with pytest.raises(TaskError, match=r"needs .*corpus\.jsonl, which is missing") as caught:
            load_task(name, folder)
        assert '"sentences"' in caught.value.hint
        (folder / "kept").rename(folder / "corpus.jsonl")
    (folder / "val.jsonl").unlink()
    with pytest.raises(TaskError, match=r"needs .*val\.jsonl, which is missing"):
        load_task(name, folder)
    with pytest.raises(TaskError, match=r"no train\.jsonl in") as caught:
        load_task(name, folder.parent.parent)
    assert "--data" in caught.value.hint


@each
def test_a_faulty_line_is_named(name: str, folder: Path) -> None:
    lines = (folder / "test.jsonl").read_text("utf-8").splitlines()
    for text, said in (
        ("\n".join([*lines, "{oops"]), rf"test\.jsonl:{len(lines) + 1}"),
        ("\n".join([lines[0], lines[0]]), "occurs twice|of an earlier row"),
        ("", r"test\.jsonl"),
    ):
        (folder / "test.jsonl").write_text(text, "utf-8")
        with pytest.raises(DataError, match=said) as caught:
            load_task(name, folder)
        assert caught.value.hint


@each
def test_the_real_data_can_be_read(name: str) -> None:
    dataset = load_task(name, shared("data", name)).dataset
    assert [len(part) for _, part in dataset.items()] == REAL[name]


@pytest.mark.parametrize(
    ("name", "change", "said"), [(name, *fault) for name, all_ in FAULTS.items() for fault in all_]
)
def test_a_faulty_row_is_named(
    name: str, folder: Path, change: dict[str, object] | str, said: str
) -> None:
    good = (folder / "val.jsonl").read_text("utf-8").splitlines()[0]
    bad = change
    if isinstance(bad, dict):
        bad = json.dumps({k: v for k, v in {**json.loads(good), **bad}.items() if v is not ...})
    (folder / "val.jsonl").write_text(f"{good}\n{bad}\n", "utf-8")
    with pytest.raises(DataError) as caught:
        load_task(name, folder)
    assert str(caught.value).startswith(f"{folder / 'val.jsonl'}:2")
    assert said in str(caught.value) and caught.value.hint
    assert "SECRET" not in f"{caught.value} {caught.value.hint}", "a private row is never quoted"
