"""Every way in gives the same Examples."""

import csv
import hashlib
import json
from pathlib import Path

import pytest

from promptcodebook.calls import Message
from promptcodebook.config import DataSettings
from promptcodebook.data import Dataset, load, load_settings
from promptcodebook.data.table import read_csv
from promptcodebook.errors import DataError, MissingExtra

ROWS = [{"question": f"What is {n}?", "answer": f"It is {n}", "n": n} for n in range(8)]


def jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def everything(dataset: Dataset) -> dict[str, tuple[str, str | None]]:
    return {e.id: (e.input, e.target) for _, part in dataset.items() for e in part}


def loaded(source: object) -> Dataset:
    return load(source, input="question", target="answer")


@pytest.fixture
def from_list() -> Dataset:
    return loaded(ROWS)


def test_a_list_of_dicts(from_list: Dataset) -> None:
    assert sorted(everything(from_list).values()) == [
        (f"What is {n}?", f"It is {n}") for n in range(8)
    ]
    assert (len(from_list.train), len(from_list.val), len(from_list.test)) == (4, 2, 2)
    assert len(from_list) == 8


def test_jsonl(tmp_path: Path, from_list: Dataset) -> None:
    dataset = loaded(str(jsonl(tmp_path / "tickets.jsonl", ROWS)))
    assert dataset.fingerprint() == from_list.fingerprint()
    assert dataset.name == "tickets"
    assert dataset.train[0].fields["question"] == dataset.train[0].input


def test_json_array(tmp_path: Path, from_list: Dataset) -> None:
    path = tmp_path / "tickets.json"
    path.write_text(json.dumps(ROWS, indent=1))
    assert loaded(path).fingerprint() == from_list.fingerprint()


@pytest.mark.parametrize(
    ("name", "delimiter"),
    [("t.csv", ","), ("t.tsv", "\t"), ("t.csv", ";"), ("t.csv", "\t"), ("t.csv", "|")],
)
def test_csv_and_tsv(tmp_path: Path, from_list: Dataset, name: str, delimiter: str) -> None:
    lines = [delimiter.join(("question", "answer", "n"))]
    lines += [delimiter.join(map(str, row.values())) for row in ROWS]
    path = tmp_path / name
    path.write_text("\n".join(lines))
    assert loaded(path).fingerprint() == from_list.fingerprint()


@pytest.mark.parametrize(
    ("lines", "columns", "first"),
    [
        (
            ["question;answer, if any", "What, and why?;So, that."],
            ("question", "answer, if any"),
            ("What, and why?", "So, that."),
        ),
        (['"question; asked";answer', '"a;b";c,d'], ("question; asked", "answer"), ("a;b", "c,d")),
        (
            ["question,answer;note", "What; where?,So;yes"],
            ("question", "answer;note"),
            ("What; where?", "So;yes"),
        ),
        (["question", "What; where?"], ("question",), ("What; where?",)),
    ],
)
def test_marks_inside_names_and_cells_are_text(
    tmp_path: Path, lines: list[str], columns: tuple[str, ...], first: tuple[str, ...]
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines))
    table = read_csv(path)
    assert table.columns == columns
    assert tuple(table.rows[0].values.values()) == first


def test_a_broken_row_is_told_of_the_usual_form(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("input,target\na,b,c;d\n")
    with pytest.raises(DataError, match=r"t\.csv:2: 3 cells where the header names 2"):
        read_csv(path)


def test_a_csv_cell_may_be_of_any_length_and_the_interpreter_keeps_its_limit(
    tmp_path: Path,
) -> None:
    before = csv.field_size_limit()
    long = "x " * 200_000
    path = tmp_path / "t.csv"
    path.write_text("question,answer\n" + "".join(f'"{n} {long}",a\n' for n in range(4)))
    table = read_csv(path)
    assert [len(str(row.values["question"])) for row in table.rows] == [len(long) + 2] * 4
    assert csv.field_size_limit() == before


def test_bom_and_crlf_do_not_matter(tmp_path: Path, from_list: Dataset) -> None:
    text = "question,answer,n\r\n" + "".join(
        f"{r['question']},{r['answer']},{r['n']}\r\n" for r in ROWS
    )
    path = tmp_path / "excel.csv"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert loaded(path).fingerprint() == from_list.fingerprint()
    lines = tmp_path / "windows.jsonl"
    lines.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(r).encode() for r in ROWS))
    assert loaded(lines).fingerprint() == from_list.fingerprint()


