"""Each file of the gallery, from `pco init --from` to what training reads."""

import gzip
import io
import json
import shutil
import tomllib
import zipfile
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from promptcodebook.config import load_config
from promptcodebook.data import load, load_settings
from promptcodebook.data.files import read_csv, text_file
from promptcodebook.errors import DataError
from tests.build.cases import table
from tests.build.cli import pco

DATA = Path(__file__).with_name("data")
FILES: list[dict[str, Any]] = table(__file__, "file")
BOOK: Any = table(__file__, "book")
PACKED = {"gz": gzip.compress, "zst": zstandard.compress}


def name_of(case: dict[str, Any]) -> str:
    extra = [case.get(key, "") for key in ("encode", "pack", "called")]
    return " ".join([case["file"], *filter(None, extra), *case.get("sheets", ())])


def make(case: dict[str, Any], folder: Path) -> Path:
    """The file as the case wants it, in `folder`."""
    source, pack = DATA / case["file"], case.get("pack", "")
    path = folder / case.get("called", source.name)
    if source.is_dir():
        shutil.copytree(source, path)
    elif pack == "xlsx":
        path = path.with_suffix(".xlsx")
        write_book(path, source, case.get("sheets", ["Sheet1"]))
    elif pack in ("parquet", "arrow"):
        rows = pyarrow.Table.from_pylist(
            list(map(json.loads, source.read_text("utf-8").splitlines()))
        )
        path = path.with_suffix(f".{pack}")
        if pack == "parquet":
            parquet.write_table(rows, path)
        else:
            with pyarrow.ipc.new_stream(path, rows.schema) as stream:
                stream.write_table(rows)
    else:
        text = source.read_bytes()
        if case.get("encode"):
            text = text.decode().encode(case["encode"])
        path = path.with_name(path.name + f".{pack}" * bool(pack))
        path.write_bytes(PACKED.get(pack, bytes)(text))
    return path


def write_book(path: Path, source: Path, sheets: list[str]) -> None:
    """A workbook as other programs write it. Its rows go to the first sheet, or are dealt out to
    several that are named as splits."""
    read = read_csv(text_file(source))
    first, *_ = source.read_text("utf-8").splitlines()
    cells = [first.split(","), *([*row.values.values()] for row in read.rows)]
    if first.startswith(","):
        cells = [cells[0], *([n, *row] for n, row in enumerate(cells[1:]))]
    parts = {name: cells if name == sheets[0] else [["see the other"]] for name in sheets if name}
    if "train" in sheets:
        parts = {"train": [cells[0], *cells[1:13]], "test": [cells[0], *cells[13:]]}
    if "" in sheets:
        parts = {name: [] for name in parts}
    names, numbers = list(parts), range(len(parts))
    texts: dict[str, str] = {
        "types": "".join(BOOK["type"].format(n=n) for n in numbers),
        "sheets": "".join(BOOK["sheet"].format(n=n, id=n + 1, name=names[n]) for n in numbers),
        "links": "".join(BOOK["link"].format(n=n) for n in numbers),
    }
    with zipfile.ZipFile(path, "w") as book:
        for name, text in BOOK["files"].items():
            book.writestr(name, text.format(**texts))
        for n, rows in enumerate(parts.values()):
            lines = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
            book.writestr(f"xl/worksheets/s{n}.xml", BOOK["rows"].format(rows=lines))


def cell(value: object) -> str:
    if isinstance(value, int):
        return f"<c><v>{value}</v></c>"
    return f'<c t="inlineStr"><is><t>{escape(str(value or ""))}</t></is></c>'


@pytest.mark.parametrize("case", FILES, ids=name_of)
def test_a_file_becomes_the_task_that_a_practitioner_wants(
    tmp_path: Path, case: dict[str, Any]
) -> None:
    path = make(case, tmp_path)
    result = pco("init", "mine", "--from", path.name, "--yes", cwd=tmp_path)
    if "refuse" in case:
        result.error(2)
        assert any(part in result.err for part in case["refuse"].split("|"))
        assert not (tmp_path / "mine").exists()
        return
    assert result.code == 0, result.err
    tree = tomllib.loads((tmp_path / "mine/pco.toml").read_text("utf-8"))
    dataset = load_settings(load_config(tree).data, tmp_path / "mine")
    targets = {e.input: e.target for _, part in dataset.items() for e in part}
    assert targets.get(case["input"], list(targets)[:2]) == case["target"]
    assert len(dataset) <= case["rows"] and tree["data"].get("form", "") == case.get("form", "")
    reward = tree["reward"] if isinstance(tree["reward"], str) else tree["reward"]["kind"]
    assert reward == case.get("reward", reward)
    assert tree["data"].get("header", True) is case.get("header", True)
    assert case.get("note", "") in result.out
    if "splits" in case:
        assert [len(part) for _, part in dataset.items()] == case["splits"]
    if "id" in case:
        assert case["id"] in {e.id for _, part in dataset.items() for e in part}


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in FILES if "refuse" not in c], ids=name_of)
def test_a_file_leads_to_a_report(tmp_path: Path, case: dict[str, Any]) -> None:
    path, folder = make(case, tmp_path), tmp_path / "mine"
    words = ("init", "mine", "--from", path.name, "--yes", "--lm", "simulated")
    assert pco(*words, cwd=tmp_path).code == 0
    for words, codes in (
        (("doctor",), {0}),
        (("train", "--budget", "120calls"), {0, 3}),  # 3: the budget is reached
        (("report", "last", "-o", "report.html"), {0}),
    ):
        result = pco(*words, cwd=folder)
        assert result.code in codes, (words, result.out, result.err)
    assert "simulated" in (folder / "report.html").read_text("utf-8")


def test_standard_input_is_kept_beside_the_configuration(tmp_path: Path) -> None:
    text = io.TextIOWrapper(io.BytesIO((DATA / "umlauts.tsv").read_text("utf-8").encode("utf-16")))
    result = pco("init", "mine", "--from", "-", "--yes", cwd=tmp_path, stdin=text)
    assert result.code == 0, result.err
    tree = tomllib.loads((tmp_path / "mine/pco.toml").read_text("utf-8"))
    assert tree["data"]["path"] == "data.txt"
    assert len(load_settings(load_config(tree).data, tmp_path / "mine")) == 24
    empty = io.TextIOWrapper(io.BytesIO())
    pco("init", "none", "--from", "-", "--yes", cwd=tmp_path, stdin=empty).error(2, "is empty")


def test_a_missing_column_names_what_the_rows_look_like(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load(DATA / "alpaca.json")
    assert caught.value.hint.endswith('its rows look like alpaca: form = "alpaca"')
    with pytest.raises(DataError) as caught:
        load(DATA / "no_header.csv", input="text")
    assert caught.value.hint.endswith("its first line looks like a row: header = false")
    with pytest.raises(DataError, match=r"unknown form 'sqad'.*did you mean 'squad'"):
        load(DATA / "squad.json", form="sqad")
    checked = pco("data", "check", str(DATA / "squad2.json"), cwd=tmp_path)
    assert "read  form squad" in checked.out and "'unanswerable'" in checked.out, checked.out
    named = load(DATA / "squad.json", form="squad", input="question")
    assert named.train[0].input.endswith("?") and named.train[0].id.startswith("q")
