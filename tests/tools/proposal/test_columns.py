"""What `pco init --from` takes each column for: a table of files of a few columns."""

import json
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.build.cases import table
from tests.build.cli import Terminal, pco

CASES = table(__file__, "case")
WORDS = ("oak", "elm", "ash", "fir", "yew", "pine", "lime", "palm", "plum", "pear", "rose", "fern")


def cell(value: str, n: int) -> Any:
    """A value of the table in row `n`; what begins with json: is no text."""
    hashed = sha256(str(n).encode()).hexdigest()[:24]
    of = {
        "n": n,
        "n2": f"{n % 28 + 1:02}",
        "m": 37 * n % 101,
        "d": n % 10,
        "g": n // 3,
        "h": hashed,
    }
    for name, each in {**of, "w": WORDS[n % len(WORDS)]}.items():
        value = value.replace(f"{{{name}}}", str(each))
    return json.loads(value[5:]) if value.startswith("json:") else value


def write(file: Path, columns: dict[str, list[str]], count: int = 60) -> None:
    rows = [{name: cell(v[n % len(v)], n) for name, v in columns.items()} for n in range(count)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_each_column_is_taken_for_what_it_is(tmp_path: Path, case: dict[str, Any]) -> None:
    write(tmp_path / "mine.jsonl", case["columns"], case.get("rows", 60))
    made = pco("init", "--from", "mine.jsonl", "--yes", "--form", "", cwd=tmp_path)
    if "refused" in case:
        made.error(2, case["refused"], case["flag"])
        assert not (tmp_path / "pco.toml").exists()
        return
    assert made.code == 0, made.err
    tree = tomllib.loads((tmp_path / "pco.toml").read_text("utf-8"))
    reward = tree["reward"] if isinstance(tree["reward"], dict) else {"kind": tree["reward"]}
    found = {"id": "", "split": "", "group": "", **tree["data"], "reward": reward["kind"]}
    found["several"] = reward.get("several", False)
    assert {key: found[key] for key in case["expect"]} == case["expect"], made.out
    assert case.get("shown", "") in made.out
    shown = made.out.split("\n\n")[2]
    for name, role in case.get("roles", {}).items():
        (line,) = (line for line in shown.splitlines() if line.startswith(f"{name}  "))
        assert line.removeprefix(name).strip().startswith(role), made.out


def test_of_columns_that_are_equally_likely_a_person_chooses(tmp_path: Path) -> None:
    (case,) = (each for each in CASES if each["name"] == "two labels that are equally likely")
    write(tmp_path / "mine.jsonl", case["columns"])
    typed = ("init", "--from", "mine.jsonl", "--form", "")
    asked = pco(*typed, cwd=tmp_path, stdin=Terminal("\nsentiment\n\n\n\n"))
    assert asked.code == 0 and "none [category]" in asked.err, asked.err
    tree = tomllib.loads((tmp_path / "pco.toml").read_text("utf-8"))
    assert tree["data"]["target"] == "sentiment"
    assert tree["reward"]["labels"] == ["bad", "good", "so so"]
