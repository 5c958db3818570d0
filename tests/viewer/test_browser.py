"""The viewer in a real browser: drawn, clicked through by keyboard, readable by everybody, and
silent: nothing on the console, no request to anywhere else.

Pictures are compared with approved ones at an eighth of their size, in grey, by their mean
difference: what moves or vanishes is seen, another machine's font is not. `APPROVE=1 pytest
tests/viewer/test_browser.py -m slow` approves what is drawn now.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.policy.registry.registry import open_registry
from promptcodebook.report import write_report
from promptcodebook.store import RunStore
from promptcodebook.store.runs import remove_run
from tests.load import crowding
from tests.policy.registry.build import policy
from tests.report.scripted_run import ScriptedRun, write_run
from tests.viewer.conftest import HOSTILE_RUN, REAL, SIMULATED

sync_api = pytest.importorskip("playwright.sync_api")
_CHROMIUM = Path("/usr/bin/chromium")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _CHROMIUM.exists(), reason=f"there is no {_CHROMIUM} here"),
]

_ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
_SIZES = {400: 800, 1600: 1000}
_APPROVED = Path(__file__).with_name("approved")
_APPROVE = os.environ.get("APPROVE") == "1"
_EIGHTH, _MOST = 8, 2.0
"""How much smaller pictures are compared, and by how much of 255 they may differ in the mean."""
_CHECKED = ((400, "light"), (1600, "dark"))
"""Where axe looks: at both sizes, and at the contrast of both themes."""
SCREENS = {
    "runs": "/",
    "run": "/run/{simulated}",
    "codebook": "/run/{simulated}/codebook",
    "biography": "/run/{simulated}/codebook/2",
    "examples": "/run/{simulated}/examples",
    "example": "/run/{simulated}/example/train-3-1/4",
    "compare": "/compare?run={simulated}&run={real}",
    "registry": "/registry",
    "paper": "/paper/Table%201",
}
_HOSTILE = (
    "",
    "/codebook",
    "/codebook/2",
    "/codebook/encoder",
    "/examples",
    "/example/train-3-1",
    "/example/test-5/test",
)


@dataclass
class Heard:
    """What a page asked for and complained of."""

    requests: list[str] = field(default_factory=list[str])
    complaints: list[str] = field(default_factory=list[str])

    def of(self, page: Any) -> None:
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.on("console", self._said)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def foreign(self, base: str) -> list[str]:
        return [url for url in self.requests if not url.startswith((f"{base}/", "data:"))]


@contextmanager
def view(runs: Path, port: int = 0, **environment: str) -> Iterator[str]:
    """`pco view` of these runs in a process of its own; its address."""
    command = [sys.executable, "-m", "promptcodebook.cli", "view", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--results", str(runs / "no-results")],
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=str(_CHROMIUM), args=list(_ARGUMENTS), headless=True
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def base(runs_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    registry = tmp_path_factory.mktemp("registry") / "registry.sqlite"
    with open_registry(registry, who="Ada") as kept:
        version = kept.freeze(policy("words"), "tickets", why="the first")
        kept.promote(version.version, "tickets@production", override="for a look")
    with view(runs_dir, PCO_REGISTRY=str(registry)) as address:
        yield address


@contextmanager
def opened(browser: Any, width: int, scheme: str) -> Iterator[tuple[Any, Heard]]:
    context = browser.new_context(
        viewport={"width": width, "height": _SIZES[width]},
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    page, heard = context.new_page(), Heard()
    heard.of(page)
    yield page, heard
    context.close()


@pytest.fixture(scope="module")
def axe() -> str:
    """The accessibility checker's own script."""
    package = pytest.importorskip("axe_playwright_python")
    return (Path(package.__file__).parent / "axe.min.js").read_text("utf-8")


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


