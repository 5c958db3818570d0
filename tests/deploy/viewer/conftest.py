"""Runs on disk that every test of the viewer looks at, and a browserless reader of its pages."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.deploy.viewer.following import FollowedRun
from promptcodebook.deploy.viewer.server import Viewer, viewing
from promptcodebook.store.events import Event
from tests.build.scripted_run import ScriptedRun, write_run
from tests.build.viewer import Answer, Get, asked
from tests.build.viewer import base as base
from tests.build.viewer import browser as browser
from tests.build.viewer import runs_dir as runs_dir


@pytest.fixture(scope="session")
def keys(runs_dir: Path) -> dict[str, str]:
    """The key of each run by its task."""
    return {path.name.rpartition("-")[2]: path.name for path in runs_dir.iterdir()}


@pytest.fixture(scope="session")
def get(runs_dir: Path) -> Iterator[Get]:
    """Asks a viewer of these runs for a path."""
    loop = asyncio.new_event_loop()
    at_work = viewing(Viewer(runs_dir))
    base = loop.run_until_complete(at_work.__aenter__())

    def read(path: str, method: str = "GET", **headers: str) -> Answer:
        return loop.run_until_complete(asked(base + path, method, **headers))

    yield read
    loop.run_until_complete(at_work.__aexit__(None, None, None))
    loop.close()


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., FollowedRun]]:
    """Writes a scripted run and follows it; closed at the end of the test."""
    followed: list[FollowedRun] = []

    def follow_one(
        run: ScriptedRun, events: Iterable[Event] | None = None, **header: Any
    ) -> FollowedRun:
        store = write_run(tmp_path / "runs", run, events, **header)
        store.close()
        followed.append(FollowedRun(store.path, store.path.name))
        return followed[-1]

    yield follow_one
    for each in followed:
        each.close()


@pytest.fixture(scope="module")
def axe() -> str:
    """The accessibility checker's own script."""
    package = pytest.importorskip("axe_playwright_python")
    return (Path(package.__file__).parent / "axe.min.js").read_text("utf-8")
