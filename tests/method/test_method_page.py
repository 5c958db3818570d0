"""docs/method.md names only files, functions and tests that exist, and leaves no decision out."""

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
            members = (
                n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
            )
            found.update(f"{node.name}.{member.name}" for member in members)
    return found


def section(title: str) -> list[str]:
    return PAGE.split(f"## {title}")[1].split("\n## ")[0].splitlines()


@pytest.mark.parametrize("name", NAMED)
def test_what_the_page_names_exists(name: str):
    file, _, symbol = name.partition("::")
    outside = file.split("/")[0] in ("tests", "docs", "bench", "examples")
    path = ROOT / file if outside else ROOT / "src" / "promptcodebook" / file
    assert path.is_file(), f"docs/method.md names {name}: there is no such file"
    assert not symbol or symbol in symbols(path), f"docs/method.md names {name}: no such name"


def test_every_decision_and_every_equation_of_the_paper_has_a_row():
    assert len(NAMED) > 100
    for number in range(1, 23):
        (row,) = [line for line in section("Decisions") if line.startswith(f"- **{number}** ")]
        assert "::test_" in row
    placed: set[int] = set()
    for line in section("Equations"):
        for part in re.findall(r"\d+(?:–\d+)?", line.split("** ")[0].removeprefix("- **")):
            first, _, last = part.partition("–")
            placed.update(range(int(first), int(last or first) + 1))
    assert placed >= set(range(1, 45))
    for equation, symbols in (("8", "D_ψ(H)"), ("9", "LLM_upd(v, g_v)")):
        (row,) = [line for line in section("Equations") if line.startswith(f"- **{equation}** ")]
        assert symbols in row, "decisions 8 and 9 once stood there"
