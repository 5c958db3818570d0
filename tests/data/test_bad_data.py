"""Each fault of the data is named with its place and a way out."""

import json
from pathlib import Path

import pytest

from promptcodebook.data import load
from promptcodebook.errors import DataError

GOOD = '{"input": "a", "target": "1"}\n{"input": "b", "target": "2"}\n'


def refused(source: object, match: str, **options: object) -> DataError:
    with pytest.raises(DataError, match=match) as caught:
        load(source, **options)  # type: ignore[arg-type]
    assert caught.value.hint
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (GOOD + "{oops}\n", r"t\.jsonl:3: not valid JSON at character 2"),
        (GOOD + '\n{"input": "c"\n', r"t\.jsonl:4: not valid JSON"),
        (GOOD + "[1]\n", r"t\.jsonl:3: expected a JSON object, found an array"),
        (GOOD + "null\n", r"t\.jsonl:3: expected a JSON object, found null"),
        (GOOD + '{"input": "c", "input": "d"}\n', r"t\.jsonl:3: duplicate columns: 'input'"),
        (GOOD + '{"input": "c", "target": NaN}\n', r"t\.jsonl:3: NaN is not JSON"),
        (GOOD + "[" * 100_000 + "\n", r"t\.jsonl:3: nested too deep"),
        (GOOD + '{"target": "3"}\n', r"t\.jsonl:3: column 'input' is missing"),
        (GOOD + '{"input": null}\n', r"t\.jsonl:3: column 'input' is null"),
        (GOOD + '{"input": 5}\n', r"t\.jsonl:3: column 'input' holds 'int', not text"),
        (GOOD + '{"input": " \\n"}\n', r"t\.jsonl:3: the input is empty"),
        ("", "is empty"),
        ("\n\n", "is empty"),
    ],
)
def test_jsonl(tmp_path: Path, content: str, match: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    refused(path, match)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("input,target,input\na,b,c\n", r"t\.csv:1: duplicate columns: 'input'"),
        ("input,,target\na,b,c\n", r"t\.csv:1: column 2 has no name"),
        ("input,target\na,b\nc\n", r"t\.csv:3: 1 cells where the header names 2"),
        ('input,target\n"a\nb",x\nc,d,e\n', r"t\.csv:4: 3 cells"),
        ('input,target\na,b\n"c,d\n', r"t\.csv:3: not valid CSV"),
        ("input,target\na,b\n,d\n", r"t\.csv:3: column 'input' is null"),
        ("", "is empty"),
        ("input,target\n", "is empty"),
    ],
)
def test_csv(tmp_path: Path, content: str, match: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    refused(path, match)


def test_bytes_that_are_not_utf8_are_placed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(GOOD.encode() + '{"input": "caf\u00e9"}'.encode("latin-1"))
    error = refused(path, r"t\.jsonl:3: byte 15 of the line \(0xe9\) is not UTF-8")
    assert error.hint.startswith("iconv")
    path.write_text(GOOD, "utf-16")
    refused(path, "UTF-16")


def test_json_files(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('[{"input": "a"},\n {"input": }]')
    refused(path, r"t\.json:2: not valid JSON")
    path.write_text('{"input": "a"}')
    refused(path, "expected a JSON array of objects, found an object")
    path.write_text("")
    refused(path, "is empty")


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "tickets.jsonl").write_text(GOOD)
    refused(tmp_path / "tikets.jsonl", "no file at .*did you mean 'tickets.jsonl'")
    (tmp_path / "data.xlsx").write_text("")
    refused(tmp_path / "data.xlsx", "cannot tell the format")
    refused(tmp_path, "no train, val or test file")
    (tmp_path / "train.jsonl").write_text(GOOD)
    (tmp_path / "train.csv").write_text("input\na\n")
    refused(tmp_path, "two files for the split 'train'")


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (42, "cannot read data from 'int'"),
        (b"input", "cannot read data from 'bytes'"),
        ([1, 2], r"data\[0\] is 'int', not a dict"),
        ([{"input": "a", 1: "x", "1": "y"}], "duplicate columns: '1'"),
        ({}, "the mapping of splits is empty"),
        ({"trian": []}, "unknown split 'trian'.*did you mean 'train'"),
        ({"val": [{"input": "a"}], "validation": [{"input": "b"}]}, "given twice"),
        ({"val": [{"input": "a"}]}, "has no train split"),
        (
            {"train": [{"input": "a"}], "val": [], "test": [{"input": "b"}]},
            "'val' of data is empty",
        ),
        ([], "is empty"),
        ([{"input": "a"}, {"input": "b"}], "2 distinct inputs, too few for the 3 splits"),
        ([{"input": "a"}] * 9, "1 distinct input, too few"),
    ],
)
def test_objects(source: object, match: str) -> None:
    refused(source, match, target=None)


