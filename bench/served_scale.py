"""Three `pco serve` on one Postgres: one is killed, the ref is rolled back, no feedback is lost.

50 unmodified openai clients ask 20,000 times by way of the three; the upstream is scripted and
fails one request in 20. Each answer gets feedback, sent to any server and again until it is
acknowledged. After half of the requests one server is killed (SIGKILL); after three fifths the
served ref is rolled back. A client asks another server where its connection breaks.

Then a flood: four processes offer one server 10,000 pieces of feedback a second for six seconds,
on 2,400 connections that are kept alive, whether it answers or not. Eight clients ask beside them.

Fixed before a figure was seen: every acknowledged feedback is there once, with its reward, and
nothing else is there; no status but the upstream's reaches a caller; no request is answered by the
withdrawn version more than a second after the rollback. Feedback for a request that died with the
killed server, before its record was written (0.2 s), gets a 404: these are counted. In the flood
each piece gets a 200, 429 or 503; all that got a 200 are there; half of the normal requests beside
it are answered within a second (two cores, for all processes); memory grows by at most 200 MB.

    python -m bench.served_scale    (PCO_BENCH_REQUESTS=2000 for a short one, 0 for the flood alone)
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter, deque
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import openai
from aiohttp import web

from bench.figures import Figure, shown
from bench.proxy import REPLY, cpu_s, free_port, policy, quantile, running
from promptcodebook.deploy.registry.registry import open_registry
from promptcodebook.errors import StoreError, require_modules
from tests.build.cluster import MISSING, Cluster, cluster

REQUESTS = int(os.environ.get("PCO_BENCH_REQUESTS", "20000"))
CLIENTS, FAILS_EACH, REF = 50, 20, "bench@live"
FLOODERS, EACH_S, CONNECTIONS, FLOOD_S = 4, 2_500, 600, 6.0
DRAIN_S = 240.0  # how long the last pieces may wait for their answers


def fails(number: int) -> bool:
    return number % FAILS_EACH == 7


async def upstream(port: int) -> None:
    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        number = int(body["messages"][-1]["content"].split()[1])
        if fails(number):
            return web.json_response({"error": {"message": "scripted", "type": "x"}}, status=500)
        return web.json_response(REPLY)

    application = web.Application()
    application.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    await asyncio.Event().wait()


@dataclass
class Seen:
    """What the clients saw."""

    acknowledged: dict[str, float] = field(default_factory=dict)
    unexpected: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    feedback_s: list[float] = field(default_factory=list)
    done: int = 0
    killed: float = 0.0


async def ask(number: int, urls: list[str], clients: list[Any], seen: Seen) -> str:
    """The id of an answered request; another server is asked where a connection breaks."""
    said: Any = [{"role": "user", "content": f"Ticket {number} : my refund is late."}]
    for turn in range(100):
        client = clients[(number + turn) % len(clients)]
        try:
            raw = await client.chat.completions.with_raw_response.create(
                model="pco/bench", messages=said
            )
        except openai.APIStatusError as error:
            if not (fails(number) and error.status_code in (500, 502, 503)):
                seen.unexpected[f"status {error.status_code}"] += 1
            return error.response.headers["x-request-id"]
        except openai.APIConnectionError:
            seen.again["request"] += 1
            await asyncio.sleep(0.05)
            continue
        if fails(number):
            seen.unexpected["an answer where the upstream failed"] += 1
        return raw.headers["x-request-id"]
    seen.unexpected["no server"] += 1
    return ""


async def say(asked: str, number: int, urls: list[str], http: Any, seen: Seen) -> None:
    body = {"request_id": asked, "reward": number % 11 / 10, "key": "only"}
    begun = time.perf_counter()
    for turn in range(1000):
        with suppress(aiohttp.ClientError):
            url = urls[(number + 1 + turn) % len(urls)]
            async with http.post(f"{url}/v1/feedback", json=body) as answer:
                if answer.status == 200:
                    seen.acknowledged[asked] = body["reward"]
                    seen.feedback_s.append(time.perf_counter() - begun)
                    return
                if answer.status == 404:
                    seen.again["feedback: its record died with the server"] += 1
                    return
                seen.again[f"feedback: status {answer.status}"] += 1
        await asyncio.sleep(0.05)
    seen.unexpected["feedback never acknowledged"] += 1


async def measured(postgres: Cluster, folder: Path) -> list[Figure]:
    registry_path = folder / "registry.sqlite"
    os.environ |= {
        "PCO_REGISTRY": str(registry_path),
        "PCO_FEEDBACK": postgres.url,
        "PCO_REQUESTS": str(folder / "requests.sqlite"),
    }
    first = policy().text()
    with open_registry() as registry:
        versions = [
            registry.freeze(first.replace("briefly", word), "bench").version
            for word in ("briefly", "at length")
        ]
        for version in versions:
            registry.promote(version, REF, override="a measurement")
    port, ports = free_port(), [free_port() for _ in range(3)]
    urls = [f"http://127.0.0.1:{each}" for each in ports]
    async with AsyncExitStack() as up:
        base = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "bench.served_scale", "--upstream", str(port)]
        await up.enter_async_context(running(command, base))
        serve = [sys.executable, "-m", "promptcodebook.cli", "serve", REF, "--lm", f"{base}/v1#m"]
        pids: list[int] = []
        for url, each in zip(urls, ports, strict=True):
            own = [*serve, "--port", str(each), "--name", "bench", "--feedback", "--records", "0"]
            pids.append(await up.enter_async_context(running(own, f"{url}/readyz")))
        http = await up.enter_async_context(aiohttp.ClientSession())
        clients = [
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) for url in urls
        ]
        seen, numbers, rolled = Seen(), iter(range(REQUESTS)), 0.0
        half, later = REQUESTS // 2, REQUESTS * 3 // 5

        async def client() -> None:
            nonlocal rolled
            for number in numbers:
                if number == half:
                    os.kill(pids[0], signal.SIGKILL)
                    seen.killed = time.time()
                if number == later:
                    with open_registry() as registry:
                        await asyncio.to_thread(registry.rollback, REF)
                    rolled = time.time()
                if asked := await ask(number, urls, clients, seen):
                    await say(asked, number, urls, http, seen)
                seen.done += 1

        begun, before = time.perf_counter(), [cpu_s(pid) for pid in pids[1:]]
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        taken = time.perf_counter() - begun
        cpu = sum(cpu_s(pid) for pid in pids[1:]) - sum(before)
        await asyncio.sleep(1.0)
    rows = postgres.sql("SELECT id, count(*), max(reward) FROM feedback GROUP BY id")
    there = {row[0]: (int(row[1]), float(row[2])) for row in (r.split("|") for r in rows.split())}
    lost = sum(
        there.get(each, (0, -1.0)) != (1, reward) for each, reward in seen.acknowledged.items()
    )
    late = postgres.sql(
        f"SELECT count(*) FROM served WHERE version = '{versions[1]}' AND time > {rolled + 1.0}"
    )
    kept = postgres.sql("SELECT count(*) FROM served")
    size = postgres.sql(
        "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c "
        "WHERE relname IN ('served', 'feedback')"
    )
    unexpected = sum(seen.unexpected.values())
    return [
        Figure("requests", seen.done, goal=REQUESTS, at_least=True, beside=f"{taken:.0f} s"),
        Figure("feedback acknowledged", len(seen.acknowledged), beside=str(dict(seen.again))),
        Figure("acknowledged, and not there exactly once", lost, goal=0),
        Figure("there, and not acknowledged", len(there.keys() - seen.acknowledged.keys()), goal=0),
        Figure("what callers saw beyond the upstream's errors", unexpected, goal=0,
               beside=str(dict(seen.unexpected))),
        Figure("answered by the withdrawn version, over 1 s later", float(late), goal=0),
        Figure("requests and feedback a second, all servers", 2 * seen.done / taken, "/s"),
        Figure("processor time of a server, request and feedback", 1.2e3 * cpu / seen.done, "ms",
               beside="of the two that lived, who served five sixths"),
        Figure("feedback acknowledged at p50", 1e3 * quantile(seen.feedback_s, 0.5), "ms"),
        Figure("feedback acknowledged at p99", 1e3 * quantile(seen.feedback_s, 0.99), "ms"),
        Figure("Postgres, of a request with feedback", float(size) / float(kept), "bytes"),
    ]  # fmt: skip


class Pieces(asyncio.Protocol):
    """One connection of the flood. Answers come in the order of what was sent."""

    def __init__(self, became: dict[str, int]) -> None:
        self.sent, self._rest, self._became = deque[str](), b"", became
        self.open = False

    def connection_made(self, transport: Any) -> None:
        self.transport, self.open = transport, True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        found = list(re.finditer(rb"HTTP/1\.1 (\d{3})", data))
        for each in found:
            self._became[self.sent.popleft()] = int(each[1])
        self._rest = data[max(found[-1].end() if found else 0, len(data) - 11) :]

    def say(self, key: str, asked: str) -> None:
        self.sent.append(key)
        body = f'{{"request_id": "{asked}", "reward": 0.5, "key": "{key}"}}'
        head = f"POST /v1/feedback HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        self.transport.write(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())


async def offer(port: int, number: int, asked: list[str]) -> dict[str, int]:
    """What became of each piece, by key; 0 = no answer."""
    became, loop = dict[str, int](), asyncio.get_running_loop()
    lines = list[Pieces]()
    for _ in range(CONNECTIONS):
        _, line = await loop.create_connection(lambda: Pieces(became), "127.0.0.1", port)
        lines.append(line)
    begun, sent = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < FLOOD_S:
        while sent < EACH_S * passed and (line := lines[sent % CONNECTIONS]).open:
            became[key := f"{number}-{sent}"] = 0
            line.say(key, asked[sent % len(asked)])
            sent += 1
        await asyncio.sleep(0.01)
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            for line in lines:
                while line.sent and line.open:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
    return became


def kilobytes(pid: int, name: str) -> int:
    [value] = re.findall(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(value)


async def flooded(folder: Path) -> list[Figure]:
    os.environ |= {"PCO_FEEDBACK": "", "PCO_REQUESTS": str(folder / "requests.sqlite")}
    policy().save(folder / "bench.pco.json")
    port, own = free_port(), free_port()
    base, url = (f"http://127.0.0.1:{each}" for each in (port, own))
    async with AsyncExitStack() as up:
        command = [sys.executable, "-m", "bench.served_scale", "--upstream", str(port)]
        await up.enter_async_context(running(command, base))
        command = [sys.executable, "-m", "promptcodebook.cli", "serve"]
        command += [str(folder / "bench.pco.json"), "--lm", f"{base}/v1#m", "--port", str(own)]
        pid = await up.enter_async_context(
            running([*command, "--feedback", "--records", "0"], f"{url}/readyz")
        )
        http = await up.enter_async_context(aiohttp.ClientSession())
        statuses, over = Counter[int](), asyncio.Event()

        async def ask_once() -> tuple[str, float]:
            said = [{"role": "user", "content": "Ticket 1 : my refund is late."}]
            begun, body = time.perf_counter(), {"model": "pco/bench", "messages": said}
            async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
                await answer.read()
                statuses[answer.status] += 1
                return answer.headers["x-request-id"], time.perf_counter() - begun

        async def beside() -> list[float]:
            taken = list[float]()
            while not over.is_set():
                taken.append((await ask_once())[1])
                await asyncio.sleep(0.1)
            return taken

        asked = [(await ask_once())[0] for _ in range(100)]
        (folder / "asked.json").write_text(json.dumps(asked))
        await asyncio.sleep(1.0)
        before, begun = kilobytes(pid, "VmRSS"), time.perf_counter()
        normal = [asyncio.ensure_future(beside()) for _ in range(8)]
        command = [sys.executable, "-m", "bench.served_scale", "--flood", str(folder), str(own)]
        floods = [
            await asyncio.create_subprocess_exec(*command, str(number))
            for number in range(FLOODERS)
        ]
        for each in floods:
            await each.wait()
        taken, lasted = list[float](), time.perf_counter() - begun
        over.set()
        for each in normal:
            taken += await each
        grown = (kilobytes(pid, "VmHWM") - before) / 1024
        await ask_once()
    became = dict[str, int]()
    for number in range(FLOODERS):
        became |= json.loads((folder / f"became-{number}.json").read_text())
    with closing(sqlite3.connect(folder / "requests.sqlite")) as db:
        there = {key for [key] in db.execute("SELECT key FROM feedback")}
    counts = Counter(became.values())
    lost = sum(status == 200 and key not in there for key, status in became.items())
    other = sum(n for status, n in counts.items() if status not in (200, 429, 503))
    said, failed = f"by status {dict(counts)}, 0 = none", sum(statuses.values()) - statuses[200]
    return [
        Figure("flood: pieces offered", len(became) / FLOOD_S, "/s", beside=said),
        Figure("flood: acknowledged, until all are answered", counts[200] / lasted, "/s",
               beside=f"{lasted:.0f} s"),
        Figure("flood: acknowledged, and not there", lost, goal=0),
        Figure("flood: answered by another status than 200, 429, 503", other, goal=0),
        Figure("flood: normal requests beside it, p50", quantile(taken, 0.5), "s", goal=1.0,
               beside=f"p99 {quantile(taken, 0.99):.2f} s of {len(taken)}"),
        Figure("flood: normal requests that failed", failed, goal=0),
        Figure("flood: memory grown by", grown, "MiB", goal=200),
    ]  # fmt: skip


def measure() -> list[Figure]:
    require_modules(("prometheus_client", "psycopg"), "a log in Postgres", "postgres")
    if MISSING:
        raise StoreError(MISSING, hint="apt-get install postgresql")
    with tempfile.TemporaryDirectory() as name:
        figures = asyncio.run(flooded(Path(name)))
    if not REQUESTS:
        return figures
    with cluster() as postgres, tempfile.TemporaryDirectory() as name:
        postgres.sql("ALTER ROLE pco SET search_path TO promptcodebook")
        return [*asyncio.run(measured(postgres, Path(name))), *figures]


if __name__ == "__main__":
    if "--upstream" in sys.argv:
        asyncio.run(upstream(int(sys.argv[-1])))
    if "--flood" in sys.argv:
        place, port, number = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
        made = asyncio.run(offer(port, number, json.loads((place / "asked.json").read_text())))
        (place / f"became-{number}.json").write_text(json.dumps(made))
        sys.exit()
    sys.exit(shown(measure, __doc__ or ""))
