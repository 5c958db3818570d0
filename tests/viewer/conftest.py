"""Runs on disk that every test of the viewer looks at, and a browserless reader of its pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from promptcodebook.viewer.server import Site, viewing
from tests.report.scripted_run import HOSTILE, ScriptedRun, write_run

SIMULATED, REAL, HOSTILE_RUN, PRIVATE = "simulated", "real", "hostile", "private"
BIDI = "\u202etxt.exe\u202c\u2066hidden\u2069"
ATTACK = (
    f"{HOSTILE} <svg onload=alert(4)><style>*{{display:none}}</style></textarea>{BIDI}"
    "<base href=//evil.example><meta http-equiv=refresh content='0;url=//evil.example'>"
)


@dataclass(frozen=True)
class Answer:
    status: int
    text: str
    headers: Any


Get = Callable[..., Answer]


def make_runs(folder: Path) -> Path:
    """Four runs, named by their task."""
    plain = {"steps": 12, "size": 8, "select": 2, "batch": 4, "hostile": ""}
    runs = {
        SIMULATED: ScriptedRun(**plain, task=SIMULATED),
        REAL: ScriptedRun(**{**plain, "steps": 11}, simulated=False, task=REAL),
        HOSTILE_RUN: ScriptedRun(**{**plain, "hostile": ATTACK}, task=HOSTILE_RUN),
        PRIVATE: ScriptedRun(**{**plain, "hostile": "Ottokar"}, task=PRIVATE, private=True),
    }
    for run in runs.values():
        write_run(folder, run).close()
    return folder


@pytest.fixture(scope="session")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runs(tmp_path_factory.mktemp("viewer") / "runs")


@pytest.fixture(scope="session")
def keys(runs_dir: Path) -> dict[str, str]:
    """The key of each run by its task."""
    return {path.name.rpartition("-")[2]: path.name for path in runs_dir.iterdir()}


@pytest.fixture(scope="session")
def get(runs_dir: Path) -> Iterator[Get]:
    """Asks a viewer of these runs for a path."""
    loop = asyncio.new_event_loop()
    at_work = viewing(Site(runs_dir))
    base = loop.run_until_complete(at_work.__aenter__())

    async def ask(path: str, method: str, headers: dict[str, str]) -> Answer:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, base + path, headers=headers) as response,
        ):
            return Answer(response.status, await response.text(), response.headers)

    def read(path: str, method: str = "GET", **headers: str) -> Answer:
        return loop.run_until_complete(ask(path, method, headers))

    yield read
    loop.run_until_complete(at_work.__aexit__(None, None, None))
    loop.close()
