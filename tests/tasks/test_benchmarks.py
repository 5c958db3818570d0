"""What the six benchmarks have in common: our own examples, data folders, and faulty files."""

from __future__ import annotations

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
pytestmark = pytest.mark.parametrize("name", REAL)


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


def test_without_data_our_own_examples_stand_in_and_the_task_says_so(name: str) -> None:
    task = load_task(name)
    assert task.name == task.dataset.name == name
    assert all(len(part) >= 3 for _, part in task.dataset.items())
    assert len(task.seeds) == len(set(task.seeds)) >= 16
    assert "examples of our own" in task.description
    assert f"pco data fetch {name}" in task.description


def test_a_folder_or_its_parent(name: str, folder: Path) -> None:
    for given in (folder, folder.parent):
        task = load_task(name, given)
        assert task.dataset == load_task(name).dataset
        assert "of our own" not in task.description


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


def test_the_real_data_can_be_read(name: str) -> None:
    dataset = load_task(name, shared("data", name)).dataset
    assert [len(part) for _, part in dataset.items()] == REAL[name]
