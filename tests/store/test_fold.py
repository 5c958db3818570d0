from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.store.events import (
    Compared,
    Concluded,
    Ended,
    Event,
    Resumed,
    RunState,
    Scope,
    Started,
    Stepped,
    Validated,
    fold,
    fold_event,
)
from promptcodebook.types import Codebook, Evaluation, Parameters, Rollout, Step

MakeStep = Callable[[int], Step]
MakeParameters = Callable[[str], Parameters]


def seen(score: float | None, name: str = "val") -> Evaluation:
    rollouts = () if score is None else (Rollout("a", reward=score), Rollout("b", reward=score))
    return Evaluation(name, "val", rollouts)


def validated(step: int, score: float | None, scope: Scope = "subset") -> Validated:
    return Validated(step, scope, seen(score))


def test_nothing_happened_yet() -> None:
    assert fold([]) == RunState()
    assert fold([]).best is None


def test_the_last_step_decides_where_the_run_stands(
    make_step: MakeStep, make_parameters: MakeParameters
) -> None:
    begun = fold([Started(make_parameters("zero"), "from_prompt")])
    assert (begun.step, begun.origin) == (-1, "from_prompt")
    assert begun.parameters == make_parameters("zero")

    last = make_step(3)
    state = fold([Stepped(make_step(2)), Stepped(last)], begun)
    assert state.origin == "from_prompt"
    assert (state.step, state.epoch, state.epsilon) == (3, last.epoch, last.epsilon)
    assert (state.ema, state.success, state.selected) == (last.ema, last.success, last.selected)
    assert state.parameters == last.parameters


def test_the_best_validation_is_the_highest_and_on_a_tie_the_earliest() -> None:
    events = [validated(-1, 0.2), validated(9, 0.7), validated(19, 0.7), validated(29, None)]
    best = fold(events).best
    assert best is not None and (best.step, best.score, best.n) == (9, 0.7, 2)


def test_whole_split_validations_outrank_the_subset() -> None:
    events = [validated(9, 0.9), validated(19, 0.8), validated(19, 0.5, "full")]
    best = fold(events).best
    assert best is not None and (best.step, best.scope, best.score) == (19, "full", 0.5)


def test_resuming_takes_back_the_end() -> None:
    ended = fold([Ended("budget", "5 usd")])
    assert (ended.ended, ended.detail) == ("budget", "5 usd")
    resumed = fold([Resumed(4, "2026-02-01")], ended)
    assert (resumed.ended, resumed.detail, resumed.resumes) == (None, "", 1)


def test_the_verdict_has_its_rows_in_order(make_step: MakeStep) -> None:
    conclusion = Concluded("worth it", True, ({"row": "learned", "score": 0.9},))
    state = fold(
        [
            Stepped(make_step(7)),
            Compared(seen(0.4, "zero-shot")),
            Compared(seen(0.9, "learned")),
            conclusion,
        ]
    )
    assert [(m.name, m.score, m.step) for m in state.tests] == [
        ("zero-shot", 0.4, 7),
        ("learned", 0.9, 7),
    ]
    assert state.conclusion == conclusion


def stepped(index: int) -> Stepped:
    empty = Parameters(str(index), "", Codebook(()), "")
    return Stepped(Step(index, index, 1.0 / (index + 1), (), (), empty, (), (), ()))


some_events: st.SearchStrategy[list[Event]] = st.lists(
    st.one_of(
        st.integers(0, 50).map(stepped),
        st.builds(validated, st.integers(-1, 50), st.none() | st.floats(0, 1)),
        st.sampled_from([Ended("budget"), Ended("finished", "all")]),
        st.builds(Resumed, st.integers(-1, 50), st.just("now")),
        st.builds(Compared, st.builds(seen, st.floats(0, 1))),
    ),
    max_size=12,
)


@given(some_events, st.integers(0, 12))
def test_folding_in_two_goes_equals_folding_at_once(events: list[Event], cut: int) -> None:
    assert fold(events[cut:], fold(events[:cut])) == fold(events)


@given(some_events)
def test_later_steps_win_and_nothing_else_touches_them(events: list[Event]) -> None:
    state = RunState()
    for event in events:
        after = fold_event(state, event)
        if isinstance(event, Stepped):
            assert after.step == event.step.index
            looks = tuple(m for m in state.validations if m.scope == "subset")
            chosen = {"validations": looks, "tests": (), "conclusion": None}
            assert replace(after, step=0, epoch=0, epsilon=None, parameters=None) == replace(
                state, step=0, epoch=0, epsilon=None, parameters=None, **chosen
            ), "what was chosen and judged before the step counts no more"
        else:
            assert (after.step, after.parameters) == (state.step, state.parameters)
        state = after
