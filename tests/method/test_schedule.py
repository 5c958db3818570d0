from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.config import Update
from promptcodebook.method.state import Schedule
from promptcodebook.randomness import Randomness
from tests.method.build import examples

PLANS = st.tuples(
    st.integers(1, 23), st.integers(1, 9), st.integers(1, 4), st.sampled_from(["all", 1, 2, 5])
)


def schedule(size: int, batch: int, epochs: int, per_epoch, mode: str = "minibatch", seed: int = 0):
    update = Update(batch_size=batch, epochs=epochs, steps_per_epoch=per_epoch, mode=mode)
    return Schedule(examples(size), update, Randomness(seed))


@given(PLANS, st.integers(0, 3))
def test_each_pass_holds_every_example_exactly_once(plan, seed: int):
    size, *_ = plan
    flat = [e.id for _, _, batch in schedule(*plan, seed=seed).updates() for e in batch]
    for at in range(0, len(flat), size):
        whole = flat[at : at + size]
        assert len(set(whole)) == len(whole)


@given(PLANS)
def test_a_batch_is_full_unless_the_pass_ends_with_it(plan):
    size, batch, _, _ = plan
    sizes = [len(b) for _, _, b in schedule(*plan).updates()]
    per_pass = -(-size // batch)
    last = size - (per_pass - 1) * batch
    assert sizes == [last if (i + 1) % per_pass == 0 else batch for i in range(len(sizes))]


@given(PLANS)
def test_steps_and_epochs_count_up_without_a_gap(plan):
    size, batch, epochs, per_epoch = plan
    updates = schedule(*plan).updates()
    each = -(-size // batch) if per_epoch == "all" else per_epoch
    assert [(step, epoch) for step, epoch, _ in updates] == [
        (i, i // each) for i in range(epochs * each)
    ]


@given(PLANS)
def test_online_takes_the_same_examples_one_by_one(plan):
    batches = schedule(*plan).updates()
    singles = schedule(*plan, mode="online").updates()
    assert [(epoch, e.id) for _, epoch, (e,) in singles] == [
        (epoch, e.id) for _, epoch, batch in batches for e in batch
    ]
    assert [step for step, _, _ in singles] == list(range(len(singles)))


@pytest.mark.parametrize("mode", ["minibatch", "online"])
def test_a_run_can_be_taken_up_anywhere(mode: str):
    plan = schedule(7, 3, 2, "all", mode)
    assert all(plan.updates(start) == plan.updates()[start:] for start in range(20))


def test_the_order_changes_with_the_pass_and_with_the_seed():
    def orders(seed: int) -> list[tuple[str, ...]]:
        plan = schedule(8, 8, 3, "all", seed=seed)
        return [tuple(e.id for e in batch) for _, _, batch in plan.updates()]

    assert len(set(orders(0))) == 3
    assert orders(0) == orders(0) and orders(0) != orders(1)


def test_the_budget_of_the_paper_is_one_batch_an_epoch():
    """Decision 1: 50 epochs of one batch of 15 are 750 rollouts, five passes over 150 examples."""
    plan = schedule(150, 15, 50, 1)
    seen = Counter(e.id for _, _, batch in plan.updates() for e in batch)
    assert plan.batches == 50 and set(seen.values()) == {5} and len(seen) == 150


def test_no_examples_make_no_updates():
    assert schedule(0, 3, 2, 1).updates() == [] == schedule(0, 3, 2, "all").updates()
