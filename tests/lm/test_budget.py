from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcodebook.calls import LM, Message, Reply, Request, Role, Sampling, Schema, Usage
from promptcodebook.config import Budget, Price
from promptcodebook.errors import BudgetReached, ConfigError, Interrupted, ServerFault
from promptcodebook.lm.budget import Budgeted, Ledger, PriceTable, prompt_bound

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


def budgeted(inner: LM, ledger: Ledger | None = None, **limits) -> Budgeted:
    return Budgeted(inner, Budget(**limits), PRICES, ledger or Ledger())


ONE = Usage(calls=1, prompt_tokens=5, completion_tokens=5, cost=None)


async def test_usage_is_metered_by_role_and_priced():
    told: list[tuple[Role, Usage]] = []
    ledger = Ledger(sink=lambda role, usage: told.append((role, usage)))
    lm = budgeted(Bill(ONE, ONE, ONE), ledger)
    reply = await lm(ask())
    await lm(ask(role="critic"))
    await lm(ask(role="critic"))
    assert reply.usage.cost == pytest.approx(0.02)
    assert ledger.usage["critic"].calls == 2
    assert ledger.total.cost == pytest.approx(0.06)
    assert [role for role, _ in told] == ["executor", "critic", "critic"]


async def test_an_unknown_price_stays_unknown():
    ledger = Ledger()
    lm = Budgeted(Bill(ONE), Budget(), PriceTable(), ledger)
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


async def test_failed_calls_pay_nothing_and_free_their_reservation():
    ledger = Ledger()
    lm = budgeted(Bill(ServerFault("x"), ONE), ledger, calls=1)
    with pytest.raises(ServerFault):
        await lm(ask())
    await lm(ask())
    assert ledger.total.calls == 1


async def test_replies_that_cost_nothing_are_not_booked():
    ledger = Ledger()
    lm = budgeted(Bill(Usage(prompt_tokens=99), ONE), ledger, calls=1)
    await lm(ask())
    await lm(ask())
    assert ledger.total.calls == 1


async def test_the_time_limit_holds():
    now = 0.0
    lm = Budgeted(Bill(ONE, ONE), Budget(seconds=60), PRICES, Ledger(), lambda: now)
    await lm(ask())
    now = 60.0
    with pytest.raises(BudgetReached, match="60 seconds"):
        await lm(ask())


async def test_stopping_lets_calls_in_flight_finish_and_starts_no_other():
    bill = Bill(ONE, ONE, turns=20)
    lm = budgeted(bill, calls=1)
    running = asyncio.create_task(lm(ask()))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(lm(ask()))
    await asyncio.sleep(0)
    lm.stop(Interrupted("stopped by you", hint="pco train --resume r1"))
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
    lm = Budgeted(Bill(ONE), Budget(usd=1), PriceTable(), Ledger())
    with pytest.raises(ConfigError, match="localhost") as caught:
        lm.check_prices([MODEL])
    assert f'[prices."{MODEL}"]' in caught.value.hint
    with pytest.raises(ConfigError):
        await lm(ask())
    Budgeted(Bill(ONE), Budget(tokens=1), PriceTable(), Ledger()).check_prices([MODEL])
    past = Ledger({"critic": Usage(calls=1, cost=None)})
    with pytest.raises(ConfigError, match="earlier calls"):
        Budgeted(Bill(), Budget(usd=1), PRICES, past).check_prices([MODEL])


async def test_cancelling_waiting_and_running_calls_frees_everything():
    bill = Bill(*[ONE] * 9, turns=50)
    lm = budgeted(bill, calls=2)
    tasks = [asyncio.create_task(lm(ask())) for _ in range(5)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(lm(ask()), lm(ask()))
    assert bill.started == 4


def test_the_bound_covers_every_byte_message_and_schema():
    schema = Schema("S", {"type": "object"})
    plain = ask("é" * 100)
    assert prompt_bound(plain) >= 200
    assert prompt_bound(replace(plain, schema=schema)) > prompt_bound(plain)


CALLS = st.lists(
    st.tuples(
        st.integers(0, 40),  # length of the prompt
        st.integers(1, 30),  # length cap
        st.floats(0, 1),  # share of the bound that the prompt really takes
        st.floats(0, 1),  # share of the cap that the reply really takes
        st.integers(0, 4),  # turns of the loop until it is answered
        st.sampled_from(["paid", "paid", "paid", "failed", "cancelled"]),
    ),
    max_size=25,
)


@settings(max_examples=150)
@given(
    CALLS,
    st.one_of(st.none(), st.integers(0, 12)),
    st.one_of(st.none(), st.integers(0, 2500)),
    st.one_of(st.none(), st.floats(0, 3)),
)
def test_a_budget_is_never_passed_under_concurrency(plan, calls, tokens, usd):
    limits = Budget(calls=calls, tokens=tokens, usd=usd)
    ledger = Ledger()
    started = 0

    async def answer(request: Request) -> Reply:
        nonlocal started
        started += 1
        number = int(request.messages[0].content.split("|")[0])
        _, cap, share, filled, turns, fate = plan[number]
        for _ in range(turns):
            await asyncio.sleep(0)
        if fate == "failed":
            raise ServerFault("no")
        prompt = int(prompt_bound(request) * share)
        return Reply("x", usage=Usage(1, prompt, int(cap * filled), cost=None))

    async def run() -> list[object]:
        lm = Budgeted(answer, limits, PRICES, ledger)
        tasks = [
            asyncio.create_task(lm(ask(f"{n}|" + "x" * each[0], each[1])))
            for n, each in enumerate(plan)
        ]
        await asyncio.sleep(0)
        for task, each in zip(tasks, plan, strict=True):
            if each[5] == "cancelled":
                task.cancel()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)

    outcomes = asyncio.run(run())
    total = ledger.total
    assert calls is None or total.calls <= calls
    assert tokens is None or total.tokens <= tokens
    assert usd is None or (total.cost or 0.0) <= usd + 1e-6
    expected = (Reply, BudgetReached, ServerFault, asyncio.CancelledError)
    assert all(isinstance(each, expected) for each in outcomes)
    assert total.calls == sum(isinstance(each, Reply) for each in outcomes)
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
    assert table.cost("simulated?dilution=0.1", MILLION) == 0.0


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
