"""Where a benchmark's rows come from, and what is said when they are not as they should be."""

from pathlib import Path

import pytest
from pydantic import field_validator

from promptcodebook.errors import DataError, TaskError
from promptcodebook.tasks.home import (
    BenchmarkRow,
    folder_of,
    home_of,
    jsonl_splits,
    read_rows,
    read_seeds,
    unique_ids,
)
from promptcodebook.types import Example


class Problem(BenchmarkRow):
    problem: str


class Counted(BenchmarkRow):
    id: str
    n: int | float


class Query(BenchmarkRow):
    q: str


SECRET = "Jane Roe, 12 Elm Street"


def folder(path: Path, *splits: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for split in splits or ("train", "val", "test"):
        (path / f"{split}.jsonl").write_text('{"id": "1", "n": 2}\n', "utf-8")
    return path


def lines(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows) + "\n", "utf-8")
    return path


def test_a_folder_or_its_parent_may_be_given(tmp_path: Path) -> None:
    own = folder(tmp_path / "ifbench")
    assert folder_of("ifbench", tmp_path) == own
    assert folder_of("ifbench", own) == own
    assert home_of("ifbench", tmp_path).folder == own


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no train.jsonl in .* nor in .*hover"):
        folder_of("hover", tmp_path)
    folder(tmp_path / "hover", "train", "val")
    with pytest.raises(TaskError, match=r"hover/test.jsonl, which is missing") as caught:
        folder_of("hover", tmp_path)
    assert "--data DIR" in caught.value.hint


def test_without_anything_our_own_examples_are_read() -> None:
    home = home_of("aime")
    assert home.folder.is_dir()
    assert "examples of our own" in home.origin
    assert "pco data fetch aime" in home.origin
    assert all(jsonl_splits(home.folder, Problem).values())


def test_rows_know_their_line(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", '{"id": "1"}', "", '{"id": "2"}')
    assert [(where, row) for where, row in read_rows(path, BenchmarkRow)] == [
        (f"{path}:1", BenchmarkRow()),
        (f"{path}:3", BenchmarkRow()),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken", "not valid JSON"),
        ("[1]", "expected a JSON object"),
        ('{"id": "1"}', "the field 'n' is missing"),
        ('{"id": "1", "n": null}', "'n' must be a whole number or a number, not null"),
        ('{"id": "1", "n": true}', "'n' must be a whole number or a number, not true or false"),
        ('{"id": 1, "n": 2}', "'id' must be a text, not a whole number"),
    ],
)
def test_faults_name_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    path = lines(tmp_path / "a.jsonl", '{"id": "1", "n": 1.5}', line)
    with pytest.raises(DataError) as caught:
        read_rows(path, Counted)
    assert str(caught.value).startswith(f"{path}:2")
    assert said in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "line",
    [
        f'{{"q": "{SECRET}"',
        f'"{SECRET}"',
        f'{{"{SECRET}": 1, "{SECRET}": 2}}',
        f'{{"q": ["{SECRET}"]}}',
        f'{{"{SECRET}": 1}}',
    ],
)
def test_a_private_files_faults_quote_nothing_of_it(tmp_path: Path, line: str) -> None:
    path = lines(tmp_path / "a.jsonl", '{"q": "x"}', line)
    with pytest.raises(DataError) as caught:
        read_rows(path, Query, private=True)
    assert f"{path}:2" in str(caught.value)
    assert SECRET not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"
    # A bad byte or an empty file has no content to show either.
    path.write_bytes(b'{"q": "\xff"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:1"):
        read_rows(path, Query, private=True)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.jsonl"):
        read_rows(path, Query, private=True)


def test_ids_are_unique_over_the_splits() -> None:
    one = Example("1", "x")
    unique_ids({"train": [one], "val": [Example("2", "x")], "test": []})
    with pytest.raises(DataError, match="'1' occurs twice, in train and in test"):
        unique_ids({"train": [one], "val": [], "test": [one]})


class Sound(BenchmarkRow):
    q: str

    @field_validator("q")
    @classmethod
    def _check(cls, text: str) -> str:
        if not text.strip():
            raise DataError("the question is blank", hint="fill it in")
        return text


def test_a_rows_own_rule_is_reported_at_its_line(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", '{"q": "x"}', '{"q": " "}')
    with pytest.raises(DataError, match=r"a\.jsonl:2: the question is blank") as caught:
        read_rows(path, Sound)
    assert caught.value.hint == "fill it in"


def test_seeds_are_lines_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "seeds.txt").write_text("One {x}.\n\n  Two.  \n", "utf-8")
    assert read_seeds(tmp_path) == ("One {x}.", "Two.")
