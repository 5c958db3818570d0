"""The report of a run on private data: no text of a person, only its length."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

import pytest

from promptcodebook.report.page import render_report
from promptcodebook.report.private import withhold, withhold_ending
from promptcodebook.store import events
from promptcodebook.store.run import RunStore
from promptcodebook.types import Example, RefusedReply, Rewrite, Step
from tests.build.scripted_run import ScriptedRun, events_of
from tests.build.strict import read_page

Write = Callable[[ScriptedRun], RunStore]

NAME = "Ottokar Quillfeather"
RUN = ScriptedRun(steps=20, hostile=NAME, private=True)


def stepped() -> Step:
    return next(event.step for event in events_of(RUN) if isinstance(event, events.Stepped))


def test_figures_and_the_texts_of_kept_rewrites_stay() -> None:
    before, after = stepped(), withhold(stepped())
    assert NAME in repr(before.traces) and NAME not in repr(after.traces)
    for one, other in zip(before.traces, after.traces, strict=True):
        assert (other.rollout.reward, other.unit) == (one.rollout.reward, one.unit)
    for one, other in zip(before.rewrites, after.rewrites, strict=True):
        assert other.after == (one.after if one.kept else "(private: 22 characters)")
    rewrite = Rewrite(0, "a", "b", "g", kept=True, earlier=RefusedReply(NAME, f"a leak: {NAME}"))
    shown = withhold(rewrite)
    assert shown.after == "b"
    assert shown.earlier == RefusedReply("(private: 20 characters)", "a leak")


def test_prompts_of_another_optimizer_are_withheld() -> None:
    """It was shown the examples, and may quote them."""
    concluded = events.Concluded(
        "so", None, candidates=(events.PromptCandidate(f"As {NAME} said.", 0.5, 8, 8, True),)
    )
    [shown] = withhold_ending(events.RunState(conclusion=concluded), "r").conclusion.candidates  # type: ignore[union-attr]
    assert NAME not in repr(withhold(concluded)) + repr(shown)
    assert (shown.score, shown.kept) == (0.5, True)


def test_the_page_shows_lengths_in_the_place_of_texts(write: Write) -> None:
    store = write(replace(RUN, hostile="private person"))
    known = {n: Example(n, NAME, NAME) for n in ("test-5", *(f"train-{i}-0" for i in range(20)))}
    page = read_page(render_report(store, known))
    assert page.faults == []
    assert NAME not in page.text
    for text in ("Some answer", "missed a constraint", "The answer ignores", "too vague private"):
        assert text not in page.text
    assert "(private: 26 characters)" in page.texts


def test_a_failed_run_says_how_it_goes_on_and_not_what_the_error_said() -> None:
    failed = events.RunState(ended="failed", detail="ServerFault: Ottokar", hint="ask Ottokar")
    shown = withhold_ending(failed, "20260131-154502-x")
    assert shown.hint == "pco train --resume 20260131-154502-x"
    assert "Ottokar" not in repr(shown)


# --- Every text of an event is withheld, or named here as one that may be shown ---


WITHHELD_NAME = 'said: "Ottokar Quillfeather"'
# Fields of events that a report shows word for word.
SHOWN = {
    *("name", "split", "example_id", "stage", "kind", "hint"),  # the name of a row, of a stage
    # Texts that are shared anyway: each rewrite of them was checked.
    *("text", "encoder", "generator", "critic", "before"),
    *("harmful by", "notes by"),  # the names of variables, and of fields of the critic's reply
}


def filled(kind: Any) -> Any:
    """A value of this type whose every text is the name."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind is str or kind is object or kind is Any:
        return WITHHELD_NAME
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


@pytest.mark.parametrize("kind", [events.Stepped, events.Broke, events.Validated, events.Compared])
def test_no_text_of_an_event_is_shown_that_is_not_known_to_be_harmless(kind: Any) -> None:
    event = filled(kind)
    assert set(quoting(event)) > {"output", "message", "traceback", "feedback"}
    assert set(quoting(withhold(event))) <= SHOWN


def test_what_may_be_shown_are_the_texts_of_the_policy_alone() -> None:
    """The names above are those of gradients too: these are withheld all the same."""
    for trace in withhold(filled(Step)).traces:
        allowed = {"name", "example_id", "stage", "kind", "hint", "harmful by", "notes by"}
        assert set(quoting(trace)) <= allowed


# --- What a run has on record of one example, and what it withholds of private data ---
