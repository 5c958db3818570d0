"""What a budget lets through, books, prices, keeps back, and ends when time is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcodebook.calls import LM, Message, Reply, Request, Role, Sampling, Schema, Usage
from promptcodebook.config import Budget, Price
from promptcodebook.errors import (
    BudgetReached,
    CallTimeout,
    ConfigError,
    EndpointDown,
    Interrupted,
    LMError,
    RateLimited,
    ServerFault,
)
from promptcodebook.incidents import Incident
from promptcodebook.lm.budget import BudgetGate, Ledger, PriceTable, prompt_bound
from promptcodebook.lm.limit import AdaptiveLimit, Backoff, Retrying
from promptcodebook.lm.stack import Attempted
from promptcodebook.lm.wire import byte_size
from tests.lm.conftest import Counts
from tests.load import crowding

MILLION = Usage(calls=1, prompt_tokens=1_000_000, completion_tokens=1_000_000)
MODEL = "http://localhost/v1#m"
PRICES = PriceTable({MODEL: Price(prompt=1000.0, completion=3000.0, cached=100.0)})


def ask(text: str = "hi", cap: int | None = 10, role: Role = "executor") -> Request:
    return Request(role, (Message("user", text),), model=MODEL, sampling=Sampling(max_tokens=cap))


class Bill:
    """An LM that costs what it is told, call by call, after a few turns of the loop."""

    def __init__(self, *bills: Usage | Exception, turns: int = 1) -> None:
        self.bills = list(bills)
        self.turns = turns
        self.started = 0

    async def __call__(self, request: Request) -> Reply:
        bill = self.bills[self.started]
        self.started += 1
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if isinstance(bill, Exception):
            raise bill
        return Reply("ok", usage=bill)


def gate(ledger: Ledger | None = None, elapsed: Callable[[], float] = lambda: 0.0, **limits):
    return BudgetGate(Budget(**limits), PRICES, ledger or Ledger(), elapsed)


def budgeted(inner: LM, ledger: Ledger | None = None, **limits) -> Attempted:
    return Attempted(inner, gate(ledger, **limits), Counts())


ONE = Usage(calls=1, prompt_tokens=5, completion_tokens=5, cost=None)


async def test_usage_is_metered_by_role_and_priced():
    ledger = Ledger()
    lm = budgeted(Bill(ONE, ONE, ONE), ledger)
    reply = await lm(ask())
    await lm(ask(role="critic"))
    await lm(ask(role="critic"))
    assert reply.usage.cost == pytest.approx(0.02)
    assert ledger.usage["critic"].calls == 2
    assert ledger.total.cost == pytest.approx(0.06)
    assert list(ledger.usage) == ["executor", "critic"]
    assert not ledger.lost


async def test_an_unknown_price_stays_unknown():
    ledger = Ledger()
    lm = Attempted(Bill(ONE), BudgetGate(Budget(), PriceTable(), ledger), Counts())
    assert (await lm(ask())).usage.cost is None
    assert ledger.total.cost is None


async def test_calls_stop_at_the_limit_and_stay_stopped():
    bill = Bill(ONE, ONE, ONE)
    lm = budgeted(bill, calls=2)
    await lm(ask())
    await lm(ask())
    for _ in range(2):
        with pytest.raises(BudgetReached, match=r"2 calls \(2 made\)") as caught:
            await lm(ask())
    assert "--budget" in caught.value.hint
    assert bill.started == 2


async def test_what_was_spent_before_counts():
    ledger = Ledger({"critic": Usage(calls=4, prompt_tokens=10)})
    lm = budgeted(Bill(ONE), ledger, calls=5)
    await lm(ask())
    with pytest.raises(BudgetReached):
        await lm(ask())
    assert ledger.total.calls == 5


async def test_a_call_waits_for_reservations_that_may_shrink():
    small = Usage(calls=1, prompt_tokens=2, completion_tokens=1)
    need = prompt_bound(ask()) + 10
    bill = Bill(*[small] * 6)
    lm = budgeted(bill, tokens=need + 3 * 5)
    await asyncio.gather(*(lm(ask()) for _ in range(6)))
    assert bill.started == 6


async def test_money_is_reserved_at_the_full_price():
    most = (prompt_bound(ask()) * 1000 + 10 * 3000) / 1e6
    with pytest.raises(BudgetReached, match=r"\$0\.1 "):
        await budgeted(Bill(ONE), usd=0.1)(ask())
    await budgeted(Bill(ONE), usd=most)(ask())


LOST = [ServerFault("cut"), CallTimeout("late"), OSError("your own client"), KeyError("x")]


@pytest.mark.parametrize("error", LOST)
async def test_a_lost_attempt_is_booked_apart_at_the_most_it_can_cost(error: Exception):
    ledger = Ledger()
    lm = budgeted(Bill(error, ONE), ledger, calls=2)
    with pytest.raises(type(error)):
        await lm(ask())
    await lm(ask())
    most = prompt_bound(ask())
    cost = (most * 1000 + 10 * 3000) / 1e6
    assert ledger.lost == {"executor": Usage(1, most, 10, 0, pytest.approx(cost))}
    assert ledger.usage["executor"].calls == 1
    assert ledger.total.calls == 2
    with pytest.raises(BudgetReached):
        await lm(ask())


@pytest.mark.parametrize("error", [EndpointDown("down"), ConfigError("which model?")])
async def test_what_was_never_sent_is_not_booked(error: Exception):
    ledger = Ledger()
    lm = budgeted(Bill(error, ONE), ledger, calls=1)
    with pytest.raises(type(error)):
        await lm(ask())
    await lm(ask())
    assert ledger.total.calls == 1


async def test_whoever_leaves_before_the_answer_has_lost_it():
    ledger = Ledger()
    lm = budgeted(Bill(ONE, turns=50), ledger, calls=5)
    task = asyncio.create_task(lm(ask()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ledger.lost["executor"].calls == 1


async def test_an_own_model_that_answers_from_its_own_cache_pays_nothing():
    async def cached(request: Request) -> Reply:
        return Reply("ok", usage=ONE, source="cache")

    ledger = Ledger()
    await budgeted(cached, ledger, calls=1)(ask())
    assert ledger.total == Usage()


BELIEVED = [Usage(1, 1, 1), Usage(1, 130, 10), Usage(1, 2_000, 2_000), Usage(1, 500, 1, 400)]
IMPOSSIBLE = [
    Usage(),
    Usage(1, 0, 0),
    Usage(1, 0, 7),
    Usage(1, 7, 0),
    Usage(1, -7, 3),
    Usage(1, 7, -3),
    Usage(1, 10**9, 3),
    Usage(1, 7, 10**9),
    Usage(1, 7, 3, 400),
    Usage(-1, 7, 3),
]


@pytest.mark.parametrize("usage", BELIEVED)
async def test_what_a_reply_can_have_taken_is_believed(usage: Usage):
    tally, ledger = Counts(), Ledger()
    reply = await Attempted(Bill(usage), gate(ledger), tally)(ask())
    assert replace(reply.usage, cost=0.0) == usage
    assert (tally, reply.estimated) == ({}, False)


@pytest.mark.parametrize("usage", IMPOSSIBLE)
async def test_what_no_reply_can_have_taken_is_replaced_by_our_count(usage: Usage):
    tally, ledger = Counts(), Ledger()
    reply = await Attempted(Bill(usage), gate(ledger), tally)(ask("x" * 300))
    assert tally == {Incident.USAGE_REPLACED: 1}
    assert reply.estimated
    assert 75 <= reply.usage.prompt_tokens <= 150, "300 letters"
    assert reply.usage.completion_tokens == 1
    assert ledger.total == reply.usage


async def test_stopping_lets_calls_in_flight_finish_and_starts_no_other():
    bill = Bill(ONE, ONE, turns=20)
    door = gate(calls=1)
    lm = Attempted(bill, door, Counts())
    running = asyncio.create_task(lm(ask()))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(lm(ask()))
    await asyncio.sleep(0)
    door.stop(Interrupted("stopped by you", hint="pco train --resume r1"))
    with pytest.raises(Interrupted, match="stopped by you") as caught:
        await waiting
    assert caught.value.hint == "pco train --resume r1"
    assert (await running).text == "ok"
    with pytest.raises(Interrupted):
        await lm(ask())
    assert bill.started == 1


async def test_no_budget_of_tokens_without_a_length_cap():
    with pytest.raises(ConfigError, match="length cap") as caught:
        await budgeted(Bill(ONE), tokens=1000)(ask(cap=None))
    assert "roles.executor.max_tokens" in caught.value.hint
    await budgeted(Bill(ONE), calls=1)(ask(cap=None))


async def test_a_money_budget_with_an_unknown_price_is_refused():
    unpriced = BudgetGate(Budget(usd=1), PriceTable(), Ledger())
    lm = Attempted(Bill(ONE), unpriced, Counts())
    with pytest.raises(ConfigError, match="localhost") as caught:
        unpriced.check_prices([MODEL])
    assert f'[prices."{MODEL}"]' in caught.value.hint
    with pytest.raises(ConfigError):
        await lm(ask())
    BudgetGate(Budget(tokens=1), PriceTable(), Ledger()).check_prices([MODEL])
    past = Ledger({"critic": Usage(calls=1, cost=None)})
    with pytest.raises(ConfigError, match="earlier calls"):
        BudgetGate(Budget(usd=1), PRICES, past).check_prices([MODEL])


async def test_cancelling_waiting_and_running_calls_frees_everything():
    bill, ledger = Bill(*[ONE] * 9, turns=50), Ledger()
    lm = budgeted(bill, ledger, calls=2)
    tasks = [asyncio.create_task(lm(ask())) for _ in range(5)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert ledger.lost["executor"].calls == bill.started == 2
    with pytest.raises(BudgetReached, match="2 made"):  # and does not wait for anybody
        await asyncio.wait_for(lm(ask()), 5)


def test_the_bound_covers_every_byte_message_and_schema():
    schema = Schema("S", {"type": "object"})
    plain = ask("é" * 100)
    assert prompt_bound(plain) >= 200
    assert prompt_bound(replace(plain, schema=schema)) > prompt_bound(plain)


def test_a_schema_is_measured_once_however_many_calls_bear_it():
    class Counted(dict[str, object]):
        read = 0

        def items(self):
            self.read += 1
            return super().items()

    body = Counted(type="object")
    request = replace(ask("x"), schema=Schema("S", body))
    bounds = {prompt_bound(replace(request, sample=k)) for k in range(5)}
    assert bounds == {prompt_bound(ask("x")) + len('{"type": "object"}')}
    assert body.read <= 1


FATES = ["paid", "paid", "paid", "lost", "late", "refused", "unmade", "cancelled", "lying"]
CALLS = st.lists(
    st.tuples(
        st.integers(0, 40),  # length of the prompt
        st.integers(1, 30),  # length cap
        st.floats(0, 1),  # share of the bound that the prompt really takes
        st.floats(0, 1),  # share of the cap that the reply really takes
        st.integers(0, 4),  # turns of the loop until it is answered
        st.sampled_from(FATES),
    ),
    max_size=25,
)


class Biller:
    """A server that bills what its work really took, whatever becomes of the answer."""

    def __init__(self, plan: Sequence[tuple[int, int, float, float, int, str]]) -> None:
        self._plan = plan
        self.billed = Usage()

    async def __call__(self, request: Request) -> Reply:
        number = int(request.messages[0].content.split("|")[0])
        _, cap, share, filled, turns, fate = self._plan[number]
        if fate == "unmade":
            raise EndpointDown("no")
        self.billed += Usage(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        if fate == "refused":
            raise RateLimited("no")
        size = byte_size(request.messages[0].content)
        # The most that a tokenizer makes of it; a liar's own truth is what our count can know.
        prompt, reply = max(1, int(prompt_bound(request) * share)), int(cap * filled)
        if fate == "lying":
            prompt, reply = max(1, size // 3), min(cap, 2)
        cost = PRICES.cost(MODEL, Usage(1, prompt, reply))
        self.billed += Usage(0, prompt, reply, 0, cost)
        if fate == "lost":
            raise ServerFault("no")
        if fate == "late":
            raise CallTimeout("no")
        said = Usage(1, 0, 0) if fate == "lying" else Usage(1, prompt, max(1, reply))
        return Reply("x" * (3 * reply if fate == "lying" else 1), usage=said)


@settings(max_examples=150, deadline=None)
@given(
    CALLS,
    st.one_of(st.none(), st.integers(0, 12)),
    st.one_of(st.none(), st.integers(0, 2500)),
    st.one_of(st.none(), st.floats(0, 3)),
    st.integers(1, 8),
)
def test_what_a_server_bills_never_passes_a_budget(plan, calls, tokens, usd, slots):
    ledger, server = Ledger(), Biller(plan)
    lm = budgeted(server, ledger, calls=calls, tokens=tokens, usd=usd)
    limit = AdaptiveLimit(slots)
    backoff = Backoff(retries=2, first=0.0)
    tried = Retrying(lm, lambda: limit, backoff, Counts())

    async def run() -> list[object]:
        tasks = [
            asyncio.create_task(tried(ask(f"{n}|" + "x" * each[0], each[1])))
            for n, each in enumerate(plan)
        ]
        for _ in range(3):
            await asyncio.sleep(0)
        for task, each in zip(tasks, plan, strict=True):
            if each[5] == "cancelled":
                task.cancel()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)

    outcomes = asyncio.run(run())
    billed, booked = server.billed, ledger.total
    assert calls is None or billed.calls <= calls
    assert tokens is None or billed.tokens <= tokens
    assert usd is None or (billed.cost or 0.0) <= usd + 1e-6
    assert billed.calls == booked.calls
    assert billed.tokens <= booked.tokens
    assert (billed.cost or 0.0) <= (booked.cost or 0.0) + 1e-9
    expected = (Reply, BudgetReached, LMError, asyncio.CancelledError)
    assert all(isinstance(each, expected) for each in outcomes)
    if calls is tokens is usd is None:
        assert not any(isinstance(each, BudgetReached) for each in outcomes)


def test_a_listed_model_has_a_price_dated_names_too():
    table = PriceTable()
    assert table.cost("openai/gpt-4o-mini", MILLION) == pytest.approx(0.75)
    assert table.cost("openai/gpt-4o-mini-2024-07-18", MILLION) == pytest.approx(0.75)


def test_the_users_prices_come_first_by_spec_or_by_name():
    spec = "http://localhost:8000/v1#Qwen/Qwen3-8B"
    price = Price(prompt=1.0, completion=2.0)
    assert PriceTable({spec: price}).cost(spec, MILLION) == 3.0
    assert PriceTable({"Qwen/Qwen3-8B": price}).cost(spec, MILLION) == 3.0
    assert PriceTable({"openai/gpt-4o": price}).cost("openai/gpt-4o", MILLION) == 3.0


def test_unknown_is_unknown_and_simulated_is_free():
    table = PriceTable()
    assert table.cost("http://localhost/v1#gpt-4o", MILLION) is None
    assert table.cost("openai/gpt-unheard-of", MILLION) is None
    assert table.cost("no spec at all", MILLION) is None
    assert table.cost("simulated?load=0.1", MILLION) == 0.0


def test_cached_tokens_cost_as_listed_or_as_fresh_ones():
    usage = Usage(calls=1, prompt_tokens=1_000_000, cached_prompt_tokens=400_000)
    listed = PriceTable({"m": Price(prompt=10.0, completion=0.0, cached=1.0)})
    unlisted = PriceTable({"m": Price(prompt=10.0, completion=0.0)})
    assert listed.cost("m", usage) == pytest.approx(6.4)
    assert unlisted.cost("m", usage) == pytest.approx(10.0)


def test_the_missing_price_is_named_with_the_way_to_add_it():
    with pytest.raises(ConfigError, match="localhost") as caught:
        PriceTable().require(["openai/gpt-4o", "http://localhost/v1#m"])
    assert '[prices."http://localhost/v1#m"]' in caught.value.hint


# What a budget keeps back, the deadline that ends every wait, and what it says of both.


REQUEST = Request(
    "executor", (Message("user", "hi"),), model=MODEL, sampling=Sampling(max_tokens=10)
)
MOST = Usage(1, prompt_bound(REQUEST), 10)


def gate_reserve(elapsed: Callable[[], float] = lambda: 0.0, **limits: float) -> BudgetGate:
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
    door = gate_reserve(**limits)
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
    door = gate_reserve(**limits)
    assert await reached(door) == (3, f"the budget is reached: {said}")
    assert not door.open_reserve(), "nothing was kept back"


async def test_once_the_reserve_is_opened_nothing_is_kept_back_any_more():
    door = gate_reserve(calls=5)
    assert not door.open_reserve()
    door.keep_back(Budget(calls=4))
    assert (await reached(door))[0] == 5


async def test_a_user_who_stops_gets_no_reserve():
    door = gate_reserve(calls=5)
    door.keep_back(Budget(calls=2))
    door.stop(Interrupted("stopped by you"))
    assert not door.open_reserve()
    with pytest.raises(Interrupted):
        await attempt(door)


async def test_seconds_are_kept_back_like_all_else():
    now = 49.0
    door = gate_reserve(lambda: now, seconds=60)
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
    door = gate_reserve(watch(), calls=1, seconds=0.2)
    assert 0.1 < await waits(door) < 0.8 * crowding()


async def test_a_clock_that_goes_behind_the_alarm_only_makes_it_ring_again():
    """The run's own clock decides: earlier sessions and the machine's sleep are in it."""
    now = iter([0.0, 0.0, 0.0, 0.05])
    clock = watch()
    door = gate_reserve(lambda: next(now, clock()), calls=1, seconds=0.2)
    assert await waits(door) < 0.8 * crowding()


async def test_what_is_kept_back_of_the_seconds_brings_the_deadline_forward_and_the_reserve_back():
    door = gate_reserve(watch(), calls=1, seconds=30.0)
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
    door = gate_reserve(watch(), calls=1, seconds=0.6)
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

    await waits(gate_reserve(elapsed, calls=1, seconds=0.5))
    assert asked <= 10


@pytest.mark.parametrize("limits", [{"calls": 3}, {"tokens": 3 * EACH}, {"usd": 3.0001 * PRICE}])
async def test_what_is_out_is_reserved_and_what_is_over_is_not(limits: dict[str, float]):
    door = gate_reserve(**limits)
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
    door = gate_reserve(usd=0.5)
    free = door.most(replace(REQUEST, model="simulated"))
    for _ in range(4):
        await asyncio.wait_for(door.enter(free), 20)
    for _ in range(3):
        door.leave(free)
    await asyncio.wait_for(door.enter(free), 20)


async def test_whoever_waits_comes_first_and_a_place_given_up_is_the_next_one_s():
    door = gate_reserve(calls=1)
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
    assert gate_reserve(calls=1).most(capless) == Usage(1, MOST.prompt_tokens, 0, 0, None)
    assert gate_reserve(calls=1).most(replace(capless, model="simulated")).cost == 0.0
    assert gate_reserve(calls=1).most(REQUEST).cost == pytest.approx(PRICE)
