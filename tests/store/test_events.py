"""Events: as rows and back, and the state that is their fold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.base.sqlite import pack
from promptcodebook.errors import StoreError
from promptcodebook.store.events import (
    Broke,
    Compared,
    Ended,
    Event,
    Resumed,
    RunState,
    Scope,
    Started,
    Stepped,
    Validated,
    fold,
    pack_event,
    unpack_event,
)
from promptcodebook.types import Evaluation, Parameters, Rollout, Step

# Lone surrogates included: a reply's JSON may hold "\ud800", and it must come back unchanged.
texts = st.text(st.characters(), max_size=12)
finite = st.floats(allow_nan=False, width=32)
plain = st.none() | st.booleans() | st.integers(0, 2**40) | finite | texts
json = plain | st.lists(plain, max_size=2)
BASES: dict[Any, st.SearchStrategy[Any]] = {
    **{str: texts, float: finite, int: st.integers(0, 2**40), bool: st.booleans()},
    **{type(None): st.none(), Any: json, object: json},
}


@cache
def of(hint: Any) -> st.SearchStrategy[Any]:
    """Every value of a type that events are made of."""
    if hint in BASES:
        return BASES[hint]
    if is_dataclass(hint):
        return st.builds(hint, **{name: of(part) for name, part in get_type_hints(hint).items()})
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(parts)
    if origin is tuple and parts[-1] is ...:
        return st.lists(of(parts[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of, parts))
    if origin in (Union, UnionType):
        return st.one_of(*map(of, parts))
    return st.dictionaries(*map(of, parts), max_size=2)


events: st.SearchStrategy[Event] = of(Event)


def again(event: Event, *, whole: bool = True) -> Event:
    """The event as it is read from its row."""
    kind, _, light, bulk = pack_event(event)
    return unpack_event(kind, light, bulk if whole else None)


@given(events)
def test_an_event_comes_back_as_it_was(event: Event) -> None:
    assert again(event) == event


@given(events)
def test_the_light_part_alone_is_the_event_without_its_bulk(event: Event) -> None:
    light = again(event, whole=False)
    if isinstance(event, Stepped):
        assert light == Stepped(replace(event.step, traces=()))
    elif isinstance(event, Broke):
        assert light == Broke(event.step, ())
    elif isinstance(event, Validated | Compared):
        assert isinstance(light, Validated | Compared)
        assert light.evaluation.rewards == event.evaluation.rewards
        assert light.evaluation.failed == event.evaluation.failed
        assert light.evaluation.usage == event.evaluation.usage
        assert {each.prompt + each.output for each in light.evaluation.rollouts} <= {""}
    else:
        assert light == event


def test_a_damaged_event_says_where() -> None:
    with pytest.raises(StoreError, match=r"damaged at reason"):
        unpack_event("ended", pack({"reason": "tired", "detail": ""}))
    with pytest.raises(StoreError, match="damaged"):
        unpack_event("ended", b"not compressed")
    with pytest.raises(StoreError, match="unknown kind 'danced'"):
        unpack_event("danced", pack({}))


MakeStep = Callable[[int], Step]
MakeParameters = Callable[[str], Parameters]


def seen(score: float | None, name: str = "val") -> Evaluation:
    rollouts = () if score is None else (Rollout("a", reward=score), Rollout("b", reward=score))
    return Evaluation(name, "val", rollouts)


def validated(step: int, score: float | None, scope: Scope = "subset") -> Validated:
    return Validated(step, scope, seen(score))


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

    ended = fold([Ended("budget", "5 usd", "none", "go on")], state)
    assert (ended.ended, ended.detail, ended.missing) == ("budget", "5 usd", "none")
    resumed = fold([Resumed(4, "2026-02-01")], ended)
    assert resumed == replace(state, resumes=1)


def test_the_best_validation_is_the_highest_and_on_a_tie_the_earliest() -> None:
    events = [validated(-1, 0.2), validated(9, 0.7), validated(19, 0.7), validated(29, None)]
    best = fold(events).best
    assert best is not None and (best.step, best.score, best.n) == (9, 0.7, 2)
    whole = fold([*events, validated(19, 0.5, "full")]).best
    assert whole is not None and (whole.step, whole.scope, whole.score) == (19, "full", 0.5)
    assert fold([]) == RunState() and fold([]).best is None
