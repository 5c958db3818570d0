"""Feedback that was acknowledged outlives a kill of the server, in the middle of a group commit."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from promptcodebook.deploy.online.log import Feedback, ServedLog
from tests.build.online import served, serving

pytestmark = pytest.mark.slow
# PCO_TEST_MOMENTS=100 for the long proof.
KILLS = int(os.environ.get("PCO_TEST_MOMENTS", "5"))
REQUESTS = 64


async def serve(path: Path) -> None:
    """A server with feedback; it says its address."""
    async with serving(path) as up:
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


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
