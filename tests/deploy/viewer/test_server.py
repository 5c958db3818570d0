"""The viewer over HTTP: who is answered, what every answer bears, and the news of a run."""

import asyncio
import logging
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from promptcodebook.base.paths import BENCH
from promptcodebook.calls import Usage
from promptcodebook.deploy.viewer.following import FollowedRun, OpenRuns, find_key, key_of, root_of
from promptcodebook.deploy.viewer.lists import RunFilter, RunsList
from promptcodebook.deploy.viewer.screens import page_of
from promptcodebook.deploy.viewer.server import Viewer, viewing
from promptcodebook.errors import StoreError
from promptcodebook.store.events import Validated
from promptcodebook.store.run import RunStore
from promptcodebook.types import Evaluation, Rollout
from tests.build.scripted_run import ScriptedRun, events_of, write_run
from tests.build.strict import flat
from tests.build.viewer import SIMULATED, Get, ask, asked


@pytest.mark.parametrize(("name", "status"), [
    *((name, 200) for name in ("localhost", "127.0.0.1:8642", "[::1]:1", "LOCALHOST:9")),
    *((name, 421) for name in ("evil.example", "localhost.evil.example", "[::1", "10.0.0.1")),
    ("127.0.0.1@evil.example", 421),
])  # fmt: skip
def test_only_this_machine_is_answered_under_its_own_names(
    get: Get, name: str, status: int
) -> None:
    answer = get("/", Host=name)
    assert answer.status == status and ("Runs" in answer.text) is (status == 200)


@pytest.mark.parametrize(
    "path", ["/", "/static/view.js", "/static/style.css", "/nope", "/static/x"]
)
def test_every_answer_forbids_what_no_page_needs(get: Get, path: str) -> None:
    headers = get(path).headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers


async def test_it_takes_no_post(tmp_path: Path) -> None:
    store = write_run(tmp_path, _ONE)
    store.close()
    page = f"/run/{store.header.id}"
    async with viewing(Viewer(tmp_path)) as base:
        for path in (page, f"{page}/note/test-1", f"{page}/stop", "/"):
            assert (await asked(base + path, "POST", {"note": "n"}, Origin=base)).status == 405
        assert "<form method=" not in (await asked(base + page)).text


