"""IN and OUT in every form: what a column is on the way in is what it is on the way out."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from promptcodebook.deploy.batch.rows import (
    RowResult,
    added_names,
    survey,
    write_output,
)
from promptcodebook.errors import DataError

RESULTS = (
    RowResult("a,\nb \U0001f6b2", (0, 3)),
    RowResult(None, None, "LMError at execute: no"),
    RowResult("", ()),
)
PREFIX = "pco_"
ROWS: list[dict[str, Any]] = [
    {"n": 1, "text": 'he said "no";\n', "tags": ["x", "y"]},
    {"n": 2, "text": None, "tags": []},
    {"n": 3, "text": "plain", "tags": ["z"], "late": 0.5},
]


def made(folder: Path, kind: str) -> Path:
    path = folder / f"in.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    elif kind == "parquet":
        parquet.write_table(arrow.Table.from_pylist(ROWS), path)
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if kind == "tsv" else ",")
            writer.writerows([("n", "text"), *((r["n"], r["text"]) for r in ROWS)])
    return path


def through(folder: Path, kind: str, out: str, results: Sequence[RowResult] = RESULTS) -> Path:
    target = folder / f"out.{out}"
    write_output(target, survey(made(folder, kind)), iter(results), PREFIX)
    return target


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
@pytest.mark.parametrize("out", ["jsonl", "csv", "tsv", "parquet"])
def test_every_form_becomes_every_form(kind: str, out: str, tmp_path: Path) -> None:
    target = through(tmp_path, kind, out)
    source = survey(tmp_path / f"in.{kind}")
    back = survey(target)
    assert back.count == 3 and {*back.columns} == {*source.columns, *added_names(PREFIX)}
    texts = [row.values["text"] for row in back.rows()]
    assert texts == ['he said "no";\n', None, "plain"]
    answers = [row.values["pco_answer"] for row in back.rows()]
    assert answers == ["a,\nb \U0001f6b2", None, "" if out in ("jsonl", "parquet") else None]


@pytest.mark.parametrize("out", ["csv", "tsv"])
def test_a_line_break_is_quoted(out: str, tmp_path: Path) -> None:
    results = (RowResult("one\rtwo", (0,)), RowResult("\r", ()), RowResult(None, None, "torn\r"))
    target = through(tmp_path, "jsonl", out, results)
    assert target.read_bytes().count(b"\r") == 3, "lines still end in LF alone"
    with target.open(newline="") as file:
        rows = list(csv.reader(file, delimiter="\t" if out == "tsv" else ",", strict=True))
    assert len(rows) == 4 and "one\rtwo" in rows[1]


def test_json_lines_keep_their_values(tmp_path: Path) -> None:
    lines = through(tmp_path, "jsonl", "jsonl").read_text("utf-8").splitlines()
    assert json.loads(lines[2]) == {
        "n": 3, "text": "plain", "tags": ["z"], "late": 0.5,
        "pco_answer": "", "pco_route": [], "pco_error": None,
    }  # fmt: skip
    assert "late" not in json.loads(lines[0])


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    table = arrow.table(
        {
            "day": [date(2026, 1, 2), None, date(2026, 1, 3)],
            "n": arrow.array([1, 2, 3], arrow.int8()),
            "text": ["a", "b", "c"],
        }
    )
    parquet.write_table(table, tmp_path / "in.parquet")
    target = tmp_path / "out.parquet"
    write_output(target, survey(tmp_path / "in.parquet"), iter(RESULTS), PREFIX)
    schema = parquet.read_schema(target)
    assert [schema.field(name).type for name in ("day", "n")] == [arrow.date32(), arrow.int8()]
    assert schema.field("pco_route").type == arrow.list_(arrow.int64())
    assert parquet.read_table(target).column("pco_answer").to_pylist() == [
        "a,\nb \U0001f6b2", None, "",
    ]  # fmt: skip


def test_types_that_a_later_piece_widens_fit_the_whole(tmp_path: Path) -> None:
    rows = [{"text": "x", "n": None if n < 1030 else n + 0.5} for n in range(1100)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    target = tmp_path / "out.parquet"
    write_output(target, survey(tmp_path / "in.jsonl"), iter([RESULTS[0]] * 1100), PREFIX)
    column = parquet.read_table(target).column("n").to_pylist()
    assert column[:1030] == [None] * 1030 and column[1030] == 1030.5


def test_values_of_several_kinds_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a", "n": 1}\n{"text": "b", "n": "one"}\n')
    with pytest.raises(DataError, match="values of several kinds"):
        write_output(
            tmp_path / "o.parquet", survey(tmp_path / "in.jsonl"), iter(RESULTS[:2]), PREFIX
        )
    assert [f.name for f in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(("data", "message"), [
    (b'{"a": 1}\n\xff\xfe{}\n', r"in.jsonl:2: byte 1 of the line \(0xff\) is not UTF-8"),
    (b'{"a": 1}\n[1]\n', r"in.jsonl:2: expected a JSON object"),
    (b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}', ""),
])  # fmt: skip
def test_lines_are_read_as_training_data_are(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(data)
    if message:
        with pytest.raises(DataError, match=message):
            survey(tmp_path / "in.jsonl")
    else:
        source = survey(tmp_path / "in.jsonl")
        assert (source.count, source.columns) == (2, ("a",))
