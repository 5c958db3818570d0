"""What `pco lm serve` adds to an engine: throughput at 32 in flight, and latency of one request.

The engine's own `generate` and the server are asked in turn, in one process and one run: SmolLM2 on
openvino-genai.

    python -m bench.local_server
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import aiohttp

from bench.figures import Figure, shown
from promptcodebook.calls import Message
from promptcodebook.errors import require_modules
from promptcodebook.models.local.engine import Engine, Job, require_model
from promptcodebook.models.local.lm import load_engine
from promptcodebook.models.local.server import LocalServer, ServerOptions

IN_FLIGHT = 32
TOKENS = 24
ROUNDS = 2
ONES = 25
GOAL_SHARE = 0.9
GOAL_ADDED_MS = 5.0

# A question and its length cap -> the tokens of the reply.
Ask = Callable[[str, int], Awaitable[int]]


def by_engine(engine: Engine) -> Ask:
    async def ask(text: str, cap: int) -> int:
        job = Job((Message("user", text),), temperature=0.7, max_tokens=cap, seed=1)
        return (await engine.generate(job)).completion_tokens

    return ask


def by_http(session: aiohttp.ClientSession, base_url: str) -> Ask:
    async def ask(text: str, cap: int) -> int:
        body = {
            "model": "",
            "messages": [{"role": "user", "content": text}],
            "temperature": 0.7,
            "max_tokens": cap,
            "seed": 1,
        }
        async with session.post(f"{base_url}/chat/completions", json=body) as response:
            return (await response.json())["usage"]["completion_tokens"]

    return ask


async def throughput(ask: Ask, turn: str) -> float:
    """Tokens a second with IN_FLIGHT questions asked at once."""
    begun = time.perf_counter()
    asked = (ask(f"Tell a story of {n} ships, {turn}.", TOKENS) for n in range(IN_FLIGHT))
    tokens = sum(await asyncio.gather(*asked))
    return tokens / (time.perf_counter() - begun)


async def latency(ask: Ask, turn: str) -> float:
    """Milliseconds of one request for one token; `turn` is new, so that no prefix is cached."""
    begun = time.perf_counter()
    await ask(f"{turn}: count.", 1)
    return 1e3 * (time.perf_counter() - begun)


async def beside_the_engine() -> list[Figure]:
    weights = require_model("smollm2")
    require_modules(("fastapi", "uvicorn", "prometheus_client"), "this bench", "local-server")
    engine = load_engine(weights)

    async def load() -> Engine:
        return engine

    shares: list[float] = []
    speeds: dict[str, list[float]] = {"engine": [], "server": []}
    waits: dict[str, list[float]] = {"engine": [], "server": []}
    async with (
        LocalServer(ServerOptions()).serving(load) as (address, loading),
        aiohttp.ClientSession() as http,
    ):
        await loading
        ways = {"engine": by_engine(engine), "server": by_http(http, address.base_url)}
        for turn in range(ROUNDS + 1):
            for name, ask in ways.items():
                speeds[name].append(await throughput(ask, f"{name} {turn}"))
        for n in range(ONES + 1):
            for name, ask in ways.items():
                waits[name].append(await latency(ask, f"{name} {n}"))
    pairs = list(zip(speeds["server"], speeds["engine"], strict=True))[1:]  # the first warms up
    shares = [server / alone for server, alone in pairs]
    middle = {name: statistics.median(taken[1:]) for name, taken in waits.items()}
    share = statistics.median(shares)
    best = f"{max(speeds['server'][1:]):.0f} against {max(speeds['engine'][1:]):.0f} tokens/s"
    added = middle["server"] - middle["engine"]
    alone = f"{middle['server']:.1f} against {middle['engine']:.1f} ms"
    return [
        Figure("share of the engine's tokens/s, 32 in flight", share, "", GOAL_SHARE, True, best),
        Figure("added to one request, p50", added, "ms", GOAL_ADDED_MS, beside=alone),
    ]


def measure() -> list[Figure]:
    return asyncio.run(beside_the_engine())


if __name__ == "__main__":
    raise SystemExit(shown(measure, __doc__ or ""))