async def test_a_run_at_work_shows_its_time_left(tmp_path: Path) -> None:
    store = write_run(tmp_path, replace(_ONE, steps=10, config=_PLANNED))
    store.close()
    hold = (
        "import sys, pathlib; from promptcodebook.store.lock import RunLock\n"
        "lock = RunLock(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    job = await asyncio.create_subprocess_exec(sys.executable, "-c", hold, str(store.path), **pipes)
    assert job.stdout is not None and await job.stdout.readline() == b"held\n"
    async with viewing(Viewer(tmp_path)) as base:
        text = flat((await asked(f"{base}/run/{store.header.id}")).text)
        assert re.search(r"Running. Step 10 of 50: about \S+.* of training left, then", text)
        assert "of training left" in flat((await asked(base + "/")).text)
    await job.communicate(b"")


_ONE = ScriptedRun(steps=1, verdict=False, hostile="")
_PLANNED = {"update": {"epochs": 5, "steps_per_epoch": 10}}


def steps_of(open_runs: OpenRuns, key: str) -> int | None:
    """How many steps the run of this address has; None where there is none."""
    with open_runs.reading(key) as followed:
        return None if followed is None else len(followed.look().steps)


def test_a_run_that_was_removed_and_written_again_is_read_again(tmp_path: Path) -> None:
    store = write_run(tmp_path / "runs", replace(_ONE, steps=3))
    store.close()
    key, open_runs = store.header.id, OpenRuns(tmp_path / "runs")
    with open_runs.reading(key) as followed:
        assert followed is not None and followed.look().mark == followed.mark()
        before = followed.mark()
        assert len(followed.look().steps) == 3
    store.path.rename(tmp_path / "removed")
    write_run(tmp_path / "runs", _ONE).close()
    assert steps_of(open_runs, key) == 1
    with open_runs.reading(key) as followed:
        assert followed is not None
        assert followed.mark().partition("-")[0] != before.partition("-")[0]
    store.path.rename(tmp_path / "removed again")
    assert steps_of(open_runs, key) is None
    open_runs.close()


def test_a_run_of_a_suite_and_a_link_to_a_run_have_addresses_of_their_own(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_run(runs, _ONE).close()
    suite = runs / BENCH / "small" / "cell"
    suite.parent.mkdir(parents=True)
    write_run(tmp_path / "elsewhere", ScriptedRun(steps=2, verdict=False)).path.rename(suite)
    linked = write_run(tmp_path / "elsewhere", replace(_ONE, steps=4))
    linked.close()
    (runs / "linked").symlink_to(linked.path)
    assert key_of(runs, suite) == f"{BENCH}~small~cell"
    assert root_of(runs, suite) == root_of(runs, runs / "linked") == runs
    assert root_of(tmp_path / "other", suite) == suite.parent
    assert find_key(runs.resolve(), runs / "linked") == "linked"
    assert find_key(root_of(tmp_path / "no", linked.path), linked.path) == linked.path.name
    open_runs = OpenRuns(runs.resolve())
    keys = (key_of(runs, suite), "linked", "cell")
    assert [steps_of(open_runs, key) for key in keys] == [2, 4, None]
    open_runs.close()


def test_only_a_few_runs_stay_open_but_those_that_are_read(tmp_path: Path) -> None:
    keys = [write_run(tmp_path, replace(_ONE, task=f"t{n}")).header.id for n in range(10)]
    open_runs = OpenRuns(tmp_path)

    def read(key: str) -> FollowedRun:
        with open_runs.reading(key) as followed:
            assert followed is not None
        return followed

    first = read(keys[0])
    with open_runs.reading(keys[1]) as second:
        assert second is not None
        for key in keys[2:]:
            read(key)
        assert len(second.look().steps) == 1 and second.tests() == ()
    assert read(keys[-1]) is read(keys[-1]) and read(keys[0]) is not first
    for closed in (first, second):
        with pytest.raises(StoreError, match="closed"):
            closed.look()
    open_runs.close()


async def test_an_error_nobody_foresaw_is_answered_with_a_hint_under_the_same_policy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"update": {"mode": "minibatch", "epochs": "many", "steps_per_epoch": 1}}
    run = ScriptedRun(steps=1, verdict=False, hostile="", config=settings)
    store = write_run(tmp_path / "runs", run)
    store.close()
    async with viewing(Viewer(tmp_path / "runs")) as base:
        status, text, policy = await ask(base, f"/run/{store.header.id}")
    assert status == 500 and "Next: " in text
    assert policy.startswith("default-src 'none'")
    assert len(caplog.records) == 1


def test_the_news_of_a_run_that_does_not_exist_end(get: Get) -> None:
    answer = get("/live/run/nope")
    assert answer.status == 200 and answer.text.endswith("event: rest\ndata: \n\n")


async def _news(base: str, path: str, last: str = "") -> tuple[str, str]:
    """The next event of a stream: its id and its name."""
    headers = {"Last-Event-ID": last} if last else {}
    async with (
        aiohttp.ClientSession() as session,
        session.get(base + path, headers=headers, timeout=aiohttp.ClientTimeout(60)) as stream,
    ):
        told: dict[str, str] = {}
        async for line in stream.content:
            name, _, value = line.decode().strip().partition(": ")
            told[name] = value
            if not name and "event" in told:
                return told["id"], told["event"]
    raise AssertionError("the stream ended")


async def test_a_page_hears_within_a_second_that_its_run_went_on(tmp_path: Path) -> None:
    events = iter(events_of(ScriptedRun(steps=4, verdict=False, hostile="")))
    store = write_run(tmp_path, ScriptedRun(steps=0, verdict=False, task=SIMULATED))
    path = f"/live/run/{store.header.id}"
    try:
        async with viewing(Viewer(tmp_path)) as base:
            first, name = await _news(base, f"{path}?mark=none")
            assert name == "changed"
            waiting = asyncio.create_task(_news(base, f"{path}?mark={first}"))
            await asyncio.sleep(0.5)
            assert not waiting.done()
            next(events)
            mark, took = first, list[float]()
            for _ in range(3):
                began = time.monotonic()
                store.append(next(events))
                second, _ = await waiting
                took.append(time.monotonic() - began)
                assert second != mark
                mark = second
                waiting = asyncio.create_task(_news(base, f"{path}?mark={mark}"))
            assert min(took) < 1.0, "the machine is busy at times, and not at each of them"
            waiting.cancel()
        # The server is gone; another one takes its place, and the page asks where it stood.
        store.append(next(events))
        async with viewing(Viewer(tmp_path)) as base:
            third, _ = await _news(base, path, last=second)
            assert third not in (first, second)
    finally:
        store.close()


async def _all_news(base: str, path: str) -> list[str]:
    """The names of all events of a stream that ends by itself."""
    _, text, _ = await asyncio.wait_for(ask(base, path), 60)
    return re.findall(r"^event: (.*)$", text, re.MULTILINE)


async def test_the_news_of_a_run_that_nobody_writes_end_and_say_so(tmp_path: Path) -> None:
    store = write_run(tmp_path, ScriptedRun(steps=2, verdict=False, hostile=""))
    path = f"/live/run/{store.header.id}"
    async with viewing(Viewer(tmp_path)) as base:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_all_news(base, path), 0.6)
        first, _ = await _news(base, f"{path}?mark=none")
        store.close()
        second, _ = await _news(base, f"{path}?mark={first}")
        assert first.endswith("r") and second.endswith("e")
        assert await _all_news(base, path) == ["changed", "rest"]
        mark, _ = await _news(base, path)
        assert await _all_news(base, f"{path}?mark={mark}") == ["rest"]