def small(png: bytes) -> Any:
    """The picture in grey at an eighth of its size."""
    import io

    from PIL import Image

    picture = Image.open(io.BytesIO(png)).convert("L")
    size = (picture.width // _EIGHTH, picture.height // _EIGHTH)
    return picture.resize(size, Image.Resampling.BOX)


def difference(a: Any, b: Any) -> float:
    """The mean difference of two pictures of one size, of 255."""
    from PIL import ImageChops, ImageStat

    return ImageStat.Stat(ImageChops.difference(a, b)).mean[0] if a.size == b.size else 255.0


def approved(name: str) -> Any:
    from PIL import Image

    with Image.open(_APPROVED / f"{name}.png") as picture:
        return picture.convert("L")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", _SIZES)
def test_every_screen_is_drawn_as_approved_readable_and_silent(
    browser: Any, base: str, keys: dict[str, str], axe: str, width: int, scheme: str
) -> None:
    with opened(browser, width, scheme) as (page, heard):
        for screen, path in SCREENS.items():
            page.goto(base + path.format(**keys))
            page.locator("#main").wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, screen
            drawn = small(page.screenshot())
            name = f"{screen}-{width}-{scheme}"
            if _APPROVE:
                _APPROVED.mkdir(exist_ok=True)
                drawn.save(_APPROVED / f"{name}.png", optimize=True)
            assert difference(drawn, approved(name)) <= _MOST, name
            if (width, scheme) in _CHECKED:
                assert faults(page, axe) == [], name
        assert heard.complaints == []
        assert heard.foreign(base) == []


def test_pictures_of_different_screens_are_not_taken_for_each_other() -> None:
    for width in _SIZES:
        for scheme in ("light", "dark"):
            pictures = [approved(f"{screen}-{width}-{scheme}") for screen in SCREENS]
            for i, one in enumerate(pictures):
                assert all(difference(one, other) > _MOST for other in pictures[i + 1 :])


def test_what_cannot_be_read_by_everybody_is_found(browser: Any, axe: str) -> None:
    with opened(browser, 400, "light") as (page, _):
        page.set_content("<html><body><button></button><input></body></html>")
        assert {fault.partition(":")[0] for fault in faults(page, axe)} >= {"button-name", "label"}


def test_all_screens_are_reached_by_keyboard(browser: Any, base: str, keys: dict[str, str]) -> None:
    with opened(browser, 1600, "light") as (page, heard):
        press = page.keyboard.press

        def go(*typed: str) -> str:
            for each in typed[:-1]:
                press(each)
            with page.expect_navigation():
                press(typed[-1])
            page.locator("#status, h1").first.wait_for()
            return page.url.removeprefix(base)

        page.goto(base)
        first = go("j", "Enter")
        assert re.fullmatch(r"/run/[^/]+", first)
        assert go("l") == f"{first}/codebook"
        assert go("j", "j", "k", "Enter") == f"{first}/codebook/0"
        assert go("u") == f"{first}/codebook"
        assert go("l") == f"{first}/examples"
        assert go("j", "Enter").startswith(f"{first}/example/")
        assert go("u") == f"{first}/examples"
        assert (
            go(
                "h",
            )
            == f"{first}/codebook"
        )
        assert go("u") == first
        assert go("u") == "/"
        press("j")
        for typed in ("Shift+Tab", "Space", "Tab", "Tab", "Space"):
            press(typed)
        assert go("Enter").startswith("/compare?run=")
        page.goto(base)
        assert go("Tab", "Tab", "Tab", "Enter") == "/registry"
        assert go("Tab", "Tab", "Tab", "Tab", "Enter") == "/paper"
        assert go("j", "Enter") == "/paper/main"
        assert heard.complaints == []


def test_a_search_leaves_what_fits_and_escape_brings_all_back(
    browser: Any, base: str, keys: dict[str, str]
) -> None:
    with opened(browser, 1600, "light") as (page, _):
        page.goto(f"{base}/run/{keys[SIMULATED]}/examples")
        rows = page.locator("tbody tr:visible")
        everything = rows.count()
        page.keyboard.press("/")
        page.keyboard.type("train-7")
        assert 0 < rows.count() < everything
        page.keyboard.press("Escape")
        assert rows.count() == everything
        page.keyboard.press("j")
        assert page.evaluate("document.activeElement.className") == "stop"


def test_texts_of_a_run_that_attack_do_nothing(
    browser: Any, base: str, keys: dict[str, str]
) -> None:
    with opened(browser, 1600, "light") as (page, heard):
        for path in _HOSTILE:
            url = f"{base}/run/{keys[HOSTILE_RUN]}{path}"
            page.goto(url)
            page.locator("footer").wait_for()
            assert page.url == url
            for details in page.locator("#main > section details > summary").all()[:4]:
                details.click()
            assert page.evaluate("document.scripts.length") == 1
            assert page.evaluate("[...document.querySelectorAll('base, iframe, img')].length") == 0
            assert page.evaluate("document.querySelectorAll('meta[http-equiv]').length") == 0
            hidden = "[...document.querySelectorAll('main, h1')].some((e) => !e.offsetParent)"
            assert not page.evaluate(hidden)
            loose = (
                "[...document.querySelectorAll('#main *')].filter((e) => [...e.childNodes].some("
                "(n) => n.nodeType === 3 && /[\\u202a-\\u202e\\u2066-\\u2069]/.test(n.data))"
                " && getComputedStyle(e).display.includes('inline')"
                " && getComputedStyle(e).unicodeBidi === 'normal').map((e) => e.outerHTML)"
            )
            assert [each for each in page.evaluate(loose) if "<ins>" not in each[:5]] == []
        assert heard.complaints == []
        assert heard.foreign(base) == []


def test_a_script_that_came_into_a_page_would_not_run(browser: Any, base: str) -> None:
    with opened(browser, 1600, "light") as (page, heard):
        page.goto(base)
        page.evaluate(
            "const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
            "document.body.append(s);"
            "const i = new Image(); i.src = 'http://127.0.0.2:1/x.png'; document.body.append(i)"
        )
        page.wait_for_timeout(200)
        assert page.evaluate("window.ran") is None
        assert any("Content Security Policy" in said for said in heard.complaints)


def test_a_figure_is_saved_as_svg_and_as_csv(browser: Any, base: str, keys: dict[str, str]) -> None:
    with opened(browser, 1600, "light") as (page, _):
        page.goto(f"{base}/run/{keys[SIMULATED]}")
        for kind, start in (("SVG", "<svg "), ("CSV", "series,step,")):
            with page.expect_download() as saving:
                page.get_by_label(f"Training reward as {kind}").click()
            assert saving.value.suggested_filename == f"training-reward.{kind.lower()}"
            text = Path(saving.value.path()).read_text("utf-8")
            assert text.startswith(start) and "simulated" in text


@pytest.mark.parametrize("width", _SIZES)
def test_the_report_is_readable_and_silent_without_a_network(
    browser: Any, runs_dir: Path, keys: dict[str, str], axe: str, tmp_path: Path, width: int
) -> None:
    target = tmp_path / "report.html"
    store = RunStore.open(runs_dir / keys[HOSTILE_RUN])
    try:
        write_report(store, target)
    finally:
        store.close()
    with opened(browser, width, "dark" if width == 400 else "light") as (page, heard):
        page.goto(target.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert heard.complaints == []
        assert heard.requests == [target.as_uri()]
    with opened(browser, width, "light") as (page, _):
        store = RunStore.open(runs_dir / keys[REAL])
        try:
            write_report(store, target)
        finally:
            store.close()
        page.goto(target.as_uri())
        assert faults(page, axe) == []


def test_a_page_follows_a_run_that_trains_and_survives_a_restart(
    browser: Any, tmp_path: Path
) -> None:
    home = tmp_path / "work"
    pco = [sys.executable, "-m", "promptcodebook.cli"]
    subprocess.run([*pco, "init", str(home)], check=True, capture_output=True)
    slow = "simulated?latency=0.05"
    settings = ["--lm", slow, "--preset", "quick", "--set", "update.epochs=1000"]
    runs = home / "runs"
    training = subprocess.Popen(
        [*pco, "train", *settings, "--plain"],
        cwd=home,
        env={**os.environ, "PCO_RUNS": str(runs)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        store = _first_run(runs)
        with opened(browser, 1600, "light") as (page, heard):
            with view(runs) as base:
                port = int(base.rpartition(":")[2])
                page.goto(f"{base}/run/{store.header.id}")
                lags = [_lag(page, store) for _ in range(5)]
                assert sorted(lags)[2] <= 1.0 * crowding(), lags
            page.get_by_text("The server does not answer").wait_for(timeout=5000)
            with view(runs, port):
                page.get_by_text("Up to date at").wait_for(timeout=10_000)
                assert _lag(page, store) <= 2.0 * crowding()
            complaints = [said for said in heard.complaints if "ERR_CONNECTION" not in said]
            assert [said for said in complaints if "ERR_INCOMPLETE" not in said] == []
        store.close()
    finally:
        training.kill()
        training.wait()


def test_a_page_that_nobody_sees_lets_go_of_its_connection_and_catches_up(
    browser: Any, base: str, keys: dict[str, str]
) -> None:
    hide = (
        "(hidden) => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: "
        "true}); document.dispatchEvent(new Event('visibilitychange')); }"
    )
    with opened(browser, 400, "light") as (page, heard):
        page.goto(f"{base}/run/{keys[REAL]}")
        page.get_by_text("Following.").wait_for()
        page.evaluate(hide, True)
        assert page.evaluate("news") is None
        page.evaluate(hide, False)
        assert page.evaluate("news !== null")
        live = [url for url in heard.requests if "/live/" in url]
        assert len(live) == 2
        assert heard.complaints == []


def test_a_page_says_that_its_run_is_gone(browser: Any, tmp_path: Path) -> None:
    store = write_run(tmp_path, ScriptedRun(steps=1, verdict=False, hostile=""))
    store.close()
    with view(tmp_path) as base, opened(browser, 400, "light") as (page, _):
        page.goto(f"{base}/run/{store.header.id}")
        page.get_by_text("Following.").wait_for()
        remove_run(store.path)
        page.get_by_text("This run is gone.").wait_for(timeout=5000)
        page.get_by_text(f"There is no run {store.header.id}").wait_for(timeout=1000)


def _first_run(runs: Path) -> RunStore:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for file in runs.glob("*/run.sqlite"):
            try:
                store = RunStore.open(file.parent)
            except Exception:
                continue
            if store.last_event() > 1:
                return store
            store.close()
        time.sleep(0.05)
    raise AssertionError("no run began")


def _lag(page: Any, store: RunStore) -> float:
    """Seconds from the next event's commit until the page shows it."""
    before, until = store.last_event(), time.monotonic() + 20
    while store.last_event() == before:
        assert time.monotonic() < until, "the run stands still"
        time.sleep(0.01)
    now, began = store.last_event(), time.monotonic()
    while int(page.evaluate("document.getElementById('main').dataset.mark.split('-')[1]")) < now:
        assert time.monotonic() < began + 20, "the page stands still"
        time.sleep(0.01)
    return time.monotonic() - began
