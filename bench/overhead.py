"""What our side costs per model call: CPU, and wall time with 64 calls in flight.

Against the delay model of the simulated server (50 ms a reply) in its own process, through the
whole stack: roles, journal on disk, cache on disk, budget, limit, retry, endpoint. Beside it, in
the same run and in turn, the openai client on its aiohttp transport with nothing around it.

    python -m bench.overhead
"""

import asyncio
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import openai

from bench.figures import Figure, shown
from promptcodebook.calls import Message, Request
from promptcodebook.config import load_config
from promptcodebook.errors import ConfigError
from promptcodebook.lm.stack import Models
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from tests.build.proof_server import served

CALLS = 1_000
IN_FLIGHT = 64
REPEATS = 5
DELAY_S = 0.05
GOAL_CPU_MS = 1.5
GOAL_WALL_S = 1.4
SYSTEM = "You follow these instructions when you answer. " * 40  # as long as a composed prompt

Call = Callable[[int], Awaitable[object]]


async def timed(call: Call) -> tuple[float, float]:
    """CPU ms a call (all threads), and wall seconds for CALLS of them."""
    numbers = iter(range(CALLS))

    async def chain() -> None:
        for n in numbers:
            await call(n)

    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(chain() for _ in range(IN_FLIGHT)))
    return 1e3 * (time.process_time() - cpu) / CALLS, time.perf_counter() - wall


async def ours(base_url: str, folder: Path, turn: int, cache: bool) -> tuple[float, float]:
    os.environ["PCO_CACHE"] = str(folder / f"{turn}-{cache}.sqlite")
    config = load_config(
        {
            "lm": f"{base_url}#delay",
            "cache": cache,
            "concurrency": IN_FLIGHT,
            "budget": {"calls": 10**6, "tokens": 10**10},
        }
    )
    store = RunStore.create(folder, Header("", "2026-01-01T00:00:00+00:00", "0"))
    models = Models.build(config, replace(store.journal.supplies(), tally=store.count))

    async def call(n: int) -> object:
        turns = (Message("system", SYSTEM), Message("user", f"Question {turn} {n}: why?"))
        return await models.lm(Request("executor", turns, sample=n))

    await asyncio.gather(*(call(-1 - n) for n in range(IN_FLIGHT)))  # connections, imports
    try:
        return await timed(call)
    finally:
        assert len(models.ledger.usage) == 1, "not every call was booked"
        await models.close()
        store.close()


def openai_client(base_url: str) -> openai.AsyncOpenAI:
    """With its aiohttp transport. ConfigError without: its default one takes many times as long,
    and would flatter us."""
    try:
        http = openai.DefaultAioHttpClient()
    except (RuntimeError, ImportError) as error:
        raise ConfigError(
            "the openai client has no aiohttp transport here, and nothing else is a fair peer",
            hint="pip install --require-hashes -r requirements/dev.lock",
        ) from error
    return openai.AsyncOpenAI(base_url=base_url, api_key="none", http_client=http)


async def peer(base_url: str, turn: int) -> tuple[float, float]:
    """The openai client alone."""
    async with openai_client(base_url) as client:

        async def call(n: int) -> object:
            return await client.chat.completions.create(
                model="delay",
                messages=[
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"Question {turn} {n}: why?"},
                ],
                temperature=0.6,
                seed=n & 0x7FFFFFFF,
            )

        await asyncio.gather(*(call(-1 - n) for n in range(IN_FLIGHT)))
        return await timed(call)


def measure() -> list[Figure]:
    full: list[tuple[float, float]] = []
    uncached: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    with served(f"simulated?latency={DELAY_S}") as server, tempfile.TemporaryDirectory() as folder:
        for turn in range(REPEATS):
            full.append(asyncio.run(ours(server.base_url, Path(folder), turn, True)))
            uncached.append(asyncio.run(ours(server.base_url, Path(folder), turn, False)))
            theirs.append(asyncio.run(peer(server.base_url, turn)))
    cpu, wall = (statistics.median(r[i] for r in full) for i in (0, 1))
    peer_cpu, peer_wall = (statistics.median(r[i] for r in theirs) for i in (0, 1))
    name = f"openai {openai.__version__} with aiohttp"
    cpu_beside = f"{name}: {peer_cpu:.2f} ms, ours / theirs = {cpu / peer_cpu:.2f}"
    wall_beside = f"ideal {_ideal():.2f} s, {name}: {peer_wall:.2f} s"
    lean = statistics.median(r[0] for r in uncached)
    return [
        Figure("CPU a call, whole stack", cpu, "ms", GOAL_CPU_MS, beside=cpu_beside),
        Figure("CPU a call, without the cache", lean, "ms"),
        Figure(
            f"{CALLS:,} calls of 50 ms, {IN_FLIGHT} in flight", wall, "s", GOAL_WALL_S,
            beside=wall_beside,
        ),
    ]  # fmt: skip


def _ideal() -> float:
    return -(-CALLS // IN_FLIGHT) * DELAY_S


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
