"""The shape of the house: what no reader should have to check by hand."""

from __future__ import annotations

import ast
from pathlib import Path

from bench.house import EXAMPLE, READING, circles, read_house, reading

HOUSE = read_house(Path(__file__).parents[1])


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports for type checking count too."""
    assert circles(HOUSE.imports) == []


def test_circles_are_found() -> None:
    imports = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a"), "d": frozenset("a")}
    assert circles(imports) == [["a", "b", "c"]]


def test_the_method_can_be_read_in_an_hour() -> None:
    """From the example to the last function that decides a route, prompt, gradient or update."""
    example = (Path(__file__).parents[1] / EXAMPLE).read_text("utf-8").splitlines()
    assert len(example) + reading(HOUSE, READING) <= 900


def test_models_are_built_from_a_configuration_in_one_place() -> None:
    assert HOUSE.builders() == ["promptcodebook.assemble"]


def test_the_simulated_model_stays_small() -> None:
    """A test instrument, data included: what it may cost to read. The tour is none of it."""
    folder = Path(__file__).parents[1] / "src" / "promptcodebook" / "simulated"
    beside = ("cli.py", "tour.py", "server.py")
    files = [
        p for p in folder.rglob("*.*") if p.suffix in (".py", ".toml") and p.name not in beside
    ]
    assert len(files) > 10
    assert sum(len(f.read_text("utf-8").splitlines()) for f in files) <= 3000


def test_files_get_their_names_in_one_place() -> None:
    """There their content is on disk first: a rename by itself survives no power cut."""
    source = Path(__file__).parents[1] / "src" / "promptcodebook"
    renaming = set[str]()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                given = len(node.args), len(node.keywords)
                moves = node.func.attr in ("rename", "renames", "link", "move", "hardlink_to")
                # Of a text, a date or a dataclass it takes two arguments, or keywords.
                if moves or (node.func.attr == "replace" and given == (1, 0)):
                    renaming.add(str(path.relative_to(source)))
    assert renaming == {"paths.py"}


def test_whatever_make_installs_is_checked_against_its_hash() -> None:
    makefile = (Path(__file__).parents[1] / "Makefile").read_text("utf-8")
    lines = [line for line in makefile.splitlines() if line.startswith("\t")]
    installs = [line for line in lines if "$(PIP" in line or "$(INSTALL)" in line]
    assert len(installs) > 10
    assert [line for line in installs if not ("--require-hashes" in line or " -e ." in line)] == []
