"""Memory and start-up of a long run: 100,000 cached calls and 1,000 steps.

Goals: every process stays under 300 MB resident (the endpoint client's imports included), and
opening a run for resuming does not take longer with 100 times as many cached calls.
Each measurement is a fresh process; start-up is the median of several, imports left out.

    python -m bench.memory
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp  # noqa: F401  what the endpoint client keeps in memory belongs to the figures

from bench.figures import Figure, shown
from promptcodebook.base.randomness import keyed_random
from promptcodebook.calls import Message, Reply, Request, Usage
from promptcodebook.config import Budget
from promptcodebook.lm.budget import Attempted, BudgetGate, Ledger, PriceTable
from promptcodebook.lm.cache import Cache, Journaled
from promptcodebook.store.events import Started, Stepped
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.types import (
    Codebook,
    Critique,
    Gradients,
    Instinct,
    Parameters,
    Rollout,
    Route,
    Step,
    Trace,
)

CALLS = 100_000
FEW_CALLS = 1_000
STEPS = 1_000
BATCH = 15
IN_FLIGHT = 64
REPEATS = 7
GOAL_MB = 300.0
GOAL_RATIO = 1.25
WORDS = [f"word{n}" for n in range(5_000)]


def prose(length: int, *key: object) -> str:
    return " ".join(keyed_random(*key).choices(WORDS, k=length))


def write(folder: Path, calls: int) -> float:
    """Seconds for a run of `calls` model calls through journal and cache, and STEPS steps."""
    begun = time.perf_counter()

    async def model(request: Request) -> Reply:
        text = f"{request.sample} {prose(200, 'reply', request.sample)}"
        return Reply(text, usage=Usage(1, 800, 300, 0, 0.001, 0.2))

    async def call_all(store: RunStore) -> None:
        gate = BudgetGate(Budget(), PriceTable(), Ledger(log=store.attempt_log))
        booked = Attempted(model, gate, store.count)
        cache = Cache(booked, folder / "cache.sqlite", store.count)
        lm = Journaled(cache, store.reply_log, store.count)
        shared = Message("system", prose(300, "system"))
        numbers = iter(range(calls))

        async def worker() -> None:
            for n in numbers:
                await lm(Request("executor", (shared, Message("user", f"question {n}")), sample=n))

        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
        cache.close()

    store = RunStore.create(folder, Header("run", "2026-01-01T00:00:00+00:00", "0"))
    store.append(Started(_parameters(-1), "expert"))
    asyncio.run(call_all(store))
    for index in range(STEPS):
        store.append(Stepped(_step(index)))
    store.close()
    return time.perf_counter() - begun


def _parameters(index: int) -> Parameters:
    instincts = tuple(Instinct(prose(40, "c", index, k)) for k in range(16))
    return Parameters(
        prose(150, "e", index), prose(150, "g", index), Codebook(instincts), prose(150, "d", index)
    )


def _step(index: int) -> Step:
    texts = [prose(150, "trace", index % 50, i) for i in range(BATCH)]
    traces = tuple(
        Trace(
            Rollout(f"x{i}", Route((0, 1, 2, 3)), prompt=text, output=text, reward=0.5),
            0.5,
            Critique(0.5, text[:400]),
            0.5,
            Gradients(text[:200], text[:200], {k: text[:200] for k in range(4)}),
        )
        for i, text in enumerate(texts)
    )
    flat = (0.5,) * 16
    return Step(index, index, 0.5, traces, (), _parameters(index), flat, flat, (index,) * 16)


def resume(folder: Path, calls: int) -> float:
    """Seconds until a resumed run stands where it stood and has its first replies."""

    async def model(request: Request) -> Reply:
        return Reply("")

    begun = time.perf_counter()
    store = RunStore.open(folder / "run", write=True)
    cache = Cache(model, folder / "cache.sqlite", store.count)
    state = store.state()
    asyncio.run(cache(Request("executor", (Message("user", "new"),))))
    store.reply_log.get(b"\0" * 32)
    assert (state.step, store.usage()["executor"].calls) == (STEPS - 1, calls)
    taken = time.perf_counter() - begun
    cache.close()
    store.close()
    return taken


def child(verb: str, folder: Path, calls: int) -> dict[str, float]:
    """Runs one measurement in a fresh process: seconds and peak resident MB."""
    command = [sys.executable, "-m", "bench.memory", verb, str(folder), str(calls)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def measured(verb: str, folder: Path, calls: int) -> dict[str, float]:
    seconds = (resume if verb == "resume" else write)(folder, calls)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scale = 1 << 20 if sys.platform == "darwin" else 1 << 10  # bytes there, kilobytes elsewhere
    return {"seconds": seconds, "mb": peak / scale}


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        sizes = (FEW_CALLS, CALLS)
        written = {n: child("write", _folder(base, n), n) for n in sizes}
        resumed: dict[int, list[dict[str, float]]] = {n: [] for n in sizes}
        for _ in range(REPEATS):
            for n in sizes:  # in turn, so that a busy moment hits both
                resumed[n].append(child("resume", base / str(n), n))
    start = {n: statistics.median(r["seconds"] for r in rows) for n, rows in resumed.items()}
    peak = max(r["mb"] for rows in resumed.values() for r in rows)
    wrote = f"peak while writing {CALLS:,} calls, {STEPS:,} steps"
    ratio = f"start-up at {CALLS:,} over start-up at {FEW_CALLS:,} calls"
    return [
        Figure(wrote, written[CALLS]["mb"], "MB", GOAL_MB),
        Figure("peak of a resumed run", peak, "MB", GOAL_MB),
        Figure(ratio, start[CALLS] / start[FEW_CALLS], "x", GOAL_RATIO),
        Figure("start-up of a resumed run", 1e3 * start[CALLS], "ms"),
    ]


def _folder(base: Path, calls: int) -> Path:
    folder = base / str(calls)
    folder.mkdir()
    return folder


def main(arguments: Sequence[str]) -> int:
    """One measurement when told which, as JSON; else all of them."""
    if len(arguments) != 3:
        return shown(measure, str(__doc__))
    verb, folder, calls = arguments
    print(json.dumps(measured(verb, Path(folder), int(calls))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
