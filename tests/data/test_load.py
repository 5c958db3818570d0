"""Every way in gives the same Examples."""

import hashlib
import json
import random
import re
import sys
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import pyarrow
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from promptcodebook.base.text import fold_text
from promptcodebook.calls import Message
from promptcodebook.config.schema import DataSettings
from promptcodebook.data import Dataset, examine, load, load_settings
from promptcodebook.data.dataset import NEAR, SHINGLE, Leak, draw_splits, grouped, leaks
from promptcodebook.data.files import read_csv, text_file
from promptcodebook.data.table import SourceRow, parse_input_template, sample_rows
from promptcodebook.errors import DataError, MissingExtra
from promptcodebook.types import Example
from tests.build.cases import table

ROWS = [{"question": f"What is {n}?", "answer": f"It is {n}", "n": n} for n in range(8)]


def jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def every(dataset: Dataset) -> list[Example]:
    return [example for _, part in dataset.items() for example in part]


def everything(dataset: Dataset) -> dict[str, tuple[str, str | None]]:
    return {e.id: (e.input, e.target) for e in every(dataset)}


def sizes(dataset: Dataset) -> list[int]:
    return [len(part) for _, part in dataset.items()]


def loaded(source: object) -> Dataset:
    return load(source, input="question", target="answer")


@pytest.fixture
def from_list() -> Dataset:
    return loaded(ROWS)


def test_a_list_of_dicts(from_list: Dataset) -> None:
    assert sorted(everything(from_list).values()) == [
        (f"What is {n}?", f"It is {n}") for n in range(8)
    ]
    assert sizes(from_list) == [4, 2, 2] and len(from_list) == 8
    assert from_list.train[0].fields["question"] == from_list.train[0].input


LINES = "\n".join(map(json.dumps, ROWS))


def delimited(mark: str) -> str:
    return "\n".join(mark.join(map(str, row)) for row in (ROWS[0], *(r.values() for r in ROWS)))


@pytest.mark.parametrize(("name", "text"), [
    ("tickets.jsonl", LINES),
    ("tickets.json", json.dumps(ROWS, indent=1)),
    ("tickets.tsv", delimited("\t")),
    *(("tickets.csv", delimited(mark)) for mark in ",;\t|"),
    # As Windows writes them: a byte order mark and CRLF do not matter.
    ("tickets.csv", "\ufeff" + delimited(",").replace("\n", "\r\n") + "\r\n"),
    ("tickets.jsonl", "\ufeff" + LINES.replace("\n", "\r\n")),
])  # fmt: skip
def test_every_file_gives_the_same(
    tmp_path: Path, from_list: Dataset, name: str, text: str
) -> None:
    (tmp_path / name).write_bytes(text.encode())
    dataset = loaded(str(tmp_path / name))
    assert dataset.fingerprint() == from_list.fingerprint() and dataset.name == "tickets"


@pytest.mark.parametrize(("lines", "columns", "first"), table(__file__, "marks"))
def test_marks_inside_names_and_cells_are_text(
    tmp_path: Path, lines: list[str], columns: list[str], first: list[str]
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines))
    table = read_csv(text_file(path))
    assert [*table.columns] == columns
    assert [*table.rows[0].values.values()] == first


def test_cells_and_lines_hold_whatever_they_like(tmp_path: Path) -> None:
    """Line breaks, quotes, a Unicode line separator, and any length."""
    path, long = tmp_path / "t.csv", "x " * 200_000
    path.write_text(f'input,target\n"two\nlines, ""quoted""",x\n"{long}y",\nc,z\n')
    assert sorted(everything(load(path)).values(), key=str) == sorted(
        [('two\nlines, "quoted"', "x"), (f"{long}y", None), ("c", "z")], key=str
    )
    rows = [{"input": f"a\u2028b {n}"} for n in range(3)]
    lines = tmp_path / "t.jsonl"
    lines.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), "utf-8")
    found = sorted(e.input for e in every(load(lines, target=None)))
    assert found == [f"a\u2028b {n}" for n in range(3)]