_RUN = ScriptedRun(steps=12, size=6, select=2, batch=2, hostile="", verdict=False)


def validated(step: int, score: float, n: int) -> Validated:
    rollouts = tuple(Rollout(f"v-{i}", output="o", reward=score) for i in range(n))
    return Validated(step, "subset", Evaluation("val", "val", rollouts))


def markup_of(runs: RunsList, wanted: RunFilter = RunFilter()) -> str:  # noqa: B008 - it never changes
    return page_of(runs.screen(wanted), "/").decode()


def test_what_was_written_after_the_last_step_is_in_the_list(tmp_path: Path) -> None:
    store = write_run(tmp_path, _RUN)
    runs = RunsList(tmp_path, kept_s=0.0)
    mark, before = runs.mark(), markup_of(runs)
    assert "2 scores from 0.400 to 0.500" in before and " 510 " in flat(before)
    usage = Usage(100, 1, 1, 1, 0.0, 100)
    log = store.journal.attempts
    log.end(log.begin("executor", usage), "executor", usage, False)
    store.append(validated(11, 0.9, 20))
    store.append(validated(11, 0.1, 7))  # not the best: its n is not shown
    store.close()  # the same step, and no end: as after a kill
    text = markup_of(runs)
    assert runs.mark() != mark and "4 scores from 0.400 to 0.100" in text
    assert " 610 " in flat(text) and "0.900 n = 20" in flat(text) and "n = 7" not in text


def test_runs_are_listed_with_their_verdict_in_the_order_and_kind_that_is_wanted(
    tmp_path: Path,
) -> None:
    levels = {"tickets": (0.4, 0.7), "orders": (0.6, 0.2), "few": (0.4, 0.5)}
    for task, (present, learned) in levels.items():
        rows = (("present", "the present prompt", present), ("learned", "the result", learned))
        write_run(tmp_path, ScriptedRun(1, 4, 2, 1, hostile="", task=task, rows=rows)).close()
    write_run(tmp_path, replace(_ONE, task="none")).close()
    runs = RunsList(tmp_path)

    def listed(**wanted: str) -> list[str]:
        shown = markup_of(runs, RunFilter.of(wanted))
        return re.findall(r'<span class="id"><a[^>]*>[^<]*-(\w+)</a>', shown)

    text = flat(markup_of(runs))
    assert "tickets Deploy +0.300 +0.181 to +0.443 0.40→0.70 finished" in text
    assert "orders Do not deploy use present -0.400" in text
    assert listed(by="gain") == ["tickets", "few", "orders", "none"]
    assert listed(by="-gain") == ["orders", "few", "tickets", "none"]
    assert listed(by="nonsense") == listed() != listed(by="-task") == sorted(listed())
    assert listed(only="Do not deploy") == ["orders"] and listed(words="ticket deploy") == [
        "tickets"
    ]
    assert listed(only="stopped") == ["none"] and listed(words="nothing like it") == []
    assert listed(page="9", by="task") == listed(by="task") and listed(page="9") == listed()
    assert "No run matches." in flat(markup_of(runs, RunFilter.of({"words": "<x>"})))


def test_a_run_that_cannot_be_read_is_told_on_the_screen_and_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_run(tmp_path, _RUN).close()
    bad = tmp_path / "20260101-000000-bad"
    bad.mkdir()
    (bad / "run.sqlite").write_bytes(b"no database" * 100)
    runs = RunsList(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            (bad / "run.sqlite").touch()
            text = flat(markup_of(runs))
    assert f"1 run cannot be read: {bad.name}" in text and "Next: " in text
    assert len(caplog.records) == 1


def test_all_pages_share_one_look_and_what_did_not_change_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_run(tmp_path, _RUN)
    runs = RunsList(tmp_path, kept_s=60.0)
    before, first = runs.mark(), flat(markup_of(runs))
    with monkeypatch.context() as closed:
        closed.setattr(RunStore, "open", None)
        assert flat(markup_of(runs)) == first
    store.append(validated(11, 0.9, 20))
    store.close()
    assert runs.mark() == before
    fresh = re.search('data-mark="([^"]*)"', markup_of(runs))
    assert fresh is not None and fresh[1] != before  # a page that is asked for is up to date