ROWS = [{"question": f"q{n}", "answer": "x", "key": f"k{n}"} for n in range(4)]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"input": "qestion"}, "no column 'qestion'.*did you mean 'question'"),
        ({"input": "question"}, "no column 'target'"),
        ({"input": "question", "target": None, "id": "kay"}, "no column 'kay'"),
        ({"input": "{question} {boddy}", "target": None}, "no column 'boddy'"),
        ({"input": "{question", "target": None}, "lone '{' at character 1"),
        ({"input": "question", "target": None, "messages": "chat"}, "no column 'chat'"),
        ({"input": "question", "target": None, "split": "answer"}, r"data\[0\]: unknown split 'x'"),
        ({"input": "question", "target": None, "fractions": (0.5, 0.5)}, "fractions must be"),
        ({"input": "question", "target": None, "fractions": (0.5, 0.5, 0.0)}, "fractions must be"),
        ({"input": "question", "target": None, "fractions": (0.5, 0.4, 0.2)}, "fractions must be"),
        (
            {"input": "question", "target": None, "id": "answer"},
            r"data\[1\]: the id 'x' is used at",
        ),
    ],
)
def test_columns(options: dict[str, object], match: str) -> None:
    refused(ROWS, match, **options)


def test_a_missing_target_column_says_how_to_do_without() -> None:
    assert (
        "or to none (target=None in Python)"
        in refused(ROWS, "no column 'target'", input="question").hint
    )


def test_a_missing_column_says_which_option_names_another() -> None:
    hint = refused(ROWS, "no column 'input'").hint
    assert hint == "its columns are 'question', 'answer', 'key': set input to one of them"


@pytest.mark.parametrize("name", [None, 1.5, True, "", ["k"]])
def test_ids_that_are_none(name: object) -> None:
    rows = [{"input": "a", "key": name}, {"input": "b", "key": 2}, {"input": "c", "key": 3}]
    refused(rows, r"data\[0\]", target=None, id="key")


def test_a_repeated_id_names_both_places(tmp_path: Path) -> None:
    for split, name in (("train", "a"), ("val", "b"), ("test", "a")):
        row = {"input": f"{split} text", "key": name}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row))
    refused(
        tmp_path, r"test\.jsonl:1: the id 'a' is used at .*train\.jsonl:1", target=None, id="key"
    )


@pytest.mark.parametrize(
    ("chat", "match"),
    [
        ("hello", "not a list of chat messages"),
        ([], "not a list of chat messages"),
        ([{"role": "tool", "content": "x"}], "must have a role and text content"),
        ([{"role": "user", "content": 5}], "must have a role and text content"),
        (["hi"], "must have a role and text content"),
        ([{"role": "user", "content": " "}], "the input is empty"),
        (
            [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
            "ends with a message of role assistant",
        ),
    ],
)
def test_chats(chat: object, match: str) -> None:
    rows = [{"chat": chat, "n": n} for n in range(3)]
    refused(rows, match, messages="chat", target=None)


def test_a_list_in_the_input_column_points_to_messages() -> None:
    rows = [{"input": [{"role": "user", "content": "x"}]}]
    assert 'set messages to "input"' in refused(rows, "holds 'list'", target=None).hint


def test_splits_that_overlap_are_refused_unless_allowed() -> None:
    parts = {
        "train": [{"input": "The  Cat", "key": "t1"}],
        "val": [{"input": "dog", "key": "v1"}],
        "test": [{"input": "the cat ", "key": "s1"}],
    }
    refused(
        parts, r"1 input appears in two splits: t1 \(train\) = s1 \(test\)", target=None, id="key"
    )
    assert len(load(parts, target=None, id="key", allow_overlap=True)) == 3


def test_a_split_column_beside_given_splits() -> None:
    refused({"train": ROWS}, "names a column", input="question", target=None, split="key")