def test_a_unicode_line_separator_does_not_end_a_jsonl_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"input": f"a\u2028b {n}"} for n in range(3)]
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), "utf-8")
    assert sorted(i for i, _ in everything(load(path, target=None)).values()) == [
        f"a\u2028b {n}" for n in range(3)
    ]


def test_csv_cells_with_line_breaks_and_quotes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('input,target\n"two\nlines, ""quoted""",x\nb,\nc,z\n')
    assert sorted(everything(load(path)).values(), key=str) == sorted(
        [('two\nlines, "quoted"', "x"), ("b", None), ("c", "z")], key=str
    )


def test_parquet(tmp_path: Path, from_list: Dataset) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "tickets.parquet"
    parquet.write_table(arrow.Table.from_pylist(ROWS), path)
    assert loaded(path).fingerprint() == from_list.fingerprint()


def test_a_file_that_is_not_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "tickets.parquet"
    path.write_bytes(b"PAR1 but no more")
    with pytest.raises(DataError, match="as Parquet"):
        loaded(path)


def test_pandas(from_list: Dataset) -> None:
    pandas = pytest.importorskip("pandas")
    dataset = loaded(pandas.DataFrame(ROWS))
    assert dataset.fingerprint() == from_list.fingerprint()
    assert all(type(e.fields["n"]) is int for e in dataset.train)


def test_pandas_missing_values_are_missing_targets() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"input": ["a", "b", "c"], "target": [1.5, float("nan"), 2.0]})
    targets = {e.input: e.target for _, part in load(frame).items() for e in part}
    assert targets == {"a": "1.5", "b": None, "c": "2.0"}


def test_pandas_duplicate_columns() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([["a", "b"]], columns=["input", "input"])
    with pytest.raises(DataError, match="duplicate columns: 'input'"):
        load(frame)


class FakeArrowDataset(list[dict[str, object]]):
    """Has what `datasets.Dataset` shows: rows by iteration and its column names."""

    @property
    def column_names(self) -> list[str]:
        return list(self[0])


FakeArrowDataset.__name__ = "Dataset"
FakeArrowDataset.__module__ = "datasets.arrow_dataset"


def test_a_hugging_face_dataset_and_a_dict_of_them(from_list: Dataset) -> None:
    assert loaded(FakeArrowDataset(ROWS)).fingerprint() == from_list.fingerprint()
    parts = {
        "train": FakeArrowDataset(ROWS[:4]),
        "validation": FakeArrowDataset(ROWS[4:6]),
        "test": FakeArrowDataset(ROWS[6:]),
    }
    assert [len(part) for _, part in loaded(parts).items()] == [4, 2, 2]


def test_a_saved_dataset_folder_names_the_missing_extra(tmp_path: Path) -> None:
    try:
        import datasets  # noqa: F401
    except ImportError:
        (tmp_path / "dataset_dict.json").write_text("{}")
        with pytest.raises(MissingExtra) as caught:
            load(tmp_path)
        assert caught.value.hint == "pip install 'promptcodebook[datasets]'"
    else:
        pytest.skip("the datasets library is installed")


def test_a_mapping_of_splits_keeps_their_order() -> None:
    dataset = loaded({"train": ROWS[:4], "val": ROWS[4:6], "test": ROWS[6:]})
    assert [e.fields["n"] for _, part in dataset.items() for e in part] == list(range(8))


