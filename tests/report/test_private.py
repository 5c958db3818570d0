"""The report of a run on private data: no text of a person, only its length."""

from __future__ import annotations

import dataclasses
import shutil
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

import promptcodebook as pco
from promptcodebook.report import render_report
from promptcodebook.report.private import withhold, withhold_ending
from promptcodebook.report.traces import read_record
from promptcodebook.store.events import (
    Broke,
    Candidate,
    Compared,
    Concluded,
    RunState,
    Stepped,
    Validated,
)
from promptcodebook.store.run import RunStore
from promptcodebook.types import Evaluation, Refused, Rewrite, Step
from tests.report.scripted_run import ScriptedRun, events_of
from tests.report.strict import read_page
from tests.run.test_optimize import train
from tests.store.edit import edit_header

Write = Callable[[ScriptedRun], RunStore]

NAME = "Ottokar Quillfeather"
RUN = ScriptedRun(steps=20, hostile=NAME, private=True)


def test_a_trace_keeps_no_text_but_figures_and_routes() -> None:
    for event in events_of(RUN):
        if isinstance(event, Stepped):
            shown = withhold(event)
            assert isinstance(shown, Stepped)
            assert NAME in repr(event.step.traces)
            assert NAME not in repr(shown.step.traces)
            for before, after in zip(event.step.traces, shown.step.traces, strict=True):
                assert after.rollout.reward == before.rollout.reward
                assert after.unit == before.unit
            broken = withhold(Broke(3, event.step.traces))
            assert NAME not in repr(broken)


def test_no_evaluation_keeps_a_text() -> None:
    traces = next(e for e in events_of(RUN) if isinstance(e, Stepped)).step.traces
    evaluation = Evaluation("row", "test", tuple(t.rollout for t in traces))
    for event in (Compared(evaluation), Validated(3, "full", evaluation)):
        shown = withhold(event)
        assert NAME in repr(event)
        assert NAME not in repr(shown)
        assert isinstance(shown, Compared | Validated)
        assert shown.evaluation.rewards == evaluation.rewards


def test_prompts_of_another_optimizer_are_withheld() -> None:
    """It was shown the examples, and may quote them."""
    concluded = Concluded("so", None, candidates=(Candidate(f"As {NAME} said.", 0.5, 8, 8, True),))
    [shown] = withhold_ending(RunState(conclusion=concluded), "r").conclusion.candidates  # type: ignore[union-attr]
    assert NAME not in repr(withhold(concluded)) + repr(shown)
    assert (shown.score, shown.kept) == (0.5, True)


def test_gradients_and_refused_texts_are_withheld_and_kept_ones_stand() -> None:
    for event in events_of(RUN):
        shown = withhold(event)
        if not isinstance(event, Stepped) or not isinstance(shown, Stepped):
            continue
        for before, after in zip(event.step.rewrites, shown.step.rewrites, strict=True):
            assert NAME not in after.gradient
            assert after.after == (before.after if before.kept else "(private: 22 characters)")


def test_what_was_refused_at_first_is_withheld_of_a_kept_rewrite_too() -> None:
    rewrite = Rewrite(0, "a", "b", "g", kept=True, earlier=Refused(NAME, "a leak"))
    step = next(e.step for e in events_of(RUN) if isinstance(e, Stepped))
    shown = withhold(Stepped(replace(step, rewrites=(rewrite,))))
    assert isinstance(shown, Stepped)
    assert shown.step.rewrites[0].after == "b"
    assert shown.step.rewrites[0].earlier == Refused("(private: 20 characters)", "a leak")


def test_the_page_shows_lengths_in_the_place_of_texts(write: Write) -> None:
    store = write(replace(RUN, hostile="private person"))
    inputs = {f"train-{i}-{j}": NAME for i in range(20) for j in range(6)}
    page = read_page(render_report(store, inputs))
    assert page.faults == []
    assert NAME not in page.text
    for text in ("Some answer", "missed a constraint", "The answer ignores", "too vague private"):
        assert text not in page.text
    assert "(private: 26 characters)" in page.texts


def test_a_failed_run_says_how_it_goes_on_and_not_what_the_error_said() -> None:
    failed = RunState(ended="failed", detail="ServerFault: Ottokar", hint="ask Ottokar")
    shown = withhold_ending(failed, "20260131-154502-x")
    assert shown.hint == "pco train --resume 20260131-154502-x"
    assert "Ottokar" not in repr(shown)


# --- Every text of an event is withheld, or named here as one that may be shown ---


WITHHELD_NAME = 'said: "Ottokar Quillfeather"'
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


# --- What a run has on record of one example, and what it withholds of private data ---


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pco.Run:
    return train(tmp_path_factory.mktemp("recorded"), size=8, select=3)


def test_every_time_an_example_was_drawn_is_there(run: pco.Run) -> None:
    store = RunStore.open(run.path)
    traces = [(step.index, trace) for step in store.steps(traces=True) for trace in step.traces]
    store.close()
    name = traces[0][1].rollout.example_id
    own = [(step, trace) for step, trace in traces if trace.rollout.example_id == name]
    record = read_record(run.path, name)
    assert record is not None and not record.judged and record.validated is None
    assert [(t.step, t.trace) for t in record.trainings] == own
    for training in record.trainings:
        blamed = {variable for variable, _ in training.blamed}
        assert {rewrite.variable for rewrite in training.rewrites} <= blamed


def test_an_example_that_the_run_never_saw_has_no_record(run: pco.Run) -> None:
    assert read_record(run.path, "nobody") is None


def test_texts_of_private_data_are_withheld(run: pco.Run, tmp_path: Path) -> None:
    copy = tmp_path / run.id
    shutil.copytree(run.path, copy)
    edit_header(copy / "run.sqlite", lambda t: t.replace('"private": false', '"private": true'))
    store = RunStore.open(copy)
    trained = next(store.steps(traces=True)).traces[0].rollout.example_id
    tested = next(store.test_evaluations()).rollouts[0].example_id
    store.close()
    for name in (trained, tested):
        record = read_record(copy, name)
        assert record is not None
        rollouts = [t.trace.rollout for t in record.trainings] + [r for _, r in record.judged]
        assert rollouts and all(r.output.startswith("(private: ") for r in rollouts)
