"""Kill -9 at any moment, among faults too, and resume: the same policy, nothing paid for again.

`bench/kill.py` says how the proof works."""

import asyncio
import contextlib
import json
import random
import signal
import sqlite3
import subprocess
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bench.kill import (
    IN_FLIGHT,
    LATENCY,
    ROUTED,
    Progress,
    Training,
    When,
    after,
    assert_nothing_was_paid_twice,
    killed_and_resumed,
    left_by,
    progress_of,
    settled,
    typed,
    uninterrupted,
)
from promptcodebook.base.randomness import keyed_random
from promptcodebook.deploy.http.admission import RequestLimits
from promptcodebook.paper.experiments.experiment import read_run
from tests.build.proof_server import Served, served
from tests.build.proxied import Setup, Up, up
from tests.build.runs import SMALL, Finished, finished

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(f"simulated?latency={LATENCY}") as up:
        yield up


@pytest.fixture(scope="module")
def whole(server: Served, tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, float]:
    return uninterrupted(server, tmp_path_factory.mktemp("whole"))


def assert_as_if_nothing_had_happened(folder: Path, whole: Finished) -> None:
    left = left_by(folder)
    assert left.policy == whole.policy
    assert left.rewards() == whole.rewards()
    assert left.events() == whole.events()
    assert read_run(left.path)["training"] == read_run(whole.path)["training"]


def test_killed_again_and_again(
    server: Served, whole: tuple[Finished, float], tmp_path: Path
) -> None:
    draw = keyed_random("kill again")
    kills = killed_and_resumed(server, tmp_path, [after(draw.uniform(0.6, 1.4)) for _ in range(5)])
    assert len(kills) >= 3
    assert [k.progress.journal for k in kills] == sorted(k.progress.journal for k in kills)
    assert_nothing_was_paid_twice(server, tmp_path, kills)
    assert_as_if_nothing_had_happened(tmp_path, whole[0])


def stepped_and_not_validated(_: float, progress: Progress) -> bool:
    return progress.events.get("stepped") == 2 and progress.events.get("validated") == 1


def first_row(_: float, progress: Progress) -> bool:
    """In the middle of the first row of the verdict: its rollouts are no training."""
    return bool(progress.events.get("trained")) and not progress.events.get("judged")


def judging(_: float, progress: Progress) -> bool:
    return progress.events.get("judged") == 2


@pytest.mark.parametrize("moment", [stepped_and_not_validated, first_row, judging])
def test_killed_at_an_awkward_moment(
    moment: When, server: Served, whole: tuple[Finished, float], tmp_path: Path
) -> None:
    """On a busy machine the run may be past the moment before the kill comes: it is tried again."""
    for number in range(5):
        folder = tmp_path / str(number)
        kills = killed_and_resumed(server, folder, [moment])
        assert_nothing_was_paid_twice(server, folder, kills)
        assert_as_if_nothing_had_happened(folder, whole[0])
        if kills and moment(0.0, kills[0].progress):
            return
    pytest.fail("the moment was missed five times")


def test_ctrl_c_keeps_what_is_in_flight_and_says_how_to_go_on(
    server: Served, whole: tuple[Finished, float], tmp_path: Path
) -> None:
    server.reset()
    training = Training(tmp_path, server.lm)
    assert training.until(lambda _, progress: progress.events.get("stepped", 0) >= 2)
    training.process.send_signal(signal.SIGINT)
    assert training.wait() == 130
    run = left_by(tmp_path).path.name
    assert f"pco train --resume {run}" in training.stderr
    # Stopping in order loses nothing: each reply that the server gave is on disk.
    assert server.stats()["replies"] == progress_of(tmp_path).journal

    again = Training(tmp_path, server.lm)
    assert again.wait() == 0
    assert server.stats()["repeated"] == 0
    assert_as_if_nothing_had_happened(tmp_path, whole[0])


