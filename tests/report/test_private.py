"""The report of a run on private data: no text of a person, only its length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from promptcodebook.report import render_report
from promptcodebook.report.private import withhold, withhold_ending
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
from promptcodebook.types import Evaluation, Refused, Rewrite
from tests.report.scripted_run import ScriptedRun, events_of
from tests.report.strict import read_page

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