class FakeArrowDataset(list[dict[str, object]]):
    """Has what `datasets.Dataset` shows: rows by iteration and its column names."""

    @property
    def column_names(self) -> list[str]:
        return list(self[0])


FakeArrowDataset.__name__ = "Dataset"
FakeArrowDataset.__module__ = "datasets.arrow_dataset"


def test_every_library_gives_the_same(tmp_path: Path, from_list: Dataset) -> None:
    import pandas  # takes a worker that collects the tests a third of a second

    path = tmp_path / "tickets.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    for source in (path, pandas.DataFrame(ROWS), FakeArrowDataset(ROWS)):
        dataset = loaded(source)
        assert dataset.fingerprint() == from_list.fingerprint()
        assert all(type(e.fields["n"]) is int for e in dataset.train)
    path.write_bytes(b"PAR1 but no more")
    with pytest.raises(DataError, match="as Parquet"):
        loaded(path)
    frame = pandas.DataFrame({"input": ["a", "b", "c"], "target": [1.5, float("nan"), 2.0]})
    targets = {e.input: e.target for e in every(load(frame))}
    assert targets == {"a": "1.5", "b": None, "c": "2.0"}, "a missing value is a missing target"
    odd = {"a": 5, "b": {"k": [1, True]}, "c": None}
    rows = [{"input": text, "target": target} for text, target in odd.items()]
    targets = {e.input: e.target for e in every(load(rows))}
    assert targets == {"a": "5", "b": '{"k": [1, true]}', "c": None}, "what is no text is JSON"
    assert {e.target for e in every(load(rows, target=None))} == {None}
    with pytest.raises(DataError, match="duplicate columns: 'input'"):
        load(pandas.DataFrame([["a", "b"]], columns=["input", "input"]))


def test_splits_are_given_by_a_folder_a_column_or_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"train": ROWS[:4], "validation": ROWS[4:6], "test": ROWS[6:]}
    for name, rows in parts.items():
        jsonl(tmp_path / f"{name}.jsonl", rows)
    (tmp_path / "README.md").write_text("not data")
    column = [{**row, "part": name} for name, rows in parts.items() for row in rows]
    for dataset in (
        loaded(tmp_path),
        loaded(parts),
        loaded({name: FakeArrowDataset(rows) for name, rows in parts.items()}),
        load(column, input="question", target="answer", split="part"),
    ):
        assert [e.fields["n"] for e in every(dataset)] == list(range(8))
        assert sizes(dataset) == [4, 2, 2]
    drawn = loaded({"train": ROWS[:6], "test": ROWS[6:]})
    assert [e.fields["n"] for e in drawn.test] == [6, 7] and sizes(drawn) == [4, 2, 2]
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(MissingExtra) as caught:
        load(tmp_path)
    assert caught.value.hint == "pip install 'promptcodebook[datasets]'"


def test_a_template_over_several_columns() -> None:
    """A column whose name looks like one is a column."""
    plain = load([{"{a}": f"x{n}"} for n in range(3)], input="{a}", target=None)
    assert {e.input for e in every(plain)} == {"x0", "x1", "x2"}
    rows = [{"title": f"{{body}} {n}", "body": "{title} {{}} $x", "n": n} for n in range(3)]
    dataset = load(rows, input="{title}\n{body} no {n}", target=None)
    assert sorted(e.input for e in every(dataset)) == [
        f"{{body}} {n}\n{{title}} {{{{}}}} $x no {n}" for n in range(3)
    ]


def test_chat_messages() -> None:
    chat = [{"role": "system", "content": "Be {kind}"}, {"role": "user", "content": "Hi"}]
    rows = [{"chat": [*chat[:1], {"role": "user", "content": f"Hi {n}"}]} for n in range(2)]
    rows.append({"chat": json.dumps([{"role": "user", "content": "alone"}])})  # as in a CSV cell
    dataset = load(rows, messages="chat", target=None)
    by_input = {e.input: e.messages for e in every(dataset)}
    assert by_input["system: Be {kind}\n\nuser: Hi 0"] == (
        Message("system", "Be {kind}"),
        Message("user", "Hi 0"),
    )
    assert by_input["alone"] == (Message("user", "alone"),)


