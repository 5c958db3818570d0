"""What `pco serve` adds to a call in one-call mode, and how many calls it takes.

Upstream, proxy and clients are processes of their own. 50 clients ask an upstream that takes
500 ms, each with a pause of its own, directly and by way of the proxy in turn; then one that
answers at once, as fast as they can. PCO_BENCH_SECONDS is how long each measurement takes.

    python -m bench.proxy
"""

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
from aiohttp import web

from bench.figures import Figure, shown
from promptcodebook.config import load_config
from promptcodebook.errors import require_modules
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.method.templates import load_templates
from promptcodebook.policy.file import PolicyFile
from promptcodebook.routing.ranking import BUCKETS
from promptcodebook.types import Codebook, Instinct, Parameters, Ranking
from tests.build.server import free_port

CLIENTS = 50
SECONDS = float(os.environ.get("PCO_BENCH_SECONDS", "10"))
DELAY_S = 0.5
GOALS = {"p50": 2.0, "p99": 10.0, "rate": 400.0}
SIZE, SELECT = 16, 4
REPLY = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8},
}


def policy() -> PolicyFile:
    """K = 16, S = 4, routed by a ranking of every bucket and put together verbatim."""
    draw = random.Random(0)
    rows = tuple(tuple(draw.randrange(-9, 10) for _ in range(BUCKETS)) for _ in range(SIZE + 1))
    bias = tuple(draw.random() for _ in range(SIZE + 1))
    ranking = Ranking((1.0,) * BUCKETS, 0.01, rows, bias, more=-0.01, kind="distilled")
    texts = [f"Instinct {k}: answer in the order of the questions, briefly." for k in range(SIZE)]
    book = Codebook(tuple(Instinct(text) for text in texts))
    zeros = (0.0,) * SIZE
    statistics_ = RoutingStatistics(zeros, zeros, (0,) * SIZE, ranking=ranking)
    settings = load_config({"size": SIZE, "select": SELECT, "compose": "verbatim"})
    state = State(1, Parameters("Route.", "Compose.", book, ""), statistics_)
    return PolicyFile.of(state, settings, load_templates("default"), "", ())


async def upstream(port: int) -> None:
    """Answers /slow/v1 after DELAY_S and /v1 at once."""
    body = json.dumps(REPLY).encode()

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        if request.path.startswith("/slow"):
            await asyncio.sleep(DELAY_S)
        return web.Response(body=body, content_type="application/json")

    application = web.Application()
    application.router.add_post("/v1/chat/completions", answer)
    application.router.add_post("/slow/v1/chat/completions", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    await asyncio.Event().wait()


@asynccontextmanager
async def running(command: Sequence[str], url: str) -> AsyncGenerator[int]:
    """A server's process id while the block runs, from when it answers at the url."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        async with aiohttp.ClientSession() as http:
            for _ in range(600):
                try:
                    async with http.get(url):
                        break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.2)
            else:
                raise TimeoutError(f"nothing answers at {url}: {' '.join(command)}")
        yield process.pid
    finally:
        with suppress(ProcessLookupError):  # it was killed
            process.terminate()
        await process.wait()


async def asked(url: str, model: str, seconds: float, pause_s: float) -> list[float]:
    """The seconds of each call that CLIENTS made, one after the other each."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    connector = aiohttp.TCPConnector(limit=0)

    async def client(number: int, http: aiohttp.ClientSession) -> None:
        draw, turn = random.Random(number), 0
        await asyncio.sleep(draw.random() * pause_s)
        while time.perf_counter() < end:
            text = f"Ticket {number}-{turn}: my refund is late, and the form was wrong."
            sent = {"model": model, "messages": [{"role": "user", "content": text}]}
            begun = time.perf_counter()
            async with http.post(f"{url}/chat/completions", json=sent) as answer:
                await answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"{url}: status {answer.status}")
            taken.append(time.perf_counter() - begun)
            turn += 1
            if pause_s:
                await asyncio.sleep(draw.random() * pause_s * 0.1)

    async with aiohttp.ClientSession(connector=connector) as http:
        await asyncio.gather(*(client(number, http) for number in range(CLIENTS)))
    return taken


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def added(direct: str, by: str, model: str) -> tuple[float, float]:
    """Milliseconds at p50 and p99 beyond a call that goes straight to the upstream, in turns."""
    await asked(by, model, 2.0, DELAY_S)
    there: list[float] = []
    here: list[float] = []
    for _ in range(2):
        there += await asked(direct, "m", SECONDS / 2, DELAY_S)
        here += await asked(by, model, SECONDS / 2, DELAY_S)
    middle = statistics.median(here) - statistics.median(there)
    return 1e3 * middle, 1e3 * (quantile(here, 0.99) - quantile(there, 0.99))


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far; NaN where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def rate(url: str, model: str, pid: int) -> tuple[float, float]:
    """Calls a second, and processor milliseconds of a call in the process asked."""
    await asked(url, model, 1.0, 0.0)
    begun, before = time.perf_counter(), cpu_s(pid)
    calls = len(await asked(url, model, SECONDS / 2, 0.0))
    return calls / (time.perf_counter() - begun), 1e3 * (cpu_s(pid) - before) / calls


async def ours(folder: Path, base: str) -> tuple[float, ...]:
    policy().save(folder / "bench.pco.json")
    figures: list[float] = []
    for path in ("/slow/v1", "/v1"):
        port = free_port()
        command = [sys.executable, "-m", "promptcodebook.cli", "serve"]
        command += [str(folder / "bench.pco.json"), "--lm", f"{base}{path}#m", "--port", str(port)]
        url = f"http://127.0.0.1:{port}"
        async with running(command, f"{url}/readyz") as pid:
            if path == "/v1":
                figures += await rate(f"{url}/v1", "pco/bench", pid)
            else:
                figures += await added(f"{base}{path}", f"{url}/v1", "pco/bench")
    return tuple(figures)


async def measured() -> list[Figure]:
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "bench.proxy", "--upstream", str(port)]
    with tempfile.TemporaryDirectory() as name:
        os.environ["PCO_REQUESTS"] = str(Path(name) / "requests.sqlite")
        async with running(command, base) as pid:
            straight, alone = await rate(f"{base}/v1", "m", pid)
            middle, high, most, cpu = await ours(Path(name), base)
    direct, upstream_cpu = f"without a proxy {straight:.0f}", f"the upstream itself {alone:.2f}"
    return [
        Figure("added at p50, upstream 500 ms", middle, "ms", GOALS["p50"]),
        Figure("added at p99, upstream 500 ms", high, "ms", GOALS["p99"]),
        Figure("upstream at once", most, "/s", GOALS["rate"], at_least=True, beside=direct),
        Figure("processor time of the proxy a call", cpu, "ms", beside=upstream_cpu),
    ]


def measure() -> list[Figure]:
    require_modules(("prometheus_client",), "serving a policy", "serve")
    return asyncio.run(measured())


if __name__ == "__main__":
    if "--upstream" in sys.argv:
        asyncio.run(upstream(int(sys.argv[-1])))
    sys.exit(shown(measure, __doc__ or ""))
