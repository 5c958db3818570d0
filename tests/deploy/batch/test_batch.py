"""Batches over files of every format: rows in, rows out, and what is done again."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from itertools import product
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
from promptcodebook.deploy.batch.rows import RowResult as Answered
from promptcodebook.deploy.batch.session import BatchJob, BatchSession
from promptcodebook.errors import RunBusy
from promptcodebook.policy.file import read_policy_file
from tests.build.batch import answering, read_lines, write_rows
from tests.build.cli import Result, pco, served
from tests.build.server import Server, fails


def batch(
    folder: Path, server: Server, *more: str, out: str = "out.jsonl", cache: str = "false"
) -> Result:
    source = more[:1] if more and not more[0].startswith("-") else ()
    where, rest = ("p.json", *(source or ("in.jsonl",)), out), more[len(source) :]
    return pco("batch", *where, "--lm", server.spec, "--set", f"cache={cache}", *rest, cwd=folder)


def test_every_row_comes_out_in_its_order_with_answer_route_and_error(
    work: Path, server: Server
) -> None:
    write_rows(work / "in.jsonl", 60, note=None)
    result = batch(work, server, "--json")
    assert result.code == 0, result.err
    rows = read_lines(work / "out.jsonl")
    assert [row["n"] for row in rows] == list(range(60))
    read = {"n": 7, "question": "How far is 7?", "note": None}
    made = {"answer": "As far as that: How far is 7?", "route": [1, 3], "error": None}
    assert rows[7] == read | made
    told = result.json
    assert (told["rows"], told["answered"], told["failed"], told["resumed"]) == (60, 60, 0, 0)
    assert told["calls"] == server.calls == 120
    assert sorted(file.name for file in work.iterdir()) == ["in.jsonl", "out.jsonl", "p.json"]


def test_a_row_that_fails_is_recorded_and_asked_again_by_restart_alone(work: Path) -> None:
    write_rows(work / "in.jsonl", 30)
    server, answers = answering(fails_on=("is 4?", "is 19?"))
    with served(server):
        first = batch(work, server, cache="true")
        assert first.code == 1 and "2 of 30 rows failed" in first.out and "--restart" in first.out
        failed = {row["n"]: row for row in read_lines(work / "out.jsonl") if row["error"]}
        assert sorted(failed) == [4, 19]
        assert failed[4]["answer"] is None and "RequestRefused at execute" in failed[4]["error"]
        answers.fails_on = ()
        before = len(answers.asked)
        second = batch(work, server, "--restart", "--json", cache="true")
    assert second.code == 0, second.err
    asked = [question for question in answers.asked[before:] if question]
    assert sorted(asked) == ["How far is 19?", "How far is 4?"]
    rows = read_lines(work / "out.jsonl")
    expected = [f"As far as that: How far is {n}?" for n in range(30)]
    assert [row["answer"] for row in rows] == expected
    assert not (work / "out.jsonl.part").exists()


def test_an_empty_cell_fails_its_row_alone(work: Path, server: Server) -> None:
    (work / "in.csv").write_text("question,n\nHow far is 1?,1\n,2\nHow far is 3?,3\n")
    result = batch(work, server, "in.csv", out="out.csv")
    assert result.code == 1, result.err
    lines = (work / "out.csv").read_text().splitlines()
    assert lines[0] == "question,n,answer,route,error"
    assert lines[1] == 'How far is 1?,1,As far as that: How far is 1?,"[1, 3]",'
    assert lines[2].startswith(",2,,,") and "'question' is null" in lines[2]


def test_a_dead_endpoint_stops_the_job_and_no_row_is_recorded(work: Path) -> None:
    write_rows(work / "in.jsonl", 500)
    dead = ("--lm", "http://127.0.0.1:9/v1#m", "--set", "retries=0")
    result = pco("batch", "p.json", "in.jsonl", "out.jsonl", *dead, cwd=work)
    result.error(1, "rows failed, so the batch stops", "EndpointDown")
    assert not (work / "out.jsonl").exists()
    assert (work / "out.jsonl.part" / "rows.jsonl").read_bytes() == b""


def test_an_endpoint_that_dies_midway_loses_no_row(work: Path) -> None:
    write_rows(work / "in.jsonl", 80)
    server, answers = answering()

    async def step(request: Any, body: dict[str, Any]) -> Any:
        dead = len(answers.asked) >= 60
        return await (fails(401, "bad key") if dead else answers)(request, body)

    server.default = step
    with served(server):
        result = batch(work, server, "--set", "concurrency=4")
        result.error(1, "AuthRefused")
        kept = (work / "out.jsonl.part" / "rows.jsonl").read_text().splitlines()
        assert 20 <= len(kept) < 80 and not any(json.loads(line)["error"] for line in kept)
        server.default = answers
        again = batch(work, server, "--json")
    assert again.code == 0 and again.json["resumed"] == len(kept)
    assert f"{len(kept)} of 80 rows are done" in again.err
    assert not any(row["error"] for row in read_lines(work / "out.jsonl"))


def test_a_budget_is_one_over_all_sessions_and_no_reply_is_paid_for_twice(work: Path) -> None:
    write_rows(work / "in.jsonl", 40)
    server, answers = answering()
    with served(server):
        first = batch(work, server, "--budget", "50calls")
        first.error(3, "50 calls")
        assert "pco batch p.json in.jsonl out.jsonl" in first.err and "--budget MORE" in first.err
        assert server.calls == 50
        batch(work, server, "--budget", "50calls").error(3, "50 calls")
        assert server.calls == 50, "what the first session spent counts"
        last = batch(work, server, "--budget", "80calls", "--json")
    assert last.code == 0, last.err
    assert server.calls == 80 and last.json["calls"] == 80
    assert len(set(filter(None, answers.asked))) == 40


def test_answers_to_rows_that_were_changed_meanwhile_are_not_written(work: Path) -> None:
    """They would stand beside rows that were never asked; put back, what was paid for counts."""
    rows = write_rows(work / "in.jsonl", 3)
    before = rows.read_text("utf-8")
    server, answers = answering()

    async def step(request: Any, body: dict[str, Any]) -> Any:
        write_rows(work / "new.jsonl", 3, note="another file now").replace(rows)
        return await answers(request, body)

    server.default = step
    with served(server):
        changed = batch(work, server)
        changed.error(2, "in.jsonl was changed while its batch was running", "restore it")
        assert not (work / "out.jsonl").exists()
        rows.write_text(before, "utf-8")
        server.default, paid = answers, server.calls
        assert batch(work, server).code == 0
    assert server.calls == paid == 6
    asked = [row["question"] for row in read_lines(work / "out.jsonl")]
    assert asked == [f"How far is {n}?" for n in range(3)]


def test_what_is_under_way_is_not_mixed_with_another_job(work: Path, server: Server) -> None:
    write_rows(work / "in.jsonl", 40)
    assert batch(work, server, "--budget", "30calls").code == 3
    for free in ("gepa.rollouts=7", "optimizer=gepa", "update.epochs=9"):  # training alone
        assert batch(work, server, "--budget", "1calls", "--set", free).code == 3
    changed = batch(work, server, "--set", "roles.executor.temperature=0.5")
    changed.error(2, "roles.executor.temperature is different", "--restart")
    batch(work, server, "--prefix", "x_").error(2, "prefix is different")
    text = (work / "p.json").read_text()
    (work / "p.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    batch(work, server).error(2, "REF or --input is different")
    (work / "p.json").write_text(text)
    write_rows(work / "in.jsonl", 41)
    batch(work, server).error(2, "the contents of IN changed")
    anew = batch(work, server, "--restart", "--json")
    assert anew.code == 0 and anew.json["resumed"] == 0 and anew.json["calls"] == 82


def test_what_another_process_is_writing_is_not_dropped(work: Path) -> None:
    write_rows(work / "in.jsonl", 3)
    file = read_policy_file(work / "p.json")
    config = file.settings(above={"lm": "http://127.0.0.1:9/v1#m"})
    order = BatchJob(work / "in.jsonl", work / "out.jsonl", "pco batch")
    held = BatchSession(order, file, config)
    try:
        held.checkpoint.append([Answered("paid for", (1,))])
        with pytest.raises(RunBusy):
            BatchSession(replace(order, restart=True), file, config)
        assert [each.answer for each in held.checkpoint.results()] == ["paid for"]
        assert held.checkpoint.journal.paid() == {}
    finally:
        held.close()
    anew = BatchSession(replace(order, restart=True), file, config)
    anew.close()
    assert anew.resumed == 0


@pytest.mark.parametrize("more", [(), ("--restart",)])
def test_a_folder_of_somebody_else_is_not_taken_for_a_batch(
    work: Path, server: Server, more: tuple[str, ...]
) -> None:
    write_rows(work / "in.jsonl", 3)
    other = work / "out.jsonl.part" / "thesis.txt"
    other.parent.mkdir()
    other.write_text("mine")
    batch(work, server, *more).error(2, "out.jsonl.part", "belongs to no batch", "another OUT")
    assert server.calls == 0
    assert [each.name for each in other.parent.iterdir()] == ["thesis.txt"]
    other.unlink()
    other.parent.rmdir()
    other.parent.write_text("mine")
    batch(work, server, *more).error(1, "out.jsonl.part", "Not a directory")
    assert other.parent.read_text() == "mine"


def test_a_finished_output_is_not_made_again_by_accident(work: Path, server: Server) -> None:
    write_rows(work / "in.jsonl", 3)
    part = work / "out.jsonl.part"
    part.mkdir()
    for name in ("lock", ".job.json.k3x"):  # left by a process that died before it began
        (part / name).touch()
    assert batch(work, server).code == 0
    batch(work, server).error(2, "out.jsonl already exists", "--restart")
    assert not (work / "out.jsonl.part").exists()
    assert server.calls == 6


@pytest.mark.parametrize("more", [(), ("--restart",)])
def test_the_rows_are_not_overwritten_with_their_answers(
    work: Path, server: Server, more: tuple[str, ...]
) -> None:
    rows = write_rows(work / "in.jsonl", 3).read_bytes()
    (work / "link.jsonl").symlink_to(work / "in.jsonl")
    batch(work, server, *more, out="in.jsonl").error(2, "in.jsonl is IN", "another OUT")
    batch(work, server, *more, out="link.jsonl").error(2, "link.jsonl is IN")
    assert server.calls == 0
    assert (work / "in.jsonl").read_bytes() == rows and len(list(work.iterdir())) == 3


def test_columns_of_the_added_names_need_a_prefix(work: Path, server: Server) -> None:
    write_rows(work / "in.jsonl", 2, error="mine")
    batch(work, server).error(2, "has a column 'error'", "--prefix")
    assert batch(work, server, "--prefix", "pco_").code == 0
    row = read_lines(work / "out.jsonl")[0]
    assert row["error"] == "mine" and row["pco_error"] is None and row["pco_answer"]


@pytest.mark.parametrize(("text", "name", "parts"), [
    ('{"question": "a"}\n{"question": \n', "in.jsonl", ("in.jsonl:2", "not valid JSON")),
    ('{"questoin": "a"}\n', "in.jsonl", ("no column 'question'", "'questoin'", "--input")),
    ("", "in.jsonl", ("has no rows",)),
    ("question\na\nb,c\n", "in.csv", ("in.csv:3", "2 cells")),
    ("[]", "in.json", ("in.json", ".jsonl")),
])  # fmt: skip
def test_what_is_wrong_with_the_rows_is_told_before_anything_is_paid_for(
    work: Path, server: Server, text: str, name: str, parts: tuple[str, ...]
) -> None:
    (work / name).write_text(text)
    batch(work, server, name).error(2, *parts)
    assert server.calls == 0
    assert not (work / "out.jsonl").exists()


def test_text_has_no_types_for_parquet(work: Path, server: Server) -> None:
    write_rows(work / "in.jsonl", 2)
    batch(work, server, out="out.parquet").error(2, "which Parquet needs", ".jsonl")
    assert server.calls == 0


def test_another_column_or_template_may_be_answered(work: Path, server: Server) -> None:
    (work / "in.tsv").write_text("a\tb\nHow far\tis 1?\n")
    result = batch(work, server, "in.tsv", "--input", "{a} {b}", out="out.jsonl")
    assert result.code == 0, result.err
    assert read_lines(work / "out.jsonl")[0]["answer"] == "As far as that: How far is 1?"


def test_a_torn_last_line_is_cut_off(work: Path, server: Server) -> None:
    write_rows(work / "in.jsonl", 40)
    assert batch(work, server, "--budget", "60calls").code == 3
    rows = work / "out.jsonl.part" / "rows.jsonl"
    whole = rows.read_bytes().count(b"\n")
    assert whole
    rows.write_bytes(rows.read_bytes()[:-9])
    result = batch(work, server, "--json")
    assert result.code == 0 and result.json["resumed"] == whole - 1
    assert result.json["calls"] == server.calls == 80, "the cut row's replies were in the journal"
    assert [row["n"] for row in read_lines(work / "out.jsonl")] == list(range(40))


def test_equal_rows_are_paid_for_once_and_written_as_they_can_be_read(
    work: Path, server: Server
) -> None:
    lines = '{"question": "How far is \\ud83d?", "n": "é"}\n' * 200
    (work / "in.jsonl").write_text(lines, "utf-8")
    assert batch(work, server).code == 0
    assert server.calls == 2
    rows = read_lines(work / "out.jsonl")
    assert [row["question"] for row in rows] == ["How far is \ud83d?"] * 200
    assert '"é"' in (work / "out.jsonl").read_text("utf-8"), "as in IN, not escaped"


# IN and OUT in every form: what a column is on the way in is what it is on the way out.

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


@pytest.mark.parametrize(("kind", "out"), [
    *product(("jsonl", "csv", "tsv", "parquet"), ("jsonl", "csv", "tsv")), ("parquet", "parquet"),
])  # fmt: skip
def test_a_form_becomes_another(kind: str, out: str, tmp_path: Path) -> None:
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
