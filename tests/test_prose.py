"""Texts stay in plain English: what `make prose` finds, and what it leaves alone."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from bench.prose import check, lower

LONG = " ".join(["word"] * 26) + "."
SETTINGS = '[instead]\ntold = "said"\n"so many" = "the number"\n\n[ceilings]\n'


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A repository with one page and one module, and a list that allows nothing."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# A page\n\nIt is plain.\n", "utf-8")
    (tmp_path / "list.toml").write_text(SETTINGS + "sentences = 0\ntold = 0\n", "utf-8")
    return tmp_path


def faults(house: Path) -> list[str]:
    return check(house, house / "list.toml")[0]


@pytest.mark.parametrize(("text", "fault"), [
    ("It is told here.", "docs/page.md:3: 'told'; write said"),
    ("There are so\nmany.", "docs/page.md:3: 'so many'; write the number"),
    (LONG, "'sentences': 1, at most 0; write sentences of at most 25 words"),
    ("- " + LONG, "'sentences': 1, at most 0; write sentences of at most 25 words"),
    (f"    code\n\n{LONG}", "'sentences': 1, at most 0; write sentences of at most 25 words"),
])  # fmt: skip
def test_a_planted_sentence_is_found(house: Path, text: str, fault: str) -> None:
    (house / "docs" / "page.md").write_text(f"# A page\n\n{text}\n", "utf-8")
    assert fault in faults(house)


def test_the_source_may_have_as_many_as_its_ceiling(house: Path) -> None:
    module = house / "src" / "module.py"
    module.write_text('"""One is told."""\n\ntold = "nothing"  # it is told here\n', "utf-8")
    head, *places = faults(house)
    assert head == "'told': 2, at most 0; write said"
    assert places == ["  src/module.py:1", "  src/module.py:3"]
    (house / "list.toml").write_text(SETTINGS + "sentences = 5\ntold = 3\n", "utf-8")
    assert faults(house) == []


def test_ceilings_only_fall(house: Path) -> None:
    listed = house / "list.toml"
    listed.write_text(SETTINGS + "sentences = 5\ntold = 3\n", "utf-8")
    lower(listed, {"sentences": 9, "told": 2})
    assert tomllib.loads(listed.read_text("utf-8"))["ceilings"] == {"sentences": 5, "told": 2}