def test_given_ids_are_kept_and_content_ids_are_stable_and_unique() -> None:
    given = load([{"input": f"x{n}", "key": n} for n in range(3)], target=None, id="key")
    assert sorted(everything(given)) == ["0", "1", "2"]
    rows = [{"input": "same"}, {"input": "same"}, {"input": "b"}, {"input": "c"}]
    ids = sorted(everything(load(rows, target=None)))
    assert ids == sorted(everything(load(rows[::-1], target=None)))
    twin = next(name for name in ids if name.endswith("-2"))
    assert twin.removesuffix("-2") in ids
    # Runs and journals know examples by the hash of input and target, so it must never change.
    rows = [{"input": f'{n} "é\\\n\u2028\x01', "target": "\tä"} for n in range(3)]
    for name, pair in everything(load(rows)).items():
        text = json.dumps(pair, ensure_ascii=False)
        assert name == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_from_the_configuration(tmp_path: Path, from_list: Dataset) -> None:
    jsonl(tmp_path / "tickets.jsonl", ROWS)
    settings = DataSettings(path="tickets.jsonl", input="question", target="answer")
    assert load_settings(settings, tmp_path).fingerprint() == from_list.fingerprint()
    jsonl(tmp_path / "a.jsonl", ROWS[:5])
    jsonl(tmp_path / "b.jsonl", ROWS[5:])
    parts = DataSettings(train="a.jsonl", test="b.jsonl", input="question", target="")
    dataset = load_settings(parts, tmp_path)
    assert len(dataset.test) == 3 and {e.target for e in every(dataset)} == {None}
    with pytest.raises(DataError, match="no data is named"):
        load_settings(DataSettings(), tmp_path)
    with pytest.raises(DataError, match=r"data\.path and data\.train are both set"):
        load_settings(DataSettings(path="a", train="b"), tmp_path)


# Templates are read once; whatever stands in the data is text.


# Text that would matter if it were read as a template, a format string or markup.
marked = st.lists(
    st.sampled_from(
        ["{", "}", "{{", "}}", "{a}", "{b}", "%s", "$a", "{{a}}", "<|im_start|>", "\\n"]
    )
    | st.text(max_size=5)
).map("".join)


@given(marked, marked)
def test_data_passes_through_unchanged(a: str, b: str) -> None:
    assert parse_input_template("{a}\n{b}!").render({"a": a, "b": b}) == f"{a}\n{b}!"


@given(marked)
def test_escaped_literals_come_out_as_they_went_in(literal: str) -> None:
    escaped = literal.replace("{", "{{").replace("}", "}}")
    template = parse_input_template(escaped + "{ x }" + escaped)
    assert template.columns == ("x",)
    assert template.render({"x": "{x}"}) == literal + "{x}" + literal


@pytest.mark.parametrize("text", ["{", "}", "a } b", "{a}{", "{}", "{a{b}}", "{{a}"])
def test_lone_braces_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="lone"):
        parse_input_template(text)


# The seeded draw depends on the examples and the seed, on nothing else.


inputs = st.lists(
    st.text("abcAB ", min_size=1, max_size=4).filter(str.strip), min_size=1, max_size=40
)
SHARES = {"train": 0.5, "val": 0.25, "test": 0.25}


@given(inputs, st.integers(0, 5), st.randoms(use_true_random=False))
def test_order_of_rows_does_not_matter(texts: list[str], seed: int, rng: random.Random) -> None:
    assume(len(set(map(fold_text, texts))) >= 3)
    examples = [Example(str(n), text) for n, text in enumerate(texts)]
    shuffled = rng.sample(examples, len(examples))
    one, two = (draw_splits(e, SHARES, seed, "data") for e in (examples, shuffled))  # type: ignore[arg-type]
    assert one == two
    assert sorted((e for part in one.values() for e in part), key=lambda e: int(e.id)) == examples
    assert all(one.values())
    homes = {(fold_text(e.input), split) for split, part in one.items() for e in part}
    assert len(homes) == len(dict(homes)), "equal inputs never part"


