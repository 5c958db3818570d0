"""What durability costs: journal writes of 2 kB replies, batched and one after the other.

python -m bench.writes
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from pathlib import Path

from bench.figures import Figure, shown
from promptcodebook.base.randomness import keyed_random
from promptcodebook.calls import Message, Reply, Request, Usage
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore

ROWS = 20_000
IN_FLIGHT = 64
GOAL_RATE = 17_000.0
GOAL_CPU_US = 150.0
REQUEST = Request("executor", (Message("user", "x"),))


def replies() -> list[Reply]:
    words = [f"word{n}" for n in range(5_000)]
    usage = Usage(1, 800, 300, 0, 0.001, 0.2)
    return [
        Reply(" ".join(keyed_random("reply", n).choices(words, k=230)), usage=usage)
        for n in range(200)
    ]


async def at_once(store: RunStore, texts: list[Reply]) -> float:
    """Rows a second when all are handed over before the first is awaited."""
    log = store.reply_log
    begun = time.perf_counter()
    await asyncio.gather(
        *(log.put(_key("a", n), REQUEST, texts[n % len(texts)]) for n in range(ROWS))
    )
    return ROWS / (time.perf_counter() - begun)


async def awaited(store: RunStore, texts: list[Reply]) -> float:
    """CPU µs of one awaited put, all threads, with IN_FLIGHT chains that each wait for theirs."""
    log = store.reply_log
    numbers = iter(range(ROWS))

    async def chain() -> None:
        for n in numbers:
            await log.put(_key("b", n), REQUEST, texts[n % len(texts)])

    begun = time.process_time()
    await asyncio.gather(*(chain() for _ in range(IN_FLIGHT)))
    return 1e6 * (time.process_time() - begun) / ROWS


def _key(series: str, n: int) -> bytes:
    return hashlib.sha256(f"{series}{n}".encode()).digest()


def measure() -> list[Figure]:
    texts = replies()
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore.create(Path(folder), Header("run", "2026-01-01T00:00:00+00:00", "0"))
        rate = asyncio.run(at_once(store, texts))
        cpu = asyncio.run(awaited(store, texts))
        store.close()
    return [
        Figure("journal rows a second, batched", rate, "/s", GOAL_RATE, at_least=True),
        Figure("CPU of one awaited put", cpu, "µs", GOAL_CPU_US),
    ]


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
