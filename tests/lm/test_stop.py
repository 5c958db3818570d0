"""What the stop signal does to calls that passed the budget but have not begun."""

from __future__ import annotations

import asyncio
import time

import pytest

from promptcodebook.calls import Message, Reply, Request
from promptcodebook.config import load_config
from promptcodebook.errors import DiskFull, Interrupted, RateLimited
from promptcodebook.lm.journal import Journaled
from promptcodebook.lm.limit import StopSignal
from promptcodebook.lm.stack import Models, Supplies
from tests.lm.conftest import Counts
from tests.lm.server import Server, fails, says
from tests.load import crowding


def ask(text: str) -> Request:
    return Request("executor", (Message("user", text),), sample=hash(text))


def models(server: Server, **fields: object) -> Models:
    tree = {"lm": server.spec, "cache": False, **fields}
    return Models.build(load_config(tree), Supplies())


async def wait_for(server: Server, calls: int) -> None:
    for _ in range(500):
        if server.calls >= calls:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"only {server.calls} calls came")


async def test_calls_that_wait_for_a_slot_do_not_start_after_an_interruption(server: Server):
    server.default = says(delay=0.2)
    stack = models(server, concurrency=2)
    calls = [asyncio.create_task(stack.lm(ask(str(n)))) for n in range(10)]
    await wait_for(server, 2)
    stack.budget.stop(Interrupted("by the user"))
    results = await asyncio.gather(*calls, return_exceptions=True)
    await stack.close()
    assert [type(r) for r in results] == [Reply] * 2 + [Interrupted] * 8
    assert server.calls == 2
    assert stack.ledger.total.calls == 2


async def test_a_call_between_two_tries_gives_up_at_once(server: Server):
    server.default = fails(429, headers={"Retry-After": "60"})
    stack = models(server, concurrency=2)
    calls = [asyncio.create_task(stack.lm(ask(str(n)))) for n in range(4)]
    await wait_for(server, 2)
    await asyncio.sleep(0.05)
    began = time.monotonic()
    stack.budget.stop(Interrupted("by the user"))
    results = await asyncio.gather(*calls, return_exceptions=True)
    await stack.close()
    assert [type(r) for r in results] == [Interrupted] * 4
    assert time.monotonic() - began < 1.0 * crowding()


async def test_a_time_budget_holds_for_calls_that_wait_for_a_slot(server: Server):
    server.default = says(delay=0.1)
    gone = 0.0
    config = load_config(
        {"lm": server.spec, "cache": False, "concurrency": 1, "budget": {"seconds": 10.0}}
    )
    stack = Models.build(config, Supplies(elapsed=lambda: gone))
    calls = [asyncio.create_task(stack.lm(ask(str(n)))) for n in range(5)]
    await wait_for(server, 1)
    gone = 11.0
    with pytest.raises(Exception, match="10 seconds"):
        await stack.lm(ask("late"))
    await asyncio.gather(*calls, return_exceptions=True)
    await stack.close()
    assert server.calls == 1


class Full:
    """A journal on a disk that refuses its second reply and all later ones."""

    def __init__(self) -> None:
        self.kept = 0

    def get(self, key: bytes) -> Reply | None:
        return None

    async def put(self, key: bytes, request: Request, reply: Reply) -> None:
        if self.kept:
            raise DiskFull("no space left", hint="free some")
        self.kept += 1


async def test_nothing_is_asked_for_that_could_not_be_kept(server: Server):
    config = load_config({"lm": server.spec, "cache": False, "concurrency": 1})
    stack = Models.build(config, Supplies(log=Full()))
    calls = (stack.lm(ask(str(n))) for n in range(6))
    results = await asyncio.gather(*calls, return_exceptions=True)
    with pytest.raises(DiskFull, match="no space left") as caught:
        await stack.lm(ask("later"))
    await stack.close()
    assert [type(r) for r in results] == [Reply] + [DiskFull] * 5
    assert caught.value.hint == "free some"
    # One reply was kept, one refused; at most one more had begun meanwhile.
    assert server.calls <= 3


async def test_a_journal_without_a_stop_signal_stands_alone(tally: Counts):
    async def model(request: Request) -> Reply:
        return Reply("ok")

    lm = Journaled(model, Full(), tally)
    assert (await lm(ask("a"))).text == "ok"
    with pytest.raises(DiskFull):
        await lm(ask("b"))


async def test_the_signal_sleeps_as_long_as_it_is_told_and_keeps_its_first_reason():
    stop = StopSignal()
    began = time.monotonic()
    await stop.sleep(0.05)
    assert time.monotonic() - began >= 0.04
    stop.give(Interrupted("first"))
    stop.give(RateLimited("second"))
    for wait in (stop.sleep(60), stop.sleep(60)):
        with pytest.raises(Interrupted, match="first"):
            await wait
