from __future__ import annotations

import json
from pathlib import Path

from tests.cli.invoked import pco


def test_a_clean_file_is_described(folder: Path) -> None:
    result = pco("data", "check", "data.jsonl", cwd=folder)
    assert result.code == 0
    assert "24 examples" in result.out and "no input appears in two splits" in result.out


def test_an_input_in_two_splits_fails_with_both_places(tmp_path: Path) -> None:
    rows = [{"q": f"What is {n}?", "a": "x", "part": "train"} for n in range(4)]
    rows += [{"q": "What is 2?", "a": "x", "part": "test"}, {"q": "And?", "a": "x", "part": "val"}]
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    args = ("data", "check", "d.jsonl", "--input", "q", "--target", "a", "--split", "part")
    result = pco(*args, cwd=tmp_path)
    assert result.code == 1
    assert "fail" in result.out and "(train)" in result.out and "(test)" in result.out
    as_json = pco(*args, "--json", cwd=tmp_path)
    assert as_json.code == 1
    assert as_json.json["clean"] is False and len(as_json.json["overlaps"]) == 1


def test_duplicates_are_warned_of(tmp_path: Path) -> None:
    rows = [{"input": f"Question {n % 5}", "target": ""} for n in range(6)]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = pco("data", "check", "d.jsonl", cwd=tmp_path)
    assert result.code == 0 and "have the same input" in result.out


def test_a_conflict_is_shown_with_both_targets(tmp_path: Path) -> None:
    rows = [{"input": f"Question {n // 2}", "target": f"answer {n}"} for n in range(12)]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = pco("data", "check", "d.jsonl", cwd=tmp_path)
    assert result.code == 0
    assert "6 inputs with more than one target" in result.out
    assert "'answer 0'" in result.out and "'answer 1'" in result.out
    conflicts = pco("data", "check", "d.jsonl", "--json", cwd=tmp_path).json["conflicts"]
    assert sorted(sorted(c["targets"]) for c in conflicts)[0] == ["answer 0", "answer 1"]


def test_a_wrong_column_gets_a_did_you_mean(folder: Path) -> None:
    result = pco("data", "check", "data.jsonl", "--target", "traget", cwd=folder)
    result.error(2, "did you mean 'target'")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    pco("data", "check", "none.jsonl", cwd=tmp_path).error(2, "none.jsonl")