def test_a_folder_of_split_files(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", ROWS[:4])
    jsonl(tmp_path / "validation.jsonl", ROWS[4:6])
    jsonl(tmp_path / "test.jsonl", ROWS[6:])
    (tmp_path / "README.md").write_text("not data")
    assert [len(part) for _, part in loaded(tmp_path).items()] == [4, 2, 2]


def test_a_split_column() -> None:
    parts = ["train"] * 3 + ["dev"] * 2 + ["test"] * 3
    rows = [{**row, "part": part} for row, part in zip(ROWS, parts, strict=True)]
    dataset = load(rows, input="question", target="answer", split="part")
    assert [[e.fields["n"] for e in part] for _, part in dataset.items()] == [
        [0, 1, 2],
        [3, 4],
        [5, 6, 7],
    ]


def test_splits_that_are_not_given_are_drawn_from_train() -> None:
    dataset = loaded({"train": ROWS[:6], "test": ROWS[6:]})
    assert [e.fields["n"] for e in dataset.test] == [6, 7]
    assert len(dataset.train) == 4
    assert len(dataset.val) == 2


def test_no_target_column() -> None:
    dataset = load([{"input": str(n)} for n in range(3)], target=None)
    assert all(e.target is None for _, part in dataset.items() for e in part)


def test_targets_that_are_no_text_become_json() -> None:
    rows = [{"input": "a", "target": 5}, {"input": "b", "target": {"k": [1, True]}},
            {"input": "c", "target": None}]  # fmt: skip
    assert sorted(everything(load(rows)).values(), key=str) == [
        ("a", "5"),
        ("b", '{"k": [1, true]}'),
        ("c", None),
    ]


def test_a_template_over_several_columns() -> None:
    rows = [{"title": f"{{body}} {n}", "body": "{title} {{}} $x", "n": n} for n in range(3)]
    dataset = load(rows, input="{title}\n{body} no {n}", target=None)
    assert sorted(i for i, _ in everything(dataset).values()) == [
        f"{{body}} {n}\n{{title}} {{{{}}}} $x no {n}" for n in range(3)
    ]


def test_a_column_whose_name_looks_like_a_template_is_a_column() -> None:
    dataset = load([{"{a}": f"x{n}"} for n in range(3)], input="{a}", target=None)
    assert {e.input for _, part in dataset.items() for e in part} == {"x0", "x1", "x2"}


def test_chat_messages() -> None:
    chat = [{"role": "system", "content": "Be {kind}"}, {"role": "user", "content": "Hi"}]
    rows = [{"chat": [*chat[:1], {"role": "user", "content": f"Hi {n}"}]} for n in range(2)]
    rows.append({"chat": json.dumps([{"role": "user", "content": "alone"}])})  # as in a CSV cell
    dataset = load(rows, messages="chat", target=None)
    by_input = {e.input: e.messages for _, part in dataset.items() for e in part}
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


def test_a_content_id_is_the_hash_of_input_and_target_as_json() -> None:
    """Runs and journals know examples by it, so it must never change."""
    rows = [{"input": f'{n} "é\\\n\u2028\x01', "target": "\tä"} for n in range(3)]
    for name, pair in everything(load(rows)).items():
        text = json.dumps(pair, ensure_ascii=False)
        assert name == hashlib.sha256(text.encode()).hexdigest()[:12]


def test_fingerprints_tell_splits_apart_and_notice_a_change(from_list: Dataset) -> None:
    prints = from_list.fingerprint()
    assert list(prints) == ["train", "val", "test"]
    assert len(set(prints.values())) == 3
    assert all(len(p) == 64 for p in prints.values())
    changed = loaded([*ROWS[:-1], {**ROWS[-1], "answer": "else"}])
    assert changed.fingerprint() != prints


def test_from_the_configuration(tmp_path: Path, from_list: Dataset) -> None:
    jsonl(tmp_path / "tickets.jsonl", ROWS)
    settings = DataSettings(path="tickets.jsonl", input="question", target="answer")
    assert load_settings(settings, tmp_path).fingerprint() == from_list.fingerprint()
    jsonl(tmp_path / "a.jsonl", ROWS[:5])
    jsonl(tmp_path / "b.jsonl", ROWS[5:])
    parts = DataSettings(train="a.jsonl", test="b.jsonl", input="question", target="")
    dataset = load_settings(parts, tmp_path)
    assert len(dataset.test) == 3
    assert all(e.target is None for _, part in dataset.items() for e in part)


def test_a_configuration_without_data_or_with_too_much(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data is named"):
        load_settings(DataSettings(), tmp_path)
    with pytest.raises(DataError, match=r"data\.path and data\.train are both set"):
        load_settings(DataSettings(path="a", train="b"), tmp_path)