@pytest.mark.parametrize(("rows", "fractions", "wanted"), [
    (100, (0.5, 0.25, 0.25), (50, 25, 25)), (10, (0.8, 0.1, 0.1), (8, 1, 1)),
    (3, (0.98, 0.01, 0.01), (1, 1, 1)), (4, (0.02, 0.49, 0.49), (1, 1, 2)),
    (7, (1 / 3, 1 / 3, 1 / 3), (3, 2, 2)),
])  # fmt: skip
def test_sizes(rows: int, fractions: tuple[float, ...], wanted: tuple[int, ...]) -> None:
    dataset = load([{"input": f"x{n}"} for n in range(rows)], target=None, fractions=fractions)
    assert sorted(sizes(dataset)) == sorted(wanted)
    assert len(dataset) == rows


@pytest.mark.parametrize(("counts", "fractions", "seen"), [
    ({"a": 60, "b": 36, "c": 4}, (0.5, 0.25, 0.25), {"a": (15, 15), "b": (9, 9), "c": (1, 1)}),
    ({"a": 94, "b": 3, "c": 3}, (0.8, 0.1, 0.1), {"a": (8, 8), "b": (1, 1), "c": (1, 1)}),
    ({"a": 97, "b": 2, "c": 1}, (0.8, 0.1, 0.1), {"a": (10, 9), "b": (0, 1), "c": (0, 0)}),
    ({"a": 50, "b": 30, "c": 20}, (0.97, 0.02, 0.01), {"a": (1, 1), "b": (1, 0), "c": (0, 0)}),
])  # fmt: skip
def test_each_label_has_its_share_in_every_split(
    counts: Mapping[str, int], fractions: tuple[float, ...], seen: Mapping[str, tuple[int, int]]
) -> None:
    rows = [{"input": f"{t}{n}", "target": t} for t, count in counts.items() for n in range(count)]
    dataset = load(rows, fractions=fractions, stratify=True)
    assert sizes(dataset) == [round(100 * share) for share in fractions]
    for label, wanted in seen.items():
        found = [sum(e.target == label for e in part) for part in (dataset.val, dataset.test)]
        assert tuple(found) == wanted, (label, found)
        assert any(e.target == label for e in dataset.train)
    assert load(rows[::-1], fractions=fractions, stratify=True) == dataset
    twins = load([*rows, *rows], fractions=fractions, stratify=True)
    assert sizes(twins) == [2 * n for n in sizes(dataset)] and not leaks(twins)


def test_rows_without_a_reference_are_left_out_and_counted() -> None:
    kinds = (None, "", " ", "N/A", "yes", "no", "[]")
    rows = [{"input": f"x{n}", "target": kinds[n % 7]} for n in range(70)]
    dataset = load(rows, stratify=True)
    known = dataset.with_references()
    assert (len(dataset), len(known), known.left_out) == (70, 40, 30)
    assert all(10 <= len(part) <= 20 for _, part in known.items())
    assert known.remark == "30 rows without a reference are left out" and not dataset.remark
    given = {"train": rows, "val": rows, "test": [{"input": "t", "target": None}]}
    with pytest.raises(DataError, match="no test row of data has a reference"):
        load(given, allow_overlap=True).with_references()


def test_a_seed_draws_a_split_whose_fingerprint_notices_every_change(from_list: Dataset) -> None:
    rows = [{"input": f"x{n}"} for n in range(40)]
    one, two, again = (load(rows, target=None, seed=s) for s in (0, 1, 0))
    assert one.fingerprint() == again.fingerprint()
    assert {e.id for e in one.train} != {e.id for e in two.train}
    prints = from_list.fingerprint()
    assert list(prints) == ["train", "val", "test"]
    assert len(set(prints.values())) == 3 and all(len(p) == 64 for p in prints.values())
    assert loaded([*ROWS[:-1], {**ROWS[-1], "answer": "else"}]).fingerprint() != prints


