"""The news that a screen is out of date: of a run, of the registry, of the paper's tables."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from promptcodebook.experiments.reproduce import experiment_names
from promptcodebook.registry.registry import open_registry
from promptcodebook.viewer.server import Site, viewing
from tests.load import crowding
from tests.policy.registry.build import policy
from tests.report.scripted_run import ScriptedRun, events_of, write_run
from tests.viewer.conftest import SIMULATED, ask


async def _news(base: str, path: str, last: str = "") -> tuple[str, str]:
    """The next event of a stream: its id and its name."""
    headers = {"Last-Event-ID": last} if last else {}
    async with (
        aiohttp.ClientSession() as session,
        session.get(base + path, headers=headers, timeout=aiohttp.ClientTimeout(10)) as stream,
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
        async with viewing(Site(tmp_path)) as base:
            first, name = await _news(base, f"{path}?mark=none")
            assert name == "changed"
            waiting = asyncio.create_task(_news(base, f"{path}?mark={first}"))
            await asyncio.sleep(0.5)
            assert not waiting.done()
            next(events)
            store.append(next(events))
            second, _ = await asyncio.wait_for(waiting, 1.0)
            assert second != first
        # The server is gone; another one takes its place, and the page asks where it stood.
        store.append(next(events))
        async with viewing(Site(tmp_path)) as base:
            third, _ = await asyncio.wait_for(_news(base, path, last=second), 1.0)
            assert third not in (first, second)
    finally:
        store.close()


async def test_a_run_that_ends_without_a_word_is_noticed(tmp_path: Path) -> None:
    store = write_run(tmp_path, ScriptedRun(steps=2, verdict=False, hostile=""))
    path = f"/live/run/{store.header.id}"
    async with viewing(Site(tmp_path)) as base:
        first, _ = await _news(base, f"{path}?mark=none")
        store.close()
        second, _ = await asyncio.wait_for(_news(base, f"{path}?mark={first}"), 2.0)
        assert first.endswith("r") and second.endswith("e")


async def _all_news(base: str, path: str) -> list[str]:
    """The names of all events of a stream that ends by itself."""
    limit = aiohttp.ClientTimeout(5)
    async with (
        aiohttp.ClientSession() as session,
        session.get(base + path, timeout=limit) as stream,
    ):
        text = (await stream.read()).decode()
    return [line.removeprefix("event: ") for line in text.splitlines() if line[:6] == "event:"]


async def test_the_news_of_a_run_that_nobody_writes_end_and_say_so(tmp_path: Path) -> None:
    store = write_run(tmp_path, ScriptedRun(steps=2, verdict=False, hostile=""))
    path = f"/live/run/{store.header.id}"
    async with viewing(Site(tmp_path)) as base:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_all_news(base, path), 0.6)
        store.close()
        assert await _all_news(base, path) == ["changed", "rest"]
        mark, _ = await _news(base, path)
        assert await _all_news(base, f"{path}?mark={mark}") == ["rest"]


async def test_the_registry_tells_of_a_promotion_and_of_a_rollback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "registry.sqlite"
    monkeypatch.setenv("PCO_REGISTRY", str(file))
    async with viewing(Site(tmp_path)) as base:
        before, _ = await _news(base, "/live/registry")
        with open_registry(file, who="Ada") as registry:
            first, second = (registry.freeze(policy(w), "tickets").version for w in ("a", "b"))
            mark, _ = await _news(base, f"/live/registry?mark={before}")
            steps = (
                partial(registry.promote, first, "tickets@production", override="a test"),
                partial(registry.promote, second, "tickets@production", override="a test"),
                partial(registry.rollback, "tickets@production", why="worse"),
            )
            for step in steps:
                waiting = asyncio.create_task(_news(base, f"/live/registry?mark={mark}"))
                await asyncio.sleep(0.3)
                assert not waiting.done()
                await asyncio.to_thread(step)
                mark, _ = await asyncio.wait_for(waiting, 1.0 * crowding())
                _, text, _ = await ask(base, "/registry")
                assert f'data-mark="{mark}"' in text and 'data-live="/live/registry"' in text
        assert "worse" in text


async def test_the_paper_tells_of_a_table_and_of_a_drawing(tmp_path: Path) -> None:
    name, other = experiment_names()[:2]
    (tmp_path / name).mkdir()
    write = (
        ("results.json", '{"preset": "quick", "model": "m", "seeds": 2}'),
        ("f.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>"),
        ("results.json", '{"preset": "quick", "model": "m", "seeds": 5}'),
    )
    async with viewing(Site(tmp_path / "runs", results=tmp_path)) as base:
        marks = {
            path: (await _news(base, f"/live{path}"))[0] for path in ("/paper", f"/paper/{name}")
        }
        still, _ = await _news(base, f"/live/paper/{other}")
        _, before, _ = await ask(base, f"/paper/{name}")
        for file, text in write:
            (tmp_path / name / file).write_text(text, "utf-8")
            for path in marks:
                if file == "results.json" or path != "/paper":
                    told = _news(base, f"/live{path}?mark={marks[path]}")
                    marks[path], _ = await asyncio.wait_for(told, 1.0 * crowding())
        _, after, _ = await ask(base, f"/paper/{name}")
        assert "It was not measured here" in before and "Measured with m" in after
        assert f'src="/paper/{name}/f.svg?as_of={marks[f"/paper/{name}"]}"' in after
        assert (await _news(base, f"/live/paper/{other}"))[0] == still
        assert (await ask(base, f"/paper/{name}/f.svg?as_of=1"))[0] == 200
