"""Feedback that was acknowledged outlives a kill of the server, in the middle of a group commit."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from promptcodebook.deploy.online.served_log import Feedback, ServedLog
from promptcodebook.deploy.registry.registry import Registry
from tests.build.clock import until
from tests.build.online import judging, registry_in, served, serving, try_canary
from tests.build.proxied import CHAT
from tests.build.registry import PRODUCTION

pytestmark = pytest.mark.slow
# PCO_TEST_MOMENTS=100 for the long proof.
KILLS = int(os.environ.get("PCO_TEST_MOMENTS", "5"))
REQUESTS = 64


async def serve(path: Path) -> None:
    """A server with feedback alone, or beside the file `registry` one with a judge; it says its
    address."""
    registry = path.with_name("registry.sqlite")
    made = serving(path) if path.suffix else judging(path.parent, Registry(registry))
    async with made as up:
        sys.stdout.write(f"{up.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


async def started(path: Path) -> tuple[asyncio.subprocess.Process, str]:
    command = [sys.executable, "-m", "tests.deploy.online.test_kills", str(path)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, (await process.stdout.readline()).decode().strip()


async def test_no_acknowledged_feedback_is_lost_to_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "served.sqlite"
    log = ServedLog(path)
    # Of now: a server deletes what is old.
    asked = [served(n, time.time(), "My refund is late.") for n in range(REQUESTS)]
    for each in asked:
        log.put(each)
    await log.give(Feedback(asked[0].id, 0.5, key="first"), None)
    log.close()
    acknowledged, sent = dict[str, float](), 0

    async def kill_at(moment: float) -> None:
        nonlocal sent
        process, url = await started(path)
        under_way = asyncio.Event()

        async def caller(number: int, http: aiohttp.ClientSession) -> None:
            nonlocal sent
            while True:
                sent += 1
                key, reward = f"k{sent}", sent % 7 / 10
                body = {"request_id": asked[number].id, "reward": reward, "key": key}
                try:
                    async with http.post(f"{url}/v1/feedback", json=body) as answer:
                        assert answer.status == 200, await answer.text()
                        acknowledged[key] = reward
                        under_way.set()
                except aiohttp.ClientError:
                    return

        async with aiohttp.ClientSession() as http:
            calling = [asyncio.ensure_future(caller(n, http)) for n in range(REQUESTS)]
            try:
                async with asyncio.timeout(30):
                    await under_way.wait()
                await asyncio.sleep(moment)
            finally:
                os.kill(process.pid, signal.SIGKILL)
            await asyncio.gather(*calling)
        await process.wait()

    for kill in range(KILLS):
        await kill_at(0.013 * (kill % 23))
    log = ServedLog(path)
    rows = log._rows("SELECT key, count(*), max(reward) FROM feedback GROUP BY key")
    log.close()
    there: dict[str, Any] = {key: (count, reward) for key, count, reward in rows}
    sys.stdout.write(f"{KILLS} kills, {sent} sent, {len(acknowledged)} acknowledged\n")
    assert len(acknowledged) > KILLS
    assert [k for k, reward in acknowledged.items() if there.get(k) != (1, reward)] == []


async def test_a_canary_ends_once_though_its_server_is_killed(tmp_path: Path) -> None:
    registry, *versions = registry_in(tmp_path)
    acknowledged, before = set[tuple[str, str]](), 0
    process, url = await started(tmp_path / "registry")

    async def user(http: aiohttp.ClientSession, tried: str, good: bool, nth: int) -> None:
        """Asks once, and says of the canary's answers that they are good, or the others'."""
        with suppress(aiohttp.ClientError):
            sent: Any = {"json": {"messages": CHAT}, "headers": {"X-Split": str(nth)}}
            async with http.post(f"{url}/v1/chat/completions", **sent) as answer:
                asked, version = (answer.headers[f"x-{x}"] for x in ("request-id", "pco-version"))
            body = {"request_id": asked, "reward": float((version == tried) == good), "key": "k"}
            async with http.post(f"{url}/v1/feedback", json=body) as answer:
                assert answer.status == 200, await answer.text()
                acknowledged.add((asked, "k"))

    async with aiohttp.ClientSession() as http:

        async def users(count: int) -> None:
            await asyncio.gather(*(user(http, tried, good, nth) for nth in range(count)))

        async def tries() -> bool:
            async with http.get(f"{url}/readyz") as answer:
                body = await answer.json()
            return body.get("canary") == tried and "no feedback" in body["canary_state"]

        try:
            for kill in range(KILLS):
                good, today = kill % 3 > 0, registry.resolve(PRODUCTION)
                [tried] = {*versions} - {today}
                try_canary(registry, tried, "header:X-Split")
                entries = len(registry.history())
                await until(tries)
                under_way = asyncio.ensure_future(users(60))
                await asyncio.sleep(0.07 * (kill * 7 % 30))
                os.kill(process.pid, signal.SIGKILL)
                await asyncio.gather(under_way, process.wait())
                before += registry.canary(PRODUCTION) is None
                process, url = await started(tmp_path / "registry")
                async with asyncio.timeout(120):
                    while registry.canary(PRODUCTION) is not None:
                        await users(10)
                await users(10)
                assert registry.verify().passes and len(registry.history()) == entries + 1
                assert registry.resolve(PRODUCTION) == (tried if good else today)
        finally:
            process.kill()
            await process.wait()
    with closing(sqlite3.connect(tmp_path / "requests.sqlite")) as db:
        rows = db.execute("SELECT id, key FROM feedback").fetchall()
    assert acknowledged <= {*rows} and len(rows) == len({*rows})
    sys.stdout.write(f"{KILLS} kills, {before} after the end, {len(acknowledged)} acknowledged\n")


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
