from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.calls import Usage
from promptcodebook.errors import StoreError
from promptcodebook.sqlite import pack
from promptcodebook.store.events import (
    Amended,
    Broke,
    Compared,
    Concluded,
    Ended,
    Event,
    Resumed,
    Started,
    Stepped,
    Trained,
    Validated,
)
from promptcodebook.store.tables import PackedEvent, pack_event, unpack_event
from promptcodebook.types import (
    Codebook,
    Evaluation,
    Failure,
    Gradients,
    Instinct,
    Parameters,
    Rewrite,
    Rollout,
    Route,
    Stage,
    Step,
    Trace,
    Verdict,
)

# Lone surrogates included: a reply's JSON may hold "\ud800", and it must come back unchanged.
variables = st.sampled_from(("encoder", "generator", "critic", 0, 7))
texts = st.text(st.characters(), max_size=12)
finite = st.floats(allow_nan=False, width=32)
counts = st.integers(0, 2**40)

parameters = st.builds(
    Parameters,
    texts,
    texts,
    st.builds(
        Codebook,
        st.lists(st.builds(Instinct, texts, st.booleans()), max_size=3).map(tuple),
    ),
    texts,
)
usages = st.builds(Usage, counts, counts, counts, counts, st.none() | finite, finite)
routes = st.builds(
    Route,
    st.lists(st.integers(0, 15), max_size=4).map(tuple),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.lists(texts, max_size=2).map(tuple),
    texts,
)
failures = st.builds(Failure, texts, texts, texts, texts)
rollouts = st.builds(
    Rollout,
    example_id=texts,
    route=st.none() | routes,
    prompt=texts,
    output=texts,
    fields=st.dictionaries(texts, texts | finite | st.lists(texts, max_size=2), max_size=2),
    stages=st.lists(st.builds(Stage, texts, texts, texts), max_size=2).map(tuple),
    reward=st.none() | finite,
    feedback=texts,
    truncated=st.booleans(),
    failure=st.none() | failures,
    usage=usages,
)
gradients = st.builds(
    Gradients,
    texts,
    texts,
    st.dictionaries(st.integers(0, 15), texts, max_size=3),
    texts,
    st.dictionaries(st.sampled_from(("encoder", "generator", "codebook")), finite),
)
traces = st.builds(
    Trace,
    rollouts,
    st.none() | finite,
    st.none() | st.builds(Verdict, finite, texts),
    finite,
    gradients,
    st.none() | failures,
    st.none() | finite,
)
steps = st.builds(
    Step,
    index=counts,
    epoch=counts,
    epsilon=finite,
    traces=st.lists(traces, max_size=2).map(tuple),
    rewrites=st.lists(
        st.builds(Rewrite, variables, texts, texts, texts, st.booleans(), texts), max_size=2
    ).map(tuple),
    parameters=parameters,
    ema=st.lists(finite, max_size=3).map(tuple),
    success=st.lists(finite, max_size=3).map(tuple),
    selected=st.lists(counts, max_size=3).map(tuple),
    reverted=st.lists(variables, max_size=2).map(tuple),
)
evaluations = st.builds(Evaluation, texts, texts, st.lists(rollouts, max_size=2).map(tuple), finite)
plain = st.none() | st.booleans() | counts | finite | texts
rows = st.dictionaries(texts, plain | st.lists(plain, max_size=2), max_size=3)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Started, parameters, texts),
    st.builds(Stepped, steps),
    st.builds(Validated, st.integers(-1, 10**6), st.sampled_from(["subset", "full"]), evaluations),
    st.builds(Trained, usages),
    st.builds(Compared, evaluations),
    st.builds(Broke, st.integers(0, 10**6), steps.map(lambda step: step.traces)),
    st.builds(Concluded, texts, st.none() | st.booleans(), st.lists(rows, max_size=2).map(tuple)),
    st.builds(
        Ended,
        st.sampled_from(["finished", "early_stop", "target", "budget", "interrupted", "failed"]),
        texts,
    ),
    st.builds(Resumed, st.integers(-1, 10**6), texts),
    st.builds(Amended, st.lists(texts, max_size=2).map(tuple), texts, st.booleans()),
)


@given(events)
def test_an_event_comes_back_as_it_was(event: Event) -> None:
    assert unpack_event(pack_event(event)) == event


@given(events)
def test_the_light_part_alone_is_the_event_without_its_bulk(event: Event) -> None:
    light = unpack_event(replace(pack_event(event), bulk=None))
    if isinstance(event, Stepped):
        assert light == Stepped(replace(event.step, traces=()))
    elif isinstance(event, Broke):
        assert light == Broke(event.step, ())
    elif isinstance(event, Validated | Compared):
        assert isinstance(light, Validated | Compared)
        assert light.evaluation.rewards == event.evaluation.rewards
        assert light.evaluation.failed == event.evaluation.failed
        assert light.evaluation.usage == event.evaluation.usage
    else:
        assert light == event


@pytest.mark.parametrize("text", ["\ud800", "\ud83d\ude00", "\U0001f600", "\0", "{x} <|im_end|>"])
def test_text_is_never_interpreted_nor_repaired(text: str) -> None:
    event = Started(Parameters(text, text, Codebook((Instinct(text),)), text), text)
    assert unpack_event(pack_event(event)) == event


def test_not_a_number_comes_back_as_such() -> None:
    verdict = Verdict(math.nan, "")
    step = Step(0, 0, math.inf, (Trace(Rollout("x"), verdict=verdict),), (), _NO, (), (), ())
    back = unpack_event(pack_event(Stepped(step)))
    assert isinstance(back, Stepped)
    assert back.step.epsilon == math.inf
    seen = back.step.traces[0].verdict
    assert seen is not None and math.isnan(seen.score)


_NO = Parameters("", "", Codebook(()), "")


def test_a_damaged_event_says_where() -> None:
    with pytest.raises(StoreError, match=r"damaged at reason"):
        unpack_event(PackedEvent("ended", None, pack({"reason": "tired", "detail": ""})))
    with pytest.raises(StoreError, match="damaged"):
        unpack_event(PackedEvent("ended", None, b"not compressed"))
    with pytest.raises(StoreError, match="unknown kind 'danced'"):
        unpack_event(PackedEvent("danced", None, pack({})))
