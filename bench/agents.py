"""Agents through the training endpoint, beside the same client that asks its model directly.

CPU of this process a call: openai's client with aiohttp, 20 calls in each of 64 agents that run
side by side; the model is a simulated server in a process of its own, with 50 ms a call. Through
the endpoint the process also has our server and the whole stack to that model. Then 64 agents of
three calls of 200 ms each: the wall time over these 600 ms.

Fixed before the first figure: at most 1.0 ms of CPU more a call, at most 1.1 of the critical path.

    python -m bench.agents
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import openai

from bench.figures import Figure, shown
from bench.overhead import openai_client
from promptcodebook.agents import Agent
from promptcodebook.calls import LM
from promptcodebook.config import load_config
from promptcodebook.lm.budget import Ledger
from promptcodebook.lm.stack import Models, Supplies
from promptcodebook.method.executor import BoundChat
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.types import Example, Prompt
from tests.proof.served import served

AGENTS, CALLS, TURNS, REPEATS = 64, 20, 3, 3
SYSTEM = "You work for a shop. Answer in one word."
Act = Callable[[openai.AsyncOpenAI, int], Awaitable[None]]


def turns_of(calls: int) -> Act:
    async def act(client: openai.AsyncOpenAI, agent: int) -> None:
        for n in range(calls):
            await client.chat.completions.create(
                model="delay",
                messages=[
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"Question {agent} {n}: why?"},
                ],
            )

    return act


async def timed(work: Callable[[int], Awaitable[object]]) -> tuple[float, float]:
    """Seconds of CPU, and of wall, of all agents side by side."""
    await work(-1)  # imports, connections
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(work(n) for n in range(AGENTS)))
    return time.process_time() - cpu, time.perf_counter() - wall


async def directly(url: str, act: Act) -> tuple[float, float]:
    async with openai_client(url) as client:
        return await timed(lambda n: act(client, n))


async def through(lm: LM, act: Act) -> tuple[float, float]:
    async with openai_client("http://unused") as own:

        async def run(url: str, key: str, example: Example) -> str:
            await act(own.with_options(base_url=url, api_key=key), int(example.id))
            return "done"

        agent, prompt = Agent(function=run, present=SYSTEM, workers=AGENTS), Prompt("Say why.")

        async def work(n: int) -> object:
            chat = BoundChat(lm, lambda purpose: 0, prompt=prompt)
            return await agent(prompt, Example(str(n), "why?", None), chat)

        return await timed(work)


async def stacked(url: str, folder: Path, act: Act) -> tuple[float, float]:
    config = load_config({"lm": f"{url}#delay", "cache": False, "concurrency": AGENTS})
    store = RunStore.create(folder, Header("", "2026-01-01T00:00:00+00:00", "0"))
    supplies = Supplies(
        log=store.reply_log, ledger=Ledger(log=store.attempt_log), tally=store.count
    )
    models = Models.build(config, supplies)
    try:
        return await through(models.lm, act)
    finally:
        await models.close()
        store.close()


def measure() -> list[Figure]:
    ours, theirs, paths, alone = list[float](), list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        with served("simulated?latency=0.05") as server:
            for _ in range(REPEATS):
                ours.append(asyncio.run(stacked(server.base_url, Path(folder), turns_of(CALLS)))[0])
                theirs.append(asyncio.run(directly(server.base_url, turns_of(CALLS)))[0])
        with served("simulated?latency=0.2") as server:
            for _ in range(REPEATS):
                wall = asyncio.run(stacked(server.base_url, Path(folder), turns_of(TURNS)))[1]
                paths.append(wall / (TURNS * 0.2))
                wall = asyncio.run(directly(server.base_url, turns_of(TURNS)))[1]
                alone.append(wall / (TURNS * 0.2))
    calls = AGENTS * CALLS / 1000
    more = (statistics.median(ours) - statistics.median(theirs)) / calls
    ways = (statistics.median(each) / calls for each in (ours, theirs))
    beside = "through it {:.2f}, directly {:.2f}".format(*ways)
    path, direct = statistics.median(paths), f"directly {statistics.median(alone):.2f}"
    return [
        Figure("CPU a call, more than directly", more, "ms", 1.0, beside=beside),
        Figure("64 agents of 3 calls, over the critical path", path, "", 1.1, beside=direct),
    ]


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
