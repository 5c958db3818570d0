"""Every text of an event is either withheld on private data, or named here as one that may stand.

A field that is new fails the test: whoever adds it decides.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import pytest

from promptcodebook.report.private import withhold
from promptcodebook.store.events import Broke, Compared, Stepped, Validated
from promptcodebook.types import Step

NAME = 'said: "Ottokar Quillfeather"'
SHOWN = {
    "name",  # of a row, of a stage
    "split",
    "example_id",
    "stage",
    "kind",
    "hint",
    # Texts that are shared anyway: each rewrite of them was checked.
    "text",
    "encoder",
    "generator",
    "critic",
    "before",
    "harmful by",  # the name of the variable whose text was called so
}
"""Fields of events that a report shows word for word."""


def filled(kind: Any) -> Any:
    """A value of this type whose every text is the name."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind is str or kind is object or kind is Any:
        return NAME
    if origin is Literal:
        return inside[0]
    if origin in (typing.Union, types.UnionType):
        return filled(next(each for each in inside if each is not type(None)))
    if origin is tuple:
        return (filled(inside[0]),)
    if origin is not None and issubclass(origin, Mapping):
        return {filled(inside[0]): filled(inside[1])}
    if kind is bool:
        return False
    if kind in (int, float):
        return kind(3)
    assert dataclasses.is_dataclass(kind), kind
    hints = typing.get_type_hints(kind)
    return kind(**{f.name: filled(hints[f.name]) for f in dataclasses.fields(kind) if f.init})  # type: ignore[operator]


def quoting(value: Any, field: str = "") -> Iterator[str]:
    """The fields in whose texts the name stands."""
    if isinstance(value, str):
        if "Quillfeather" in value:
            yield field
    elif dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            yield from quoting(getattr(value, each.name), each.name)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (*quoting(key, f"{field} by"), *quoting(inner, field))
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from quoting(inner, field)


@pytest.mark.parametrize("kind", [Stepped, Broke, Validated, Compared])
def test_no_text_of_an_event_is_shown_that_is_not_known_to_be_harmless(kind: Any) -> None:
    event = filled(kind)
    assert set(quoting(event)) > {"output", "message", "traceback", "feedback"}
    assert set(quoting(withhold(event))) <= SHOWN


def test_what_may_stand_are_the_texts_of_the_policy_alone() -> None:
    """The names above are those of gradients too: these are withheld all the same."""
    step: Step = filled(Step)
    shown = withhold(Stepped(step))
    assert isinstance(shown, Stepped)
    for trace in shown.step.traces:
        allowed = {"name", "example_id", "stage", "kind", "hint", "harmful by"}
        assert set(quoting(trace)) <= allowed
