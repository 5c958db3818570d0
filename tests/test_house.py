"""The shape of the house: what no reader should have to check by hand."""

from __future__ import annotations

from pathlib import Path

from bench.house import circles, read_house

HOUSE = read_house(Path(__file__).parents[1])


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports for type checking count too."""
    assert circles(HOUSE.imports) == []


def test_circles_are_found() -> None:
    imports = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a"), "d": frozenset("a")}
    assert circles(imports) == [["a", "b", "c"]]


def test_models_are_built_from_a_configuration_in_one_place() -> None:
    assert HOUSE.builders() == ["promptcodebook.assemble"]


def test_the_simulated_model_stays_small() -> None:
    """A test instrument, data included: what it may cost to read."""
    folder = Path(__file__).parents[1] / "src" / "promptcodebook" / "simulated"
    files = [*folder.rglob("*.py"), *folder.rglob("*.toml")]
    assert len(files) > 10
    assert sum(len(f.read_text("utf-8").splitlines()) for f in files) <= 3000