# Each fault of the data is named with its place and a way out.


GOOD = '{"input": "a", "target": "1"}\n{"input": "b", "target": "2"}\n'


def refused(source: object, match: str, **options: object) -> DataError:
    with pytest.raises(DataError, match=match) as caught:
        load(source, **options)  # type: ignore[arg-type]
    assert caught.value.hint
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize(("name", "content", "match"), [
    *table(__file__, "faults"), ("jsonl", "GOOD" + "[" * 100_000 + "\n", ":3: nested too deep"),
])  # fmt: skip
def test_a_fault_of_a_file_is_placed(tmp_path: Path, name: str, content: str, match: str) -> None:
    path = tmp_path / f"t.{name}"
    path.write_text(content.replace("GOOD", GOOD))
    refused(path, rf"t\.{name}{match}" if match.startswith(":") else match)


def test_a_text_in_two_encodings_is_placed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes('{"input": "naïve"}\n'.encode() + '{"input": "café"}'.encode("latin-1"))
    error = refused(path, r"t\.jsonl:2: byte 15 of the line \(0xe9\) is not UTF-8")
    assert error.hint.startswith("iconv")
    path.write_text(GOOD, "utf-16-le")
    assert "UTF-16LE" in refused(path, "UTF-16LE without a byte order mark").hint


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "tickets.jsonl").write_text(GOOD)
    refused(tmp_path / "tikets.jsonl", "no file at .*did you mean 'tickets.jsonl'")
    (tmp_path / "data.docx").write_text("")
    refused(tmp_path / "data.docx", "cannot tell the format")
    refused(tmp_path, "no train, val or test file")
    (tmp_path / "train.jsonl").write_text(GOOD)
    (tmp_path / "train.csv").write_text("input\na\n")
    refused(tmp_path, "two files for the split 'train'")


@pytest.mark.parametrize(("source", "match"), [
    (42, "cannot read data from 'int'"), (b"input", "cannot read data from 'bytes'"),
    ([1, 2], r"data\[0\] is 'int', not a dict"),
    ([{"input": "a", 1: "x", "1": "y"}], "duplicate columns: '1'"),
    ({}, "the mapping of splits is empty"),
    ({"trian": []}, "unknown split 'trian'.*did you mean 'train'"),
    ({"val": [{"input": "a"}], "validation": [{"input": "b"}]}, "given twice"),
    ({"val": [{"input": "a"}]}, "has no train split"),
    ({"train": [{"input": "a"}], "val": [], "test": [{"input": "b"}]}, "'val' of data is empty"),
    ([], "is empty"),
    ([{"input": "a"}, {"input": "b"}], "2 distinct inputs, too few for the 3 splits"),
])  # fmt: skip
def test_objects(source: object, match: str) -> None:
    refused(source, match, target=None)


BAD_ROWS = [{"question": f"q{n}", "answer": "x", "key": f"k{n}"} for n in range(4)]


@pytest.mark.parametrize(("options", "match"), [
    ({"input": "qestion"}, "no column 'qestion'.*did you mean 'question'"),
    ({"input": "question"}, "no column 'target'"),
    ({"input": "{question} {answer}", "target": "answer"}, "the input contains the reference"),
    ({"input": "{question} {boddy}", "target": None}, "no column 'boddy'"),
    ({"input": "{question", "target": None}, "lone '{' at character 1"),
    ({"input": "question", "target": None, "messages": "chat"}, "no column 'chat'"),
    ({"input": "question", "target": None, "split": "answer"}, r"data\[0\]: unknown split 'x'"),
    ({"input": "question", "target": None, "fractions": (0.5, 0.5, 0.0)}, "fractions must be"),
    ({"input": "question", "target": None, "fractions": (0.5, 0.4, 0.2)}, "fractions must be"),
    ({"input": "question", "target": None, "id": "answer"},
     r"data\[1\]: the id 'x' is already used at"),
])  # fmt: skip
def test_columns(options: dict[str, object], match: str) -> None:
    refused(BAD_ROWS, match, **options)
    hint = refused(BAD_ROWS, "no column 'input'").hint
    there = "its columns are 'question', 'answer', 'key'"
    assert hint == f"{there}: set data.input (--input of pco data check; input= in Python) to one"
    refused({"train": BAD_ROWS}, "names a column", input="question", target=None, split="key")


