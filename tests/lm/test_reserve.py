"""What a budget keeps back, the deadline that ends every wait, and what it says of both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from promptcodebook.calls import Message, Request, Sampling, Usage
from promptcodebook.config import Budget, Price
from promptcodebook.errors import BudgetReached, Interrupted
from promptcodebook.lm.budget import BudgetGate, Ledger, PriceTable, prompt_bound
from tests.load import crowding

MODEL = "http://localhost/v1#m"
REQUEST = Request(
    "executor", (Message("user", "hi"),), model=MODEL, sampling=Sampling(max_tokens=10)
)
MOST = Usage(1, prompt_bound(REQUEST), 10)


def gate(elapsed: Callable[[], float] = lambda: 0.0, **limits: float) -> BudgetGate:
    prices = PriceTable({MODEL: Price(prompt=1000.0, completion=1000.0)})
    return BudgetGate(Budget.model_validate(limits), prices, Ledger(), elapsed)


async def attempt(door: BudgetGate) -> None:
    """One that costs as much as it may."""
    most = door.most(REQUEST)
    await door.enter(most)
    door.ledger.end(door.ledger.begin("executor", most), most)
    door.leave(most)


async def reached(door: BudgetGate, most: int = 99) -> tuple[int, str]:
    """How many attempts went through, and what ended them."""
    for done in range(most):
        try:
            await attempt(door)
        except BudgetReached as error:
            return done, str(error)
    raise AssertionError("nothing ended them")


EACH = MOST.tokens
PRICE = EACH / 1000


@pytest.mark.parametrize(
    ("limits", "kept", "said"),
    [
        ({"calls": 5}, {"calls": 2}, "5 calls (3 made; 2 kept for the verdict)"),
        (
            {"tokens": 5 * EACH},
            {"tokens": 2 * EACH},
            f"{5 * EACH} tokens ({3 * EACH} spent; the next call may take up to {EACH}; "
            f"{2 * EACH} kept for the verdict)",
        ),
        (
            {"usd": 5 * PRICE},
            {"usd": 2 * PRICE},
            f"${5 * PRICE:g} (${3 * PRICE:.4f} spent; the next call may cost up to ${PRICE:.4f}; "
            f"${2 * PRICE:.4f} kept for the verdict)",
        ),
    ],
)
async def test_what_is_kept_back_is_spent_once_the_reserve_is_opened(limits, kept, said: str):
    door = gate(**limits)
    door.keep_back(Budget.model_validate(kept))
    assert await reached(door) == (3, f"the budget is reached: {said}")
    assert door.open_reserve()
    done, whole = await reached(door)
    assert done == 2 and "kept" not in whole
    assert not door.open_reserve(), "there is only one"


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"calls": 3}, "3 calls (3 made)"),
        ({"tokens": 3 * EACH}, f"{3 * EACH} tokens ({3 * EACH} spent; the next call may take up to "
                               f"{EACH})"),
        ({"usd": 3 * PRICE}, f"${3 * PRICE:g} (${3 * PRICE:.4f} spent; the next call may cost up "
                             f"to ${PRICE:.4f})"),
    ],
)  # fmt: skip
async def test_a_budget_is_spent_to_its_last_and_says_where_it_stands(limits, said: str):
    door = gate(**limits)
    assert await reached(door) == (3, f"the budget is reached: {said}")
    assert not door.open_reserve(), "nothing was kept back"


async def test_once_the_reserve_is_opened_nothing_is_kept_back_any_more():
    door = gate(calls=5)
    assert not door.open_reserve()
    door.keep_back(Budget(calls=4))
    assert (await reached(door))[0] == 5


async def test_a_user_who_stops_gets_no_reserve():
    door = gate(calls=5)
    door.keep_back(Budget(calls=2))
    door.stop(Interrupted("stopped by you"))
    assert not door.open_reserve()
    with pytest.raises(Interrupted):
        await attempt(door)


async def test_seconds_are_kept_back_like_all_else():
    now = 49.0
    door = gate(lambda: now, seconds=60)
    door.keep_back(Budget(seconds=10))
    await attempt(door)
    now = 50.0
    assert await reached(door) == (
        0, "the budget is reached: 60 seconds (50 s gone; 10 s kept for the verdict)"
    )  # fmt: skip
    assert door.open_reserve()
    await attempt(door)
    now = 60.0
    assert await reached(door) == (0, "the budget is reached: 60 seconds (60 s gone)")


async def waits(door: BudgetGate) -> float:
    """Seconds until a waiter is let go, while one attempt stays out that leaves no room."""
    most = door.most(REQUEST)
    await door.enter(most)
    began = time.monotonic()
    with pytest.raises(BudgetReached, match="seconds"):
        await asyncio.wait_for(door.enter(most), 60)
    return time.monotonic() - began


def watch(lag: float = 0.0) -> Callable[[], float]:
    began = time.monotonic()
    return lambda: time.monotonic() - began - lag


async def test_the_deadline_ends_a_wait_though_no_attempt_ends():
    door = gate(watch(), calls=1, seconds=0.2)
    assert 0.1 < await waits(door) < 0.8 * crowding()


async def test_a_clock_that_goes_behind_the_alarm_only_makes_it_ring_again():
    """The run's own clock decides: earlier sessions and the machine's sleep are in it."""
    now = iter([0.0, 0.0, 0.0, 0.05])
    clock = watch()
    door = gate(lambda: next(now, clock()), calls=1, seconds=0.2)
    assert await waits(door) < 0.8 * crowding()


async def test_what_is_kept_back_of_the_seconds_brings_the_deadline_forward_and_the_reserve_back():
    door = gate(watch(), calls=1, seconds=30.0)
    most = door.most(REQUEST)
    await door.enter(most)
    waiter = asyncio.create_task(door.enter(most))
    await asyncio.sleep(0)
    began = time.monotonic()
    door.keep_back(Budget(seconds=29.8))
    with pytest.raises(BudgetReached, match="30 s kept"):
        await waiter
    assert time.monotonic() - began < 0.8 * crowding()
    assert door.open_reserve()
    late = asyncio.create_task(door.enter(most))
    await asyncio.sleep(0.05)
    assert not late.done(), "there is time again"
    door.leave(most)
    await late


async def test_the_whole_deadline_ends_waits_after_the_reserve_is_opened():
    """The alarm of the shorter time has rung already: there is another for what was kept back."""
    door = gate(watch(), calls=1, seconds=0.6)
    door.keep_back(Budget(seconds=0.4))
    most = door.most(REQUEST)
    await door.enter(most)
    with pytest.raises(BudgetReached, match="kept"):
        await asyncio.wait_for(door.enter(most), 60)
    assert door.open_reserve()
    with pytest.raises(BudgetReached, match=r"0\.6 seconds \(\d+ s gone\)"):
        await asyncio.wait_for(door.enter(most), 20)


async def test_a_deadline_is_waited_for_and_not_polled():
    clock, asked = watch(), 0

    def elapsed() -> float:
        nonlocal asked
        asked += 1
        return clock()

    await waits(gate(elapsed, calls=1, seconds=0.5))
    assert asked <= 10


@pytest.mark.parametrize("limits", [{"calls": 3}, {"tokens": 3 * EACH}, {"usd": 3.0001 * PRICE}])
async def test_what_is_out_is_reserved_and_what_is_over_is_not(limits: dict[str, float]):
    door = gate(**limits)
    most = door.most(REQUEST)
    for _ in range(3):
        await asyncio.wait_for(door.enter(most), 20)
    for _ in range(2):  # one comes back for nothing: its place is the next one's
        waiter = asyncio.create_task(door.enter(most))
        await asyncio.sleep(0)
        assert not waiter.done(), "three are out"
        door.leave(most)
        await asyncio.wait_for(waiter, 20)
    door.ledger.end(door.ledger.begin("executor", most), most)
    door.leave(most)
    waiter = asyncio.create_task(door.enter(most))
    await asyncio.sleep(0)
    assert not waiter.done(), "two are out, and one is booked"
    waiter.cancel()


async def test_what_is_free_waits_for_nobody_under_a_budget_of_money():
    door = gate(usd=0.5)
    free = door.most(replace(REQUEST, model="simulated"))
    for _ in range(4):
        await asyncio.wait_for(door.enter(free), 20)
    for _ in range(3):
        door.leave(free)
    await asyncio.wait_for(door.enter(free), 20)


async def test_whoever_waits_comes_first_and_a_place_given_up_is_the_next_one_s():
    door = gate(calls=1)
    most = door.most(REQUEST)
    await door.enter(most)
    order: list[int] = []

    async def wait(number: int) -> None:
        await door.enter(most)
        order.append(number)
        door.leave(most)

    first, second, third = [asyncio.create_task(wait(n)) for n in range(3)]
    await asyncio.sleep(0)
    first.cancel()
    door.leave(most)
    await asyncio.gather(second, third)
    assert order == [1, 2] and first.cancelled()
    await asyncio.wait_for(door.enter(most), 5)


def test_without_a_length_cap_only_what_is_free_has_a_price():
    """A budget of calls or seconds needs no cap; what an attempt may cost is unknown then."""
    capless = replace(REQUEST, sampling=Sampling(max_tokens=None))
    assert gate(calls=1).most(capless) == Usage(1, MOST.prompt_tokens, 0, 0, None)
    assert gate(calls=1).most(replace(capless, model="simulated")).cost == 0.0
    assert gate(calls=1).most(REQUEST).cost == pytest.approx(PRICE)
