"""Kill -9 in `pco learn`, and the same command again: the registry has the version that it would
have had, and feedback is there."""

import asyncio
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from bench.kill import LATENCY, ROUTED, Training, typed
from promptcodebook.deploy.registry.registry import Registry
from promptcodebook.paper.tasks.constraints.task import load_constraints, reward
from tests.build.clock import until
from tests.build.proof_server import Served, served
from tests.build.server import free_port

pytestmark = pytest.mark.slow
REF = "shop@production"
LEARN = "learn", REF


@dataclass(frozen=True)
class Home:
    """A home folder with runs, a registry and a record of requests."""

    folder: Path

    @property
    def _data(self) -> Path:
        return self.folder / ".local" / "share" / "promptcodebook"

    def does(self, *words: str) -> None:
        assert typed(self.folder, *words).wait(120) == 0, words

    @property
    def registry(self) -> Registry:
        return Registry(self._data / "registry.sqlite")

    @property
    def is_writing(self) -> bool:
        return (self._data / "registry.sqlite-journal").exists()

    def feedback(self) -> set[tuple[str, float]]:
        with closing(sqlite3.connect(self._data / "requests.sqlite")) as db:
            return {*db.execute("SELECT id, reward FROM feedback")}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(f"simulated?latency={LATENCY}") as up:
        yield up


async def _ask(url: str) -> set[tuple[str, float]]:
    """What users said of the answers to 60 requests, and was acknowledged."""
    data, acknowledged = load_constraints().dataset, set[tuple[str, float]]()
    async with aiohttp.ClientSession(url) as http:

        async def ready() -> bool:
            try:
                async with http.get("/readyz") as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        await until(ready)
        for example in [*data.val, *data.test][:60]:
            asked = {"messages": [{"role": "user", "content": example.input}]}
            async with http.post("/v1/chat/completions", json=asked) as answer:
                body, name = await answer.json(), answer.headers["x-request-id"]
            score = reward(example, body["choices"][0]["message"]["content"])
            given = {"request_id": name, "reward": score.value, "feedback": score.feedback}
            async with http.post("/v1/feedback", json=given) as answer:
                answer.raise_for_status()
            acknowledged.add((name, score.value))
    return acknowledged


@pytest.fixture(scope="module")
def used(server: Served, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A policy was trained, promoted and served, and its users gave feedback."""
    home = Home(tmp_path_factory.mktemp("used"))
    assert Training(home.folder, server.lm, flags=ROUTED).wait() == 0
    home.does("registry", "freeze", "last", "shop")
    home.does("registry", "audit", "shop@latest", "--rules-only")
    home.does("registry", "promote", "shop@latest", REF, "--without-judge", "--despite-verdict")
    port = str(free_port())
    serving = "--feedback", "--explore", "0.3", "--lm", server.lm
    process = typed(home.folder, "serve", REF, *serving, "--port", port)
    try:
        acknowledged = asyncio.run(_ask(f"http://127.0.0.1:{port}"))
    finally:
        process.kill()
        process.wait()
    assert home.feedback() == acknowledged
    return home


def copied(home: Home, to: Path) -> Home:
    return Home(Path(shutil.copytree(home.folder, to, symlinks=True)))


@dataclass(frozen=True)
class Whole:
    """What `pco learn` comes to without a kill, and the seconds that it takes."""

    version: str
    entries: int
    seconds: float


@pytest.fixture(scope="module")
def whole(used: Home, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    home, began = copied(used, tmp_path_factory.mktemp("whole") / "home"), time.monotonic()
    home.does(*LEARN)
    seconds = time.monotonic() - began
    latest, entries = home.registry.resolve("shop@latest"), len(home.registry.history())
    assert latest != home.registry.resolve(REF)
    return Whole(latest, entries, seconds)


def killed(home: Home, moment: float | None, whole: Whole) -> bool:
    """Whether the kill came in time: at that share of the work, or (None) while the registry's file
    is written."""
    process, began = typed(home.folder, *LEARN), time.monotonic()

    def reached() -> bool:
        if moment is None:
            return home.is_writing
        return time.monotonic() - began >= moment * whole.seconds

    while process.poll() is None and not reached():
        time.sleep(0.0002)
    process.kill()
    return process.wait() != 0


@pytest.mark.parametrize("moment", [0.1, 0.4, 0.7, 0.95, None])
def test_a_killed_learn_comes_to_what_it_would_have(
    moment: float | None, used: Home, whole: Whole, tmp_path: Path
) -> None:
    """On a busy machine it may be past the moment before the kill comes: it is tried again."""
    for attempt in range(5):
        home = copied(used, tmp_path / str(attempt))
        earlier = None if moment is None else moment * 0.8**attempt
        if not killed(home, earlier, whole):
            continue
        assert home.registry.verify().passes
        home.does(*LEARN)
        registry = home.registry
        assert registry.verify().passes and len(registry.history()) == whole.entries
        assert registry.resolve("shop@latest") == whole.version
        assert registry.resolve(REF) == used.registry.resolve(REF)
        assert home.feedback() == used.feedback()
        assert not [*home.folder.rglob("*.unfinished/*")]
        return
    pytest.fail("the moment was missed five times")