def test_two_shares_are_answered_with_three_to_type() -> None:
    two = refused(
        BAD_ROWS, "fractions must be", input="question", target=None, fractions=(0.8, 0.2)
    )
    assert "train, val and test" in two.hint and "fractions = [0.5, 0.25, 0.25]" in two.hint


@pytest.mark.parametrize("name", [None, 1.5, True, "", ["k"]])
def test_an_id_is_a_text_or_a_number_and_no_other_row_s(name: object, tmp_path: Path) -> None:
    rows = [{"input": "a", "key": name}, {"input": "b", "key": 2}, {"input": "c", "key": 3}]
    refused(rows, r"data\[0\]", target=None, id="key")
    for split, key in (("train", "a"), ("val", "b"), ("test", "a")):
        row = {"input": f"{split} text", "key": key}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row))
    twice = r"test\.jsonl:1: the id 'a' is already used at .*train\.jsonl:1"
    refused(tmp_path, twice, target=None, id="key")


@pytest.mark.parametrize(("chat", "match"), table(__file__, "chats"))
def test_chats(chat: object, match: str) -> None:
    rows = [{"chat": chat, "n": n} for n in range(3)]
    refused(rows, match, messages="chat", target=None)
    if chat != "hello":
        refused(rows, match, input="chat", target=None)


def test_splits_that_overlap_are_refused_unless_allowed() -> None:
    parts = {
        "train": [{"input": "The  Cat", "key": "t1"}],
        "val": [{"input": "dog", "key": "v1"}],
        "test": [{"input": "the cat ", "key": "s1"}],
    }
    refused(
        parts, r"1 input appears in two splits: t1 \(train\) and s1 \(test\)", target=None, id="key"
    )
    assert len(load(parts, target=None, id="key", allow_overlap=True)) == 3
    found = leaks(dataset(train=["One  two", "one two"], val=["x"], test=["ONE TWO"]))
    assert found == [Leak(("train", "test"), ("train0", "test0"))]
    checked = examine(dataset(train=["a"], val=["a"], test=["b"]))
    assert not checked.clean and checked.warnings() == (), "no target at all is no warning"


@pytest.mark.parametrize("ending", ["jsonl", "csv", "list"])
def test_rows_without_an_id_are_named_by_their_place(ending: str, tmp_path: Path) -> None:
    """Their ids are hashes, which do not say where in the file a row is."""
    parts = {"train": ["a", "b", "A"], "val": ["b"], "test": ["c"]}
    rows = {name: [{"input": text} for text in texts] for name, texts in parts.items()}
    source: object = rows
    first, third, other = "train[0]", "train[2]", "train[1] (train) and val[0] (val)"
    if ending != "list":
        for name, texts in rows.items():
            lines = [json.dumps(row) if ending == "jsonl" else row["input"] for row in texts]
            head = [] if ending == "jsonl" else ["input"]
            (tmp_path / f"{name}.{ending}").write_text("\n".join([*head, *lines]))
        source, at = tmp_path, 1 + (ending == "csv")
        first, third = (f"{tmp_path}/train.{ending}:{n + at}" for n in (0, 2))
        other = f"{tmp_path}/train.{ending}:{1 + at} (train) and {tmp_path}/val.{ending}:{at} (val)"
    refused(source, re.escape(f"1 input appears in two splits: {other}"), target=None)
    found = examine(load(source, target=None, allow_overlap=True))
    assert found.duplicates == (Leak(("train", "train"), (first, third)),)
    assert f"{first} (2 times)" in found.warnings()[0]


