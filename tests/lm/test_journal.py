from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from promptcodebook.calls import Message, Reply, Request, Role, Usage, request_key
from promptcodebook.errors import DiskFull, ServerFault
from promptcodebook.incidents import no_tally
from promptcodebook.lm.cache import Journaled

PAID = Usage(1, 10, 2, 0, 0.5, 1.0)


class Model:
    """Answers once `stop` is open; `faults` are raised first, one a call."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.faults: list[Exception] = []
        self.stop = asyncio.Event()
        self.stop.set()

    async def __call__(self, request: Request) -> Reply:
        self.asked.append(request)
        number = len(self.asked)
        await self.stop.wait()
        if self.faults:
            raise self.faults.pop(0)
        return Reply(f"reply {number}", usage=PAID)


class Log:
    """A ReplyLog in memory whose writes can be held back."""

    def __init__(self) -> None:
        self.rows: dict[bytes, Reply] = {}
        self.puts: list[Usage] = []
        self.stop = asyncio.Event()
        self.stop.set()
        self.refusal: Exception | None = None

    def get(self, key: bytes) -> Reply | None:
        return self.rows.get(key)

    async def put(self, key: bytes, request: Request, reply: Reply) -> None:
        assert request_key(request) == key
        self.puts.append(reply.usage)
        await self.stop.wait()
        if self.refusal is not None:
            raise self.refusal
        self.rows.setdefault(key, reply)


class World:
    def __init__(self) -> None:
        self.model, self.log = Model(), Log()
        self.counts: Counter[str] = Counter()
        self.lm = Journaled(self.model, self.log, self._count)

    def _count(self, name: str, count: int = 1) -> None:
        self.counts[name] += count


def ask(text: str = "hi", sample: int = 0) -> Request:
    return Request("executor", (Message("user", text),), sample=sample)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def world() -> World:
    return World()


async def test_a_new_request_is_asked_and_logged(world: World) -> None:
    reply = await world.lm(ask())
    assert reply == Reply("reply 1", usage=PAID)
    assert world.log.rows == {request_key(ask()): reply}


async def test_a_logged_request_is_not_asked_again_and_says_so(world: World) -> None:
    await world.lm(ask())
    again = await world.lm(ask())
    assert again == Reply("reply 1", usage=PAID, source="journal")
    assert len(world.model.asked) == 1
    assert world.counts == {"journal_hits": 1}


async def test_another_sample_is_another_request(world: World) -> None:
    texts = {(await world.lm(ask(sample=n))).text for n in range(3)}
    assert len(texts) == 3


async def test_a_reply_is_returned_only_once_it_is_on_disk(world: World) -> None:
    world.log.stop.clear()
    call = asyncio.ensure_future(world.lm(ask()))
    await settle()
    assert world.log.puts == [PAID] and not call.done()
    world.log.stop.set()
    assert (await call).text == "reply 1"


async def test_equal_requests_in_flight_share_one_call(world: World) -> None:
    world.model.stop.clear()
    calls = [asyncio.ensure_future(world.lm(ask())) for _ in range(5)]
    await settle()
    world.model.stop.set()
    replies = await asyncio.gather(*calls)
    assert len(world.model.asked) == 1
    assert {r.text for r in replies} == {"reply 1"}
    assert [r.source for r in replies].count("live") == 1  # one of them has paid
    assert world.counts == {"shared_calls": 4}


async def test_a_follower_takes_over_when_the_leader_is_cancelled(world: World) -> None:
    world.model.stop.clear()
    leader, *followers = (asyncio.ensure_future(world.lm(ask())) for _ in range(3))
    await settle()
    leader.cancel()
    await settle()
    world.model.stop.set()
    replies = await asyncio.gather(*followers)
    assert leader.cancelled()
    assert len(world.model.asked) == 2
    assert {r.text for r in replies} == {"reply 2"}
    assert [r.source for r in replies].count("live") == 1  # one of them has paid


async def test_a_cancelled_follower_leaves_the_others_alone(world: World) -> None:
    world.model.stop.clear()
    leader, gone, other = (asyncio.ensure_future(world.lm(ask())) for _ in range(3))
    await settle()
    gone.cancel()
    await settle()
    world.model.stop.set()
    assert (await leader).text == (await other).text == "reply 1"
    assert gone.cancelled()
    assert len(world.model.asked) == 1


async def test_a_reply_that_was_paid_is_kept_when_its_leader_is_cancelled_while_storing(
    world: World,
) -> None:
    world.log.stop.clear()
    leader, follower = (asyncio.ensure_future(world.lm(ask())) for _ in range(2))
    await settle()
    leader.cancel()
    await settle()
    assert not follower.done()  # it waits for the disk as well
    world.log.stop.set()
    assert (await follower).text == "reply 1"
    assert len(world.model.asked) == 1
    # handed over twice; the store adds usage only for a row it did not hold
    assert world.log.puts == [PAID, PAID]


async def test_a_failure_reaches_all_who_share_the_call_and_is_not_kept(world: World) -> None:
    world.model.stop.clear()
    world.model.faults.append(ServerFault("broke"))
    calls = [asyncio.ensure_future(world.lm(ask())) for _ in range(3)]
    await settle()
    world.model.stop.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(r) for r in results] == [ServerFault] * 3
    assert world.log.rows == {}
    assert (await world.lm(ask())).text == "reply 2"


async def test_a_lonely_failure_leaves_no_unheard_future(world: World) -> None:
    world.model.faults.append(ServerFault("broke"))
    with pytest.raises(ServerFault):
        await world.lm(ask())


async def test_a_reply_that_cannot_be_stored_is_not_used(world: World) -> None:
    world.log.refusal = DiskFull("full")
    with pytest.raises(DiskFull):
        await world.lm(ask())


class Renamed(Log):
    """A log of a run whose model moved: its keys are those of the beginning."""

    async def put(self, key: bytes, request: Request, reply: Reply) -> None:
        self.rows[key] = reply


async def test_a_model_served_elsewhere_now_has_the_replies_of_then() -> None:
    """And those it gives now are found when it is back."""
    old, new = "http://a:1/v1#m", "http://b:2/v1#m"
    log, asked = Renamed(), list[str]()

    async def lm(request: Request) -> Reply:
        asked.append(request.model)
        return Reply(f"reply {len(asked)}", usage=Usage(calls=1))

    def journaled(then: dict[tuple[Role, str], str] | None = None) -> Journaled:
        return Journaled(lm, log, no_tally, None, then)

    def ask(text: str, model: str, role: Role = "executor") -> Request:
        return Request(role, (Message("user", text),), model=model)

    moved = journaled({("executor", new): old})
    first = await journaled()(ask("one", old))
    assert (await moved(ask("one", new))).text == first.text
    second = await moved(ask("two", new))
    assert asked == [old, new]
    assert (await journaled()(ask("two", old))).text == second.text
    await moved(ask("one", new, "judge"))
    assert asked[-1] == new and len(asked) == 3
