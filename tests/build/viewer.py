"""What the tests of the viewer look at, and readers of its pages."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from promptcodebook.deploy.viewer.screens import Screen, page_of
from tests.build.scripted_run import HOSTILE, ScriptedRun, write_run
from tests.build.strict import flat

CHROMIUM = Path("/usr/bin/chromium")


SIZES = {400: 800, 1600: 1000}


# Marks of tests that need it.
IN_A_BROWSER = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM} here"),
]


SIMULATED, REAL, HOSTILE_RUN, PRIVATE = "simulated", "real", "hostile", "private"


_ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")


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


async def asked(
    url: str, method: str = "GET", form: Mapping[str, str] | None = None, **headers: str
) -> Answer:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, headers=headers, data=form, allow_redirects=False) as response,
    ):
        return Answer(response.status, await response.text(), response.headers)


async def ask(base: str, path: str) -> tuple[int, str, str]:
    """Status, text and security policy of an answer."""
    answer = await asked(base + path)
    return answer.status, answer.text, answer.headers.get("Content-Security-Policy", "")


def shown(screen: Screen) -> str:
    """The words of a screen."""
    return flat(page_of(screen, "/").decode())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=list(_ARGUMENTS), headless=True
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def base(runs_dir: Path) -> Iterator[str]:
    with view(runs_dir) as address:
        yield address


@dataclass
class Heard:
    """What a page asked for and complained of."""

    requests: list[str] = field(default_factory=list[str])
    complaints: list[str] = field(default_factory=list[str])

    def of(self, page: Any) -> None:
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.on("console", self._note)

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def foreign(self, base: str) -> list[str]:
        return [url for url in self.requests if not url.startswith((f"{base}/", "data:"))]


@contextmanager
def view(runs: Path, port: int = 0, **environment: str) -> Iterator[str]:
    """`pco view` of these runs in a process of its own; its address."""
    command = [sys.executable, "-m", "promptcodebook.cli", "view", "--port", str(port)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PCO_RUNS": str(runs), **environment},
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip().rstrip("/")
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def opened(browser: Any, width: int, scheme: str) -> Iterator[tuple[Any, Heard]]:
    context = browser.new_context(
        viewport={"width": width, "height": SIZES[width]},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    page, heard = context.new_page(), Heard()
    page.set_default_timeout(120_000)  # a busy machine is slow
    heard.of(page)
    yield page, heard
    context.close()


def faults(page: Any, axe: str) -> list[str]:
    """What axe calls serious or critical, with the place."""
    page.evaluate(axe)
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [
        f"{fault['id']}: {node['html'][:120]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