# What stands twice, nearly twice, or not at all.

STORY = "the old clock in the tower ran backwards for a single night and nobody in town woke up"


def dataset(**splits: list[str]) -> Dataset:
    parts = {
        split: tuple(Example(f"{split}{n}", text) for n, text in enumerate(splits[split]))
        for split in ("train", "val", "test")
    }
    return Dataset(parts["train"], parts["val"], parts["test"])


def test_what_comes_often_is_counted_and_the_first_shown() -> None:
    found = examine(dataset(train=["a"] * 30 + ["b", "b", "c"], val=["d"], test=["e"]))
    assert len(found.duplicates) == 30
    [warning] = found.warnings()
    assert warning == (
        "30 examples in train have the same input as an earlier example: train0 (30 times), "
        "train30 (2 times)."
    )
    copies = [f"{STORY} {n}" for n in range(12)]
    [warning] = examine(dataset(train=copies, val=["x"], test=[STORY])).warnings()
    assert warning.startswith("12 pairs of near-copies in different splits")
    assert "train4 (train) and test0 (test)" in warning and "train5" not in warning
    assert "and 7 more" in warning


def test_examine_counts_everything() -> None:
    rows = {
        "train": [
            {"input": "a b c", "target": "1"},
            {"input": "A b  c", "target": None},
        ],
        "val": [{"input": STORY, "target": "1"}],
        "test": [{"input": STORY + " then", "target": "1"}],
    }
    found = examine(load(rows, name="mine"))
    assert found.name == "mine" and found.counts == {"train": 2, "val": 1, "test": 1}
    assert found.missing_targets == {"train": 1, "val": 0, "test": 0}
    assert (len(found.duplicates), len(found.near), found.clean) == (1, 1, True)
    warnings = found.warnings()
    assert any("1 of 2 examples in train lack a target" in w for w in warnings)
    assert any("near-copies" in w for w in warnings)
    assert any("have the same input" in w for w in warnings)


def test_the_same_input_with_another_target_is_a_conflict() -> None:
    rows = [
        {"input": "Is it late?", "target": "yes"},
        {"input": "is it  late?", "target": "No"},
        {"input": "Is it late?", "target": "YES"},
        {"input": "Is it late?", "target": None},
        {"input": "Is it far?", "target": "yes"},
    ]
    others = {split: [{"input": split, "target": "x"}] for split in ("val", "test")}
    found = examine(load({"train": rows, **others}))
    [conflict] = found.conflicts
    assert conflict.targets == ("yes", "No")
    [warning] = [w for w in found.warnings() if "more than one target" in w]
    assert f"{conflict.ids[0]}: 'yes', {conflict.ids[1]}: 'No'" in warning


def _near_by_hand(dataset: Dataset) -> set[tuple[str, str]]:
    """Every pair compared with every other."""
    rows = [(split, e) for split, examples in dataset.items() for e in examples]
    found = set[tuple[str, str]]()
    for (s, a), (t, b) in combinations(rows, 2):
        x, y = _runs(a.input), _runs(b.input)
        if s != t and fold_text(a.input) != fold_text(b.input) and len(x & y) / len(x | y) >= NEAR:
            found.add((a.id, b.id))
    return found


