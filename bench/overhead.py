"""What our side costs per model call: CPU, and wall time with 64 calls in flight.

Against the delay model of the simulated server (50 ms a reply) in its own process, through the
whole stack: roles, journal on disk, cache on disk, budget, limit, retry, endpoint. Beside it, in
the same run and in turn, the openai client with nothing around it.

    python -m bench.overhead
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.figures import Figure, shown
from promptcodebook.calls import Message, Request
from promptcodebook.config import load_config
from promptcodebook.lm.ledger import Ledger
from promptcodebook.lm.stack import Models, Supplies
from promptcodebook.store import Header, RunStore
from tests.proof.served import served

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
    models = Models.build(
        config,
        Supplies(log=store.reply_log, ledger=Ledger(log=store.attempt_log), tally=store.count),
    )

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


def _openai_client(base_url: str) -> tuple[object, str]:
    import openai

    name = f"openai {openai.__version__}"
    try:
        http = openai.DefaultAioHttpClient()
        return openai.AsyncOpenAI(base_url=base_url, api_key="none", http_client=http), (
            f"{name} with aiohttp"
        )
    except (RuntimeError, ImportError):
        return openai.AsyncOpenAI(base_url=base_url, api_key="none"), (
            f"{name} with its default client (its aiohttp transport is not installed)"
        )


async def peer(base_url: str, turn: int) -> tuple[float, float, str] | None:
    """The openai client alone; None where it is not installed."""
    try:
        client, name = _openai_client(base_url)
    except ImportError:
        return None

    async def call(n: int) -> object:
        turns = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Question {turn} {n}: why?"},
        ]
        return await client.chat.completions.create(  # type: ignore[attr-defined]
            model="delay", messages=turns, temperature=0.6, seed=n & 0x7FFFFFFF
        )

    async with client:  # type: ignore[attr-defined]
        await asyncio.gather(*(call(-1 - n) for n in range(IN_FLIGHT)))
        return *await timed(call), name


def measure() -> list[Figure]:
    full: list[tuple[float, float]] = []
    uncached: list[tuple[float, float]] = []
    theirs: list[tuple[float, float, str]] = []
    with served(f"simulated?latency={DELAY_S}") as server, tempfile.TemporaryDirectory() as folder:
        for turn in range(REPEATS):
            full.append(asyncio.run(ours(server.base_url, Path(folder), turn, True)))
            uncached.append(asyncio.run(ours(server.base_url, Path(folder), turn, False)))
            found = asyncio.run(peer(server.base_url, turn))
            theirs += [found] if found is not None else []
    cpu, wall = (statistics.median(r[i] for r in full) for i in (0, 1))
    cpu_beside, wall_beside = "openai is not installed", f"ideal {_ideal():.2f} s"
    if theirs:
        peer_cpu, peer_wall = (statistics.median(float(r[i]) for r in theirs) for i in (0, 1))
        cpu_beside = f"{theirs[0][2]}: {peer_cpu:.2f} ms, ours / theirs = {cpu / peer_cpu:.2f}"
        wall_beside += f", {theirs[0][2]}: {peer_wall:.2f} s"
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
