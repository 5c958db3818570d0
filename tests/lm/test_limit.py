"""The limit of calls in flight: who is let in, what halves it, what makes it grow."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcodebook.lm.limit import AdaptiveLimit


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def window(limit: AdaptiveLimit, seconds: float, kind: str = "executor") -> int:
    """As many answered calls as make one window; what the limit is then."""
    for _ in range(max(limit.current, 4)):
        limit.record_answer(kind, seconds)
    return limit.current


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def objected(limit: AdaptiveLimit, retry_after: float = 0.0) -> None:
    limit.record_objection(await limit.acquire(), retry_after)
    limit.release()


async def halved(maximum: int) -> AdaptiveLimit:
    limit = AdaptiveLimit(maximum, Clock())
    await objected(limit)
    assert limit.current == maximum // 2
    return limit


async def test_first_come_first_served_and_never_more_than_the_maximum():
    limit, peak, order = AdaptiveLimit(3), 0, list[int]()

    async def call(number: int) -> None:
        nonlocal peak
        await limit.acquire()
        order.append(number)
        peak = max(peak, limit.in_flight)
        await asyncio.sleep(0.001)
        limit.release()

    await asyncio.gather(*(call(n) for n in range(30)))
    assert (peak, limit.in_flight) == (3, 0)
    assert order == list(range(30))


async def test_a_wave_of_objections_halves_once_and_never_below_one():
    clock = Clock()
    limit = AdaptiveLimit(64, clock)
    wave = [await limit.acquire() for _ in range(64)]
    clock.now += 1
    for started in wave:
        limit.record_objection(started)
        limit.release()
    seen = [limit.current]
    for _ in range(7):
        clock.now += 1
        await objected(limit)
        seen.append(limit.current)
    assert seen == [32, 16, 8, 4, 2, 1, 1, 1]


async def test_it_grows_by_steps_while_latency_holds_up_to_the_maximum():
    limit = await halved(32)
    seen = [await window(limit, 0.1) for _ in range(12)]
    assert seen[:3] == [18, 20, 22]
    assert seen[-1] == 32


async def test_it_does_not_grow_once_latency_has_more_than_doubled():
    limit = await halved(32)
    grown = await window(limit, 0.1)
    assert [await window(limit, 0.3) for _ in range(5)][-1] == grown
    assert [await window(limit, 0.15) for _ in range(3)][-1] > grown


async def test_kinds_of_calls_are_compared_with_their_own_kind_only():
    limit = await halved(32)
    before = await window(limit, 0.01, "encoder")
    assert await window(limit, 2.0, "executor") > before


async def test_retry_after_holds_every_new_call_until_then_and_a_later_one_moves_it():
    limit = AdaptiveLimit(8)
    loop = asyncio.get_running_loop()
    first, second = await limit.acquire(), await limit.acquire()
    begun = loop.time()
    limit.record_objection(first, 0.05)
    waiting = [asyncio.create_task(limit.acquire()) for _ in range(2)]
    await settle()
    limit.record_objection(second, 0.12)
    await asyncio.gather(*waiting)
    assert loop.time() - begun >= 0.115
    assert limit.in_flight == 4


async def test_a_cancelled_wait_gives_its_place_away():
    limit = AdaptiveLimit(1)
    await limit.acquire()
    waiting = [asyncio.create_task(limit.acquire()) for _ in range(3)]
    await settle()
    waiting[0].cancel()
    await settle()
    limit.release()
    await asyncio.wait_for(waiting[1], 20)
    assert limit.in_flight == 1 and not waiting[2].done()
    waiting[2].cancel()
    await settle()
    limit.release()
    assert limit.in_flight == 0


async def test_a_slot_granted_in_the_moment_of_cancellation_is_passed_on():
    limit = AdaptiveLimit(1)
    await limit.acquire()
    first, second = (asyncio.create_task(limit.acquire()) for _ in range(2))
    await settle()
    limit.release()
    first.cancel()
    await asyncio.wait_for(second, 20)
    with pytest.raises(asyncio.CancelledError):
        await first
    assert limit.in_flight == 1


async def test_a_cancelled_pause_leaves_no_timer():
    limit = AdaptiveLimit(1)
    await objected(limit, 60.0)
    waiting = asyncio.create_task(limit.acquire())
    await settle()
    waiting.cancel()
    await settle()
    assert limit._timer is None


FATES = st.tuples(st.sampled_from(["fine", "objected", "cancelled"]), st.integers(0, 3))


@settings(max_examples=40)
@given(st.integers(1, 5), st.lists(FATES, max_size=40))
def test_slots_are_neither_lost_nor_doubled(maximum: int, plan: list[tuple[str, int]]):
    async def run() -> None:
        limit = AdaptiveLimit(maximum)

        async def call(fate: str, turns: int) -> None:
            started = await limit.acquire()
            assert 1 <= limit.in_flight <= maximum
            try:
                for _ in range(turns):
                    await asyncio.sleep(0)
                if fate == "objected":
                    limit.record_objection(started)
                else:
                    limit.record_answer("executor", 0.1)
            finally:
                limit.release()

        tasks = [asyncio.create_task(call(*each)) for each in plan]
        for task, (fate, turns) in zip(tasks, plan, strict=True):
            for _ in range(turns):
                await asyncio.sleep(0)
            if fate == "cancelled":
                task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert limit.in_flight == 0

    asyncio.run(run())
