"""Agents through the training endpoint, beside the same client that asks its model directly.

CPU of this process a call: openai's client with aiohttp, 20 calls in each of 64 agents that run
side by side; the model is a simulated server in a process of its own, with 50 ms a call. Through
the endpoint the process also has our server and the whole stack to that model. Then 64 agents of
three calls of 200 ms each: the wall time over these 600 ms. They share one process with us, and so
one core: openai's client takes 1.4 ms of it a call, 0.27 s for these 192. So the same is measured
with calls made by hand, by aiohttp.

Fixed before the first figure: at most 1.0 ms of CPU more a call, at most 1.1 of the critical path.

    python -m bench.agents
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp
from openai.types.chat import ChatCompletionMessageParam

from bench.figures import Figure, shown
from bench.overhead import openai_client
from promptcodebook.calls import LM
from promptcodebook.config import load_config
from promptcodebook.deploy.agents import Agent
from promptcodebook.lm.budget import Ledger
from promptcodebook.lm.stack import Models, StackResources
from promptcodebook.method.executor import BoundChat
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.types import Example, Prompt
from tests.build.proof_server import served

AGENTS, CALLS, TURNS, REPEATS = 64, 20, 3, 3
SYSTEM = "You work for a shop. Answer in one word."
Act = Callable[[str, str, int], Awaitable[None]]  # base URL, key, the agent's number


def asked(agent: int, n: int) -> list[ChatCompletionMessageParam]:
    said = f"Question {agent} {n}: why?"
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": said}]


@asynccontextmanager
async def by_openai(calls: int) -> AsyncGenerator[Act, None]:
    async with openai_client("http://unused") as own:

        async def act(url: str, key: str, agent: int) -> None:
            client = own.with_options(base_url=url, api_key=key)
            for n in range(calls):
                await client.chat.completions.create(model="delay", messages=asked(agent, n))

        yield act


@asynccontextmanager
async def by_hand(calls: int) -> AsyncGenerator[Act, None]:
    """A client that builds no objects: what is left is ours and the transport's."""
    async with aiohttp.ClientSession() as session:

        async def act(url: str, key: str, agent: int) -> None:
            for n in range(calls):
                body = {"model": "delay", "messages": asked(agent, n)}
                head = {"Authorization": f"Bearer {key}"}
                async with session.post(f"{url}/chat/completions", json=body, headers=head) as made:
                    assert (await made.json())["choices"]

        yield act


async def timed(work: Callable[[int], Awaitable[object]]) -> tuple[float, float]:
    """Seconds of CPU, and of wall, of all agents side by side."""
    await work(-1)  # imports, connections
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(work(n) for n in range(AGENTS)))
    return time.process_time() - cpu, time.perf_counter() - wall


async def directly(url: str, client: AbstractAsyncContextManager[Act]) -> tuple[float, float]:
    async with client as act:
        return await timed(lambda n: act(url, "none", n))


async def through(lm: LM, client: AbstractAsyncContextManager[Act]) -> tuple[float, float]:
    async with client as act:

        async def run(url: str, key: str, example: Example) -> str:
            await act(url, key, int(example.id))
            return "done"

        agent, prompt = Agent(function=run, present=SYSTEM, workers=AGENTS), Prompt("Say why.")

        async def work(n: int) -> object:
            chat = BoundChat(lm, lambda purpose: 0, prompt=prompt)
            return await agent(prompt, Example(str(n), "why?", None), chat)

        return await timed(work)


async def stacked(
    url: str, folder: Path, client: AbstractAsyncContextManager[Act]
) -> tuple[float, float]:
    config = load_config({"lm": f"{url}#delay", "cache": False, "concurrency": AGENTS})
    store = RunStore.create(folder, Header("", "2026-01-01T00:00:00+00:00", "0"))
    supplies = StackResources(
        log=store.reply_log, ledger=Ledger(log=store.attempt_log), tally=store.count
    )
    models = Models.build(config, supplies)
    try:
        return await through(models.lm, client)
    finally:
        await models.close()
        store.close()


def measure() -> list[Figure]:
    ours, theirs = list[float](), list[float]()
    paths = {by_openai: (list[float](), list[float]()), by_hand: (list[float](), list[float]())}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with served("simulated?latency=0.05") as server:
            for _ in range(REPEATS):
                ours.append(asyncio.run(stacked(server.base_url, folder, by_openai(CALLS)))[0])
                theirs.append(asyncio.run(directly(server.base_url, by_openai(CALLS)))[0])
        with served("simulated?latency=0.2") as server:
            for _ in range(REPEATS):
                for client, (path, alone) in paths.items():
                    made = asyncio.run(stacked(server.base_url, folder, client(TURNS)))
                    path.append(made[1] / (TURNS * 0.2))
                    made = asyncio.run(directly(server.base_url, client(TURNS)))
                    alone.append(made[1] / (TURNS * 0.2))
    calls = AGENTS * CALLS / 1000
    more = (statistics.median(ours) - statistics.median(theirs)) / calls
    ways = (statistics.median(each) / calls for each in (ours, theirs))
    beside = "through it {:.2f}, directly {:.2f}".format(*ways)
    figures = [Figure("CPU a call, more than directly", more, "ms", 1.0, beside=beside)]
    for client, (path, alone) in paths.items():
        title = f"64 agents of 3 calls {client.__name__.replace('_', ' ')}, over the critical path"
        direct = f"directly {statistics.median(alone):.2f}"
        figures.append(Figure(title, statistics.median(path), "", 1.1, beside=direct))
    return figures


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