def test_a_router_that_learned_from_outcomes_survives_two_kills(
    server: Served, tmp_path: Path
) -> None:
    """Early and late: what it learned is read back from the traces; the same policy bytes."""
    server.reset()
    whole = Training(tmp_path / "whole", server.lm, flags=ROUTED)
    assert whole.wait() == 0, whole.stderr
    for stepped in (1, 5):
        training = Training(tmp_path / "killed", server.lm, flags=ROUTED)
        assert training.until(lambda _, p, least=stepped: p.events.get("stepped", 0) >= least)
        training.kill()
        assert stepped <= progress_of(tmp_path / "killed").events.get("stepped", 0) < 8
    rest = Training(tmp_path / "killed", server.lm)
    assert rest.wait() == 0, rest.stderr
    left = left_by(tmp_path / "killed")
    assert b'"router"' in left.policy
    assert_as_if_nothing_had_happened(tmp_path / "killed", left_by(tmp_path / "whole"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder whose `runs` is a disk of 24 MB of its own."""
    runs = tmp_path / "runs"
    runs.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(runs)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here: this test needs root")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(runs)], check=True)


def test_a_disk_that_fills_up_costs_no_reply_that_was_paid_for(
    server: Served, whole: tuple[Finished, float], small_disk: Path
) -> None:
    """Those in flight when it was full are kept as well, in room that was set aside."""
    server.reset()
    training = Training(small_disk, server.lm)
    assert training.until(lambda _, progress: progress.journal >= 120)
    ballast = small_disk / "runs" / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    assert training.wait() == 1, training.stderr
    assert "free space on the disk of" in training.stderr and "internal" not in training.stderr
    asked = server.stats()
    assert asked["replies"] == progress_of(small_disk).journal
    ballast.unlink()
    assert Training(small_disk, server.lm).wait() == 0
    assert server.stats()["repeated"] == 0
    assert_as_if_nothing_had_happened(small_disk, whole[0])
    assert not list((small_disk / "runs").rglob("*reserve*"))


_EVAL = "eval last --split train --samples 3"
# Work that is no run, on a run whose settings say `cache = false`, and the share of its calls that
# are answered when it is killed.
NO_RUN = (
    *((_EVAL, share) for share in (0.1, 0.5, 0.9)),
    *((f"{_EVAL} --set cache=true", share) for share in (0.2, 0.7)),
    ("distill last --fresh 8", 0.5),
    ("compare last last --split train", 0.5),
)


@pytest.fixture(scope="module")
def trained(server: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert Training(folder, server.lm).wait() == 0
    return folder


@pytest.mark.parametrize(("asked_for", "share"), NO_RUN)
def test_work_that_is_no_run_goes_on_where_it_was_killed(
    asked_for: str, share: float, server: Served, trained: Path
) -> None:
    """What was finished leaves nothing behind but what the cache keeps."""
    words = asked_for.split()
    assert typed(trained, "cache", "clear", "--yes").wait(60) == 0
    server.reset()
    whole = typed(trained, *words)
    assert whole.wait(600) == 0
    asked = server.stats()["replies"] - server.stats()["repeated"]
    assert server.stats()["repeated"] == 0 and asked > 60

    assert typed(trained, "cache", "clear", "--yes").wait(60) == 0
    server.reset()
    killed = typed(trained, *words)
    while killed.poll() is None and server.stats()["replies"] < share * asked:
        time.sleep(0.002)
    killed.kill()
    assert killed.wait() != 0, "it was too quick"
    left = settled(server)
    [file] = trained.rglob("*.unfinished/*/journal.sqlite")
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        (kept,) = db.execute("SELECT COUNT(*) FROM journal").fetchone()
    pending = left["replies"] - kept
    assert typed(trained, *words).wait(600) == 0
    stats = server.stats()
    assert stats["replies"] - stats["repeated"] == asked
    assert stats["repeated"] <= pending <= 2 * IN_FLIGHT, "what was there was paid for once more"

    assert not list(trained.rglob("*.unfinished/*"))
    assert typed(trained, *words).wait(600) == 0
    again = server.stats()["repeated"] - stats["repeated"]
    assert again == (0 if "cache=true" in words else asked), "only the cache keeps what is finished"


# A tour of every fault: the run completes, and both sides counted the same.

FAULTS = "faults=429:0.1,500:0.05,drop:0.05,json:0.05,truncate:0.02,routes:0.05"
TOUR: dict[str, Any] = {
    **SMALL,
    # Each fault must be one: a route that lacks an instinct is not, where fewer will do.
    "encoder": {"fewer": False},
    "update": {"epochs": 3, "batch_size": 8},
    "validation": {"every": 3, "subset": 8, "finalists": 1},
}
# The server's name of a fault -> ours of the incident it is on our side.
OURS = {
    "429": "rate_limited",
    "500": "server_error",
    "drop": "dropped",
    "json": "malformed",
    "truncate": "truncated",
    "routes": "faulty",
}


def test_the_run_completes_and_its_counts_are_the_servers_and_those_in_process(
    tmp_path: Path,
) -> None:
    """A whole run among faults over HTTP, and what the server counted."""
    with served(f"simulated?{FAULTS}") as server:
        run = finished(tmp_path / "http", server.lm, TOUR)
        stats = server.stats()
    assert list(run.rewards()) == ["present", "learned", "concat", "best_fixed", "untrained"]
    ours, faults = run.tallies(), stats["faults"]
    assert {OURS[name]: count for name, count in faults.items()} == {
        name: ours.get(name, 0) for name in OURS.values()
    }
    assert stats["cut"] == faults["truncate"], "something else was cut too"
    assert min(faults.values()) > 0, "a fault of the tour never struck"
    here = finished(tmp_path / "here", f"simulated?{FAULTS}", TOUR)
    assert here.policy == run.policy
    assert here.tallies() == ours


# A served policy over an upstream with faults: no request is lost, and none is answered twice.

REQUESTS = 2000
PARTS = 5
AT_ONCE = 50


async def faulty(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Echoes a request's number, whole or in pieces; a tenth each is refused, fails or breaks."""
    text = body["messages"][-1]["content"]
    fate = random.Random(text).random()
    if fate < 0.1:
        return web.json_response({"error": {"message": "slow"}}, status=429)
    if fate < 0.2:
        return web.json_response({"error": {"message": "no"}}, status=500)
    if fate < 0.3 and request.transport is not None:
        request.transport.abort()
        return web.Response()
    if not body.get("stream"):
        return web.json_response({"choices": [{"message": {"content": text}}]})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(streamed(text))
    return response


def streamed(text: str) -> bytes:
    """The whole stream of an answer."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}
    return f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n".encode()


async def asks(served: Up, http: aiohttp.ClientSession, number: int) -> int:
    """A mixed request: its status. What it says came from this request and no other."""
    text = f"ticket {number}"
    stream = number % 3 == 0
    sent = {"messages": [{"role": "user", "content": text}], "stream": stream}
    async with http.post(f"{served.url}/v1/chat/completions", json=sent) as answer:
        data = await answer.read()
        if answer.status == 200:
            whole = streamed(text)
            reply = json.loads(data)["choices"][0]["message"]["content"] if not stream else text
            assert (reply, data if stream else whole) == (text, whole)
        else:
            assert json.loads(data)["error"]["message"]
        return answer.status


async def test_of_many_mixed_requests_none_is_lost_and_none_answered_twice() -> None:
    statuses: Counter[int] = Counter()
    sizes: list[int] = []
    limits = RequestLimits(in_flight=2 * AT_ONCE)
    async with (
        up(setup=Setup(limits=limits)) as served,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        served.upstream.default = faulty
        asked: Counter[str] = Counter()

        async def client(numbers: Iterator[int]) -> None:
            for number in numbers:
                statuses[await asks(served, http, number)] += 1

        tracemalloc.start()
        try:
            for part in range(PARTS):
                size = REQUESTS // PARTS
                numbers = iter(range(part * size, (part + 1) * size))
                await asyncio.gather(*(client(numbers) for _ in range(AT_ONCE)))
                asked.update(b["messages"][-1]["content"] for b in served.upstream.bodies)
                served.upstream.bodies.clear()
                served.upstream.headers.clear()
                sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        counts = await served.metrics()
    assert statuses.total() == asked.total() == len(asked) == REQUESTS, "each went up once"
    assert set(statuses) == {200, 429, 500, 502}
    assert counts["pco_in_flight"] == 0
    path = 'path="/v1/chat/completions"'
    told = {s: counts[f'pco_requests_total{{{path},status="{s}"}}'] for s in statuses}
    assert told == statuses
    # What grows is the cache of prompts, up to its bound; a request leaves nothing else behind.
    assert (sizes[-1] - sizes[1]) / (REQUESTS * 3 / 5) < 2500
