"""What a budget lets through, books, prices, keeps back, and ends when time is over."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcodebook import errors
from promptcodebook.base.incidents import Incident
from promptcodebook.calls import (
    LM,
    Message,
    Reply,
    Request,
    Role,
    Sampling,
    Schema,
    Usage,
    read_message,
)
from promptcodebook.config import Budget
from promptcodebook.config.schema import Price
from promptcodebook.lm.budget import Attempted, BudgetGate, Ledger, PriceTable, prompt_bound
from promptcodebook.lm.limit import AdaptiveLimit, Backoff, Retrying
from promptcodebook.lm.wire import byte_size, count_usage
from tests.build.clock import Clock
from tests.build.method import Counts

MODEL = "http://localhost/v1#m"
PRICES = PriceTable({MODEL: Price(prompt=1000.0, completion=3000.0, cached=100.0)})


def ask(text: str = "hi", cap: int | None = 10, role: Role = "executor") -> Request:
    return Request(role, (Message("user", text),), model=MODEL, sampling=Sampling(max_tokens=cap))


class Bill:
    """An LM that costs what it is told, call by call, after a few turns of the loop."""

    def __init__(self, *bills: Usage | Reply | Exception, turns: int = 1) -> None:
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
        return bill if isinstance(bill, Reply) else Reply("ok", usage=bill)


def gate(
    ledger: Ledger | None = None, elapsed: Callable[[], float] = lambda: 0.0, **limits: float | None
) -> BudgetGate:
    return BudgetGate(Budget.model_validate(limits), PRICES, ledger or Ledger(), elapsed)


def budgeted(inner: LM, ledger: Ledger | None = None, **limits: float | None) -> Attempted:
    return Attempted(inner, gate(ledger, **limits), Counts())


ONE = Usage(calls=1, prompt_tokens=5, completion_tokens=5, cost=None)
EACH = prompt_bound(ask()) + 10
PRICE = (prompt_bound(ask()) * 1000 + 10 * 3000) / 1e6
MOST = Usage(1, EACH - 10, 10, 0, PRICE)


async def test_usage_is_metered_by_role_and_priced_where_the_price_is_known():
    ledger = Ledger()
    lm = budgeted(Bill(ONE, ONE, ONE), ledger)
    reply = await lm(ask())
    for _ in range(2):
        await lm(ask(role="critic"))
    assert reply.usage.cost == pytest.approx(0.02)
    calls = {role: usage.calls for role, usage in ledger.usage.items()}
    assert calls == {"executor": 1, "critic": 2} and not ledger.lost
    assert ledger.total.cost == pytest.approx(0.06)
    # An own model that answers from its own cache takes nothing.
    await budgeted(Bill(Reply("ok", usage=ONE, source="cache")), ledger)(ask())
    assert ledger.total.calls == 3
    unpriced = Attempted(Bill(ONE), BudgetGate(Budget(), PriceTable(), ledger), Counts())
    assert (await unpriced(ask())).usage.cost is ledger.total.cost is None


async def test_what_was_spent_before_counts_and_reservations_that_shrink_make_room():
    ledger = Ledger({"critic": Usage(calls=3, prompt_tokens=10)}, {"critic": Usage(calls=1)})
    lm = budgeted(Bill(ONE), ledger, calls=5)
    await lm(ask())
    for _ in range(2):
        with pytest.raises(errors.BudgetReached, match=r"5 calls \(5 made\)") as caught:
            await lm(ask())
    assert "--budget" in caught.value.hint and ledger.total.calls == 5
    bill = Bill(*[Usage(calls=1, prompt_tokens=2, completion_tokens=1)] * 6)
    shrinking = budgeted(bill, tokens=EACH + 3 * 5)
    await asyncio.gather(*(shrinking(ask()) for _ in range(6)))
    assert bill.started == 6


@pytest.mark.parametrize(("error", "lost"), [
    *((errors.ServerFault("cut"), True), (errors.CallTimeout("late"), True), (OSError("x"), True)),
    *((errors.EndpointDown("down"), False), (errors.ConfigError("which model?"), False)),
])  # fmt: skip
async def test_an_attempt_that_fails_is_booked_at_the_most_it_can_have_cost(
    error: Exception, lost: bool
):
    ledger = Ledger()
    lm = budgeted(Bill(error, ONE), ledger, calls=1 + lost)
    with pytest.raises(type(error)):
        await lm(ask())
    await lm(ask())
    assert ledger.lost == ({"executor": MOST} if lost else {})
    assert (ledger.usage["executor"].calls, ledger.total.calls) == (1, 1 + lost)
    with pytest.raises(errors.BudgetReached):
        await lm(ask())


@pytest.mark.parametrize(
    "usage", [Usage(1, 1, 1), Usage(1, 130, 10), Usage(1, 2_000, 2_000), Usage(1, 500, 1, 400)]
)
async def test_what_a_reply_can_have_taken_is_believed(usage: Usage):
    tally = Counts()
    reply = await Attempted(Bill(usage), gate(), tally)(ask())
    assert replace(reply.usage, cost=0.0) == usage
    assert (tally, reply.estimated) == ({}, False)


@pytest.mark.parametrize(("usage", "letters"), [
    (Usage(), 300), (Usage(1, 0, 0), 300), (Usage(1, 0, 7), 300), (Usage(1, 7, 0), 300),
    (Usage(1, -7, 3), 300), (Usage(1, 7, -3), 300), (Usage(1, 10**9, 3), 300),
    (Usage(1, 7, 10**9), 300), (Usage(1, 7, 3, 400), 300), (Usage(1, 7, 3, -1), 300),
    (Usage(-1, 7, 3), 300), (Usage(1, 0, 7), 3), (Usage(1, 7, 3), 3000),
])  # fmt: skip
async def test_what_no_reply_can_have_taken_is_replaced_by_our_count(usage: Usage, letters: int):
    tally, ledger = Counts(), Ledger()
    reply = await Attempted(Bill(usage), gate(ledger), tally)(ask("x" * letters))
    assert tally == {Incident.USAGE_REPLACED: 1}
    assert reply.estimated
    assert letters / 4 <= reply.usage.prompt_tokens <= letters / 2 + 5
    assert reply.usage.completion_tokens == 1
    assert ledger.total == reply.usage


async def test_without_a_length_cap_no_budget_of_tokens_and_only_what_is_free_has_a_price():
    with pytest.raises(errors.ConfigError, match="length cap") as caught:
        await budgeted(Bill(ONE), tokens=1000)(ask(cap=None))
    assert "roles.executor.max_tokens" in caught.value.hint
    capless = ask(cap=None)
    assert gate(calls=1).most(capless) == Usage(1, MOST.prompt_tokens, 0, 0, None)
    assert gate(calls=1).most(replace(capless, model="simulated")).cost == 0.0
    assert gate(calls=1).most(ask()) == MOST


async def test_a_money_budget_with_an_unknown_price_is_refused():
    unpriced = BudgetGate(Budget(usd=1), PriceTable(), Ledger())
    lm = Attempted(Bill(ONE), unpriced, Counts())
    with pytest.raises(errors.ConfigError, match="localhost") as caught:
        unpriced.check_prices([MODEL])
    assert f'[prices."{MODEL}"]' in caught.value.hint
    with pytest.raises(errors.ConfigError):
        await lm(ask())
    BudgetGate(Budget(tokens=1), PriceTable(), Ledger()).check_prices([MODEL])
    past = Ledger({"critic": Usage(calls=1, cost=None)})
    with pytest.raises(errors.ConfigError, match="earlier calls"):
        BudgetGate(Budget(usd=1), PRICES, past).check_prices([MODEL])


def test_the_bound_covers_every_byte_message_and_schema():
    plain = ask("é" * 100)
    request = replace(plain, schema=Schema("S", {"type": "object"}))
    assert prompt_bound(plain) >= 200
    assert prompt_bound(request) == prompt_bound(plain) + len('{"type": "object"}')


def test_an_image_has_a_bound_of_its_own_and_tools_count_as_text():
    """Whatever its bytes: OpenAI bills 1,445 at the most, all but one model at most 5,000."""
    url = "data:image/png;base64," + "A" * 900_000
    part = {"type": "image_url", "image_url": {"url": url}}
    turn = {"role": "user", "content": [part, part]}
    plain = replace(ask("[image]\n[image]"), sampling=Sampling(max_tokens=10))
    seen = replace(plain, messages=(read_message(turn),))
    assert prompt_bound(seen) - prompt_bound(plain) == 2 * 5000
    small = [replace(each, model="openai/gpt-4o-mini") for each in (seen, plain)]
    assert prompt_bound(small[0]) - prompt_bound(small[1]) == 2 * 48169
    count = [count_usage(each, "", 0.0).prompt_tokens for each in (seen, plain)]
    assert count[0] - count[1] == 2 * 1445
    heard = {
        "role": "user",
        "content": [{"type": "input_audio", "input_audio": {"data": "A" * 200}}],
    }
    sound = count_usage(replace(plain, messages=(read_message(heard),)), "", 0.0).prompt_tokens
    assert 10 <= sound <= 30
    tools = {"tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}]}
    offered = replace(plain, sampling=Sampling(max_tokens=10, extra=tools))
    assert prompt_bound(offered) - prompt_bound(plain) == len(json.dumps(tools["tools"]))


FATES = ["paid", "paid", "paid", "lost", "late", "refused", "unmade", "cancelled", "lying"]
CALLS = st.lists(
    st.tuples(
        *(st.integers(0, 40), st.integers(1, 30)),  # length of the prompt, length cap
        *(st.floats(0, 1), st.floats(0, 1)),  # what the prompt takes of its bound, the reply of it
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
            raise errors.EndpointDown("no")
        self.billed += Usage(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        if fate == "refused":
            raise errors.RateLimited("no")
        size = byte_size(request.messages[0].content)
        # The most that a tokenizer makes of it; a liar's own truth is what our count can know.
        prompt, reply = max(1, int(prompt_bound(request) * share)), int(cap * filled)
        if fate == "lying":
            prompt, reply = max(1, size // 3), min(cap, 2)
        cost = PRICES.cost(MODEL, Usage(1, prompt, reply))
        self.billed += Usage(0, prompt, reply, 0, cost)
        if fate == "lost":
            raise errors.ServerFault("no")
        if fate == "late":
            raise errors.CallTimeout("no")
        usage = Usage(1, 0, 0) if fate == "lying" else Usage(1, prompt, max(1, reply))
        return Reply("x" * (3 * reply if fate == "lying" else 1), usage=usage)


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
        ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert limit.in_flight == 0 and limit.current <= slots, "no slot is lost or doubled"
        return ended

    outcomes = asyncio.run(run())
    billed, booked = server.billed, ledger.total
    assert calls is None or billed.calls <= calls
    assert tokens is None or billed.tokens <= tokens
    assert usd is None or (billed.cost or 0.0) <= usd + 1e-6
    assert billed.calls == booked.calls and billed.tokens <= booked.tokens
    assert (billed.cost or 0.0) <= (booked.cost or 0.0) + 1e-9
    expected = (Reply, errors.BudgetReached, errors.LMError, asyncio.CancelledError)
    assert all(isinstance(each, expected) for each in outcomes)
    if calls is tokens is usd is None:
        assert not any(isinstance(each, errors.BudgetReached) for each in outcomes)


SPEC = "http://localhost:8000/v1#Qwen/Qwen3-8B"
OWN = Price(prompt=1.0, completion=2.0)


@pytest.mark.parametrize(("own", "model", "cost"), [
    ("", "openai/gpt-unheard-of", None), ("", "http://localhost/v1#gpt-4o", None),
    ("", "no spec at all", None), ("", "simulated?load=0.1", 0.0), ("", "smollm2", 0.0),
    ("simulated", "simulated?load=0.1", 3.0), ("smollm2", "smollm2", 3.0), (SPEC, SPEC, 3.0),
    ("Qwen/Qwen3-8B", SPEC, 3.0), ("openai/gpt-4o", "openai/gpt-4o", 3.0),
])  # fmt: skip
def test_the_users_price_comes_first_then_the_listed_one(own: str, model: str, cost: float | None):
    usage = Usage(calls=1, prompt_tokens=1_000_000, completion_tokens=1_000_000)
    assert PriceTable({own: OWN} if own else None).cost(model, usage) == pytest.approx(cost)


@pytest.mark.parametrize(
    ("cached", "cost", "bound"), [(1.0, 6.4, 10), (None, 10, 10), (20, 14, 20)]
)
def test_cached_tokens_cost_as_listed_or_as_fresh_ones(cached, cost: float, bound: float):
    usage = Usage(calls=1, prompt_tokens=1_000_000, cached_prompt_tokens=400_000)
    table = PriceTable({"m": Price(prompt=10.0, completion=0.0, cached=cached)})
    assert table.cost("m", usage) == pytest.approx(cost)
    assert table.bound("m", 1_000_000, 0) == pytest.approx(bound)


# What a budget keeps back, the deadline that ends every wait, and what it says of both.


async def attempt(door: BudgetGate) -> None:
    """One that costs as much as it may."""
    await door.enter(MOST)
    door.ledger.end(door.ledger.begin("executor", MOST), MOST)
    door.leave(MOST)


async def reached(door: BudgetGate, most: int = 99) -> tuple[int, str]:
    """How many attempts went through, and what ended them."""
    for done in range(most):
        try:
            await attempt(door)
        except errors.BudgetReached as error:
            return done, str(error)
    raise AssertionError("nothing ended them")


@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize(("limit", "each", "message"), [
    ("calls", 1, "{all} calls ({spent} made{kept})"),
    ("tokens", EACH, "{all} tokens ({spent} spent; the next call may take up to {each}{kept})"),
    ("usd", PRICE,
     "${all:g} (${spent:.4f} spent; the next call may cost up to ${each:.4f}{kept})"),
])  # fmt: skip
async def test_what_is_kept_back_is_spent_once_the_reserve_is_opened(
    limit: str, each: float, message: str, kept: int
):
    door = gate(**{limit: 5 * each})
    door.keep_back(Budget.model_validate({limit: kept * each}))
    amount = f"${kept * each:.4f}" if limit == "usd" else f"{kept * each}"
    rest = f"; {amount} reserved for the verdict" if kept else ""
    told = message.format(all=5 * each, spent=(5 - kept) * each, each=each, kept=rest)
    assert await reached(door) == (5 - kept, f"the budget is reached: {told}")
    assert door.open_reserve() is bool(kept)
    if kept:
        told = message.format(all=5 * each, spent=5 * each, each=each, kept="")
        assert await reached(door) == (kept, f"the budget is reached: {told}")
        assert not door.open_reserve(), "there is only one"


async def test_a_user_who_stops_gets_no_reserve_nor_who_opened_it_before():
    door = gate(calls=5)
    assert not door.open_reserve()
    door.keep_back(Budget(calls=4))
    assert (await reached(door))[0] == 5
    door = gate(calls=5)
    door.keep_back(Budget(calls=2))
    door.stop(errors.Interrupted("stopped by you"))
    assert not door.open_reserve()
    with pytest.raises(errors.Interrupted):
        await attempt(door)


async def test_seconds_are_kept_back_like_all_else():
    now = 49.0
    door = gate(elapsed=lambda: now, seconds=60)
    door.keep_back(Budget(seconds=10))
    await attempt(door)
    now = 50.0
    assert await reached(door) == (
        0, "the budget is reached: 60 seconds (50 s elapsed; 10 s reserved for the verdict)"
    )  # fmt: skip
    assert door.open_reserve()
    await attempt(door)
    now = 60.0
    assert await reached(door) == (0, "the budget is reached: 60 seconds (60 s elapsed)")


async def waits(door: BudgetGate) -> float:
    """Seconds until a waiter is let go, while one attempt stays out that leaves no room."""
    await door.enter(MOST)
    began = time.monotonic()
    with pytest.raises(errors.BudgetReached, match="seconds"):
        await asyncio.wait_for(door.enter(MOST), 60)
    return time.monotonic() - began


def watch() -> Callable[[], float]:
    began = time.monotonic()
    return lambda: time.monotonic() - began


async def test_the_deadline_ends_a_wait_though_no_attempt_ends_and_is_not_polled():
    clock, asked = watch(), 0

    def elapsed() -> float:
        nonlocal asked
        asked += 1
        return clock()

    assert 0.1 < await waits(gate(elapsed=elapsed, calls=1, seconds=0.2)) < 20
    assert asked <= 10


async def test_a_clock_that_goes_behind_the_alarm_only_makes_it_ring_again():
    """The run's own clock decides: earlier sessions and the machine's sleep are in it."""
    now = iter([0.0, 0.0, 0.0, 0.05])
    clock = watch()
    door = gate(elapsed=lambda: next(now, clock()), calls=1, seconds=0.2)
    assert await waits(door) < 20


async def test_what_is_kept_back_of_the_seconds_brings_the_deadline_forward_and_the_reserve_back():
    """The alarm of the shorter time has rung then: there is another for what was kept back."""
    clock = Clock()
    began = clock.now()
    door = gate(elapsed=lambda: clock.now() - began, calls=1, seconds=1000.0)
    await door.enter(MOST)
    waiter = asyncio.create_task(door.enter(MOST))
    await asyncio.sleep(0)
    door.keep_back(Budget(seconds=800))
    clock.skip(200)
    with pytest.raises(errors.BudgetReached, match="800 s reserved"):
        await waiter
    assert door.open_reserve()
    waiter = asyncio.create_task(door.enter(MOST))
    await asyncio.sleep(0.01)
    assert not waiter.done(), "there is time again"
    clock.skip(800)
    with pytest.raises(errors.BudgetReached, match=r"1000 seconds \(\d+ s elapsed\)"):
        await waiter


async def test_what_is_free_waits_for_nobody_under_a_budget_of_money():
    door = gate(usd=0.5)
    free = door.most(replace(ask(), model="simulated"))
    for _ in range(4):
        await asyncio.wait_for(door.enter(free), 20)


async def test_whoever_waits_comes_first_and_a_place_given_up_is_the_next_one_s():
    door = gate(calls=1)
    await door.enter(MOST)
    order: list[int] = []

    async def wait(number: int) -> None:
        await door.enter(MOST)
        order.append(number)
        door.leave(MOST)

    first, second, third = [asyncio.create_task(wait(n)) for n in range(3)]
    await asyncio.sleep(0)
    first.cancel()
    door.leave(MOST)
    await asyncio.gather(second, third)
    assert order == [1, 2] and first.cancelled()
    await asyncio.wait_for(door.enter(MOST), 60)
    late = asyncio.create_task(door.enter(MOST))
    await asyncio.sleep(0)
    door.leave(MOST)  # its turn comes, and in the same moment it is cancelled
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    await asyncio.wait_for(door.enter(MOST), 60)


@pytest.mark.parametrize(("cached", "written", "per_million"), [
    (0, 0, 10.0), (0, 4, 14.0), (4, 6, 6 * 2.0 + 4 * 0.1), (4, 60, 6 * 2.0 + 4 * 0.1),
    (0, 10**6, 20.0), (60, 60, 10 * 0.1),
])  # fmt: skip
def test_no_more_of_a_prompt_is_put_into_a_cache_than_it_has(
    cached: int, written: int, per_million: float
) -> None:
    price = Price(prompt=1.0, completion=0.0, cached=0.1, cache_write=2.0)
    cost = PriceTable({MODEL: price}).cost(MODEL, Usage(1, 10, 0, cached), written)
    assert cost == pytest.approx(per_million / 1e6)
