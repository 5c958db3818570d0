from __future__ import annotations

import asyncio

import pytest

from promptcodebook.errors import BudgetReached, EndpointDown, LMError
from promptcodebook.method.failures import gather_all


async def later(result: object, seconds: float, done: list[object]) -> object:
    await asyncio.sleep(seconds)
    done.append(result)
    if isinstance(result, Exception):
        raise result
    return result


async def test_results_come_in_order_whoever_is_first():
    done: list[object] = []
    assert await gather_all([later("slow", 0.01, done), later("fast", 0, done)]) == ["slow", "fast"]
    assert done == ["fast", "slow"]


async def test_the_first_error_comes_after_everyone_has_finished():
    done: list[object] = []
    errors = [EndpointDown("a"), EndpointDown("b")]
    with pytest.raises(LMError, match="a"):
        await gather_all(
            [later(errors[0], 0.01, done), later(errors[1], 0, done), later(1, 0.02, done)]
        )
    assert done == [errors[1], errors[0], 1]


async def test_what_ends_the_run_goes_before_what_spoils_a_chain():
    done: list[object] = []
    with pytest.raises(BudgetReached):
        await gather_all([later(EndpointDown("a"), 0, done), later(BudgetReached("b"), 0, done)])


async def test_cancelling_leaves_no_chain_running():
    done: list[object] = []
    chains = asyncio.create_task(gather_all([later(1, 5, done), later(2, 5, done)]))
    await asyncio.sleep(0)
    chains.cancel()
    with pytest.raises(asyncio.CancelledError):
        await chains
    assert done == [] and asyncio.all_tasks() == {asyncio.current_task()}
