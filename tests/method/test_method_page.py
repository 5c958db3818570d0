"""docs/method.md names only files, functions and tests that exist, and leaves no decision out."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "method.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.(?:py|md)(?:::[\w.]+)?)`", PAGE)))


@cache
def symbols(path: Path) -> set[str]:
    """Top-level names of a module, and the methods of its classes as Class.method."""
    found: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            members = [
                n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            found.update(f"{node.name}.{member.name}" for member in members)
    return found


@pytest.mark.parametrize(("equation", "symbols"), [("8", "D_ψ(H)"), ("9", "LLM_upd(v, g_v)")])
def test_the_table_of_equations_has_the_backward_pass(equation: str, symbols: str):
    """Decisions 8 and 9 once stood in its rows."""
    table = PAGE.partition("## Equations")[2].partition("\n## ")[0]
    (row,) = [line for line in table.splitlines() if line.startswith(f"| {equation} |")]
    assert symbols in row


@pytest.mark.parametrize("name", NAMED)
def test_what_the_page_names_exists(name: str):
    file, _, symbol = name.partition("::")
    outside = file.split("/")[0] in ("tests", "docs", "bench", "examples")
    path = ROOT / file if outside else ROOT / "src" / "promptcodebook" / file
    assert path.is_file(), f"docs/method.md names {name}: there is no such file"
    assert not symbol or symbol in symbols(path), f"docs/method.md names {name}: no such name"


def test_the_page_names_many_things():
    assert len(NAMED) > 100


@pytest.mark.parametrize("number", range(1, 23))
def test_every_decision_has_a_row_with_a_test(number: int):
    section = PAGE.split("## Decisions")[1].split("\n## ")[0]
    (row,) = [line for line in section.splitlines() if line.startswith(f"| {number} | ")]
    assert "::test_" in row


@pytest.mark.parametrize("number", range(1, 45))
def test_every_equation_of_the_paper_is_placed(number: int):
    section = PAGE.split("## Equations")[1].split("\n## ")[0]
    placed: set[int] = set()
    for line in section.splitlines():
        cell = line.split(" | ")[0].removeprefix("| ")
        for part in re.findall(r"\d+(?:–\d+)?", cell):
            first, _, last = part.partition("–")
            placed.update(range(int(first), int(last or first) + 1))
    assert number in placed