def _runs(text: str) -> set[str]:
    words = re.findall(r"\w+", fold_text(text))
    return {" ".join(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1))}


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**9), length=st.integers(1, 220), copies=st.integers(1, 6))
def test_what_is_looked_up_finds_the_near_copies_of_any_length(
    seed: int, length: int, copies: int
) -> None:
    draw = random.Random(seed)
    words = [f"w{n}" for n in range(3_000)] + ["naïve", "日本語", "it's", "end.", "_x"]
    rows = list[Example]()
    for number in range(copies):
        base = draw.choices(words, k=length)
        changed = list(base)
        if length > 40:  # one word in forty is another
            for place in draw.sample(range(length), length // 40):
                changed[place] = "changed"
        rows += [Example(f"{number}a", " ".join(base)), Example(f"{number}b", ", ".join(changed))]
    dataset = Dataset(tuple(rows[::2]), tuple(rows[1::2]), ())
    assert {leak.ids for leak in examine(dataset).near} == _near_by_hand(dataset)


def _texts(*texts: str) -> list[Example]:
    return [Example(f"e{i}", text) for i, text in enumerate(texts)]


_MAIL = "The parcel {} that I ordered on Monday has not reached my flat in the old town yet."


@pytest.mark.parametrize(
    ("texts", "groups"),
    [
        (["a refund please", "A refund  please", "a new card"], ["e0", "e0", ""]),
        ([f"{_MAIL.format('9')} {end}" for end in ("Help!", "Thanks.", "Bye.")], ["e0"] * 3),
        (
            ["我上周订购的包裹还没有送到我家", "我上周订购的包裹还没有送到我家。", "退款"],
            ["e0", "e0", ""],
        ),
        (["one", "two", "three"], ["", "", ""]),
    ],
)
def test_equal_and_nearly_equal_inputs_form_groups(texts: list[str], groups: list[str]) -> None:
    others = [
        f"Question {i}: what is the weight of item {i * 7} in shop {i * 3}?" for i in range(9)
    ]
    made = grouped(_texts(*texts, *others))
    assert [e.group for e in made] == [*groups, *[""] * len(others)]


def test_what_a_template_repeats_makes_no_group() -> None:
    frame = "You are a clerk of the bank. Read the message below and name its topic in one word: {}"
    topics = ("loan", "card", "fee", "rate", "app", "bond")
    made = grouped(_texts(*map(frame.format, topics)))
    assert not any(e.group for e in made)


def test_groups_that_the_data_name_are_kept() -> None:
    named = [Example("a", "x", group="g"), Example("b", "x", group="h")]
    assert grouped(named) == tuple(named)


def _turns(n: int) -> list[dict[str, object]]:
    return [
        {"input": f"turn {i} of chat {i % 8}: {i * 31} parcels", "target": "x", "chat": i % 8}
        for i in range(n)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_no_split_parts_a_group(seed: int) -> None:
    dataset = load(_turns(64), group="chat", seed=seed)
    homes = [{e.group for e in examples} for _, examples in dataset.items()]
    assert sum(map(len, homes)) == len(set().union(*homes)) == 8
    parted = load(_turns(64), seed=seed)
    assert any(len({e.fields["chat"] for e in part}) == 8 for _, part in parted.items())


def test_a_group_in_two_given_splits_is_refused_by_its_row() -> None:
    rows = _turns(9)
    with pytest.raises(DataError, match=r"group of val\[0\] \(val\) is also in test"):
        load({"train": rows[2:8], "val": rows[:1], "test": rows[8:]}, group=["chat"])
    with pytest.raises(DataError, match="'talk'"):
        load(rows, group="talk")


def test_a_file_of_too_many_rows_is_a_sample_in_their_order_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    with path.open("w") as file:
        file.writelines(f'{{"input": "{n}", "target": "x"}}\n' for n in range(120_000))
    dataset = load(path)
    assert dataset.remark == "a sample of 100,000 of 120,000 rows" and len(dataset) == 100_000
    places = sorted(int(e.where.rpartition(":")[2]) for _, part in dataset.items() for e in part)
    assert sum(place > 60_000 for place in places) == pytest.approx(50_000, abs=500)
    kept, _ = sample_rows(SourceRow(str(n), {}) for n in range(1, 120_001))
    assert [int(row.where) for row in kept] == places


def test_a_check_says_how_many_inputs_are_independent() -> None:
    rows = [{"input": f"turn {i}", "target": "x", "chat": i // 4} for i in range(96)]
    split = load({"train": rows[:32], "val": rows[32:64], "test": rows[64:]}, group="chat")
    found = examine(split)
    assert found.independent == {"val": 8, "test": 8}
    assert "Of the 32 examples in test, 8 are independent" in "\n".join(found.warnings())
    assert not examine(load(rows)).independent
