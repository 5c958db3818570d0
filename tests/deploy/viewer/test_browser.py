"""The viewer in a real browser: drawn, clicked through by keyboard, readable by everybody, and
silent: nothing on the console, no request to anywhere else.

Pictures are compared with approved ones at an eighth of their size, in grey, by their mean
difference: what moves or vanishes is seen, another machine's font is not. `APPROVE=1 pytest
tests/deploy/viewer/test_browser.py -m slow` approves what is drawn now.
"""

import io
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.report.page import write_report
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import remove_run
from tests.build.scripted_run import ScriptedRun, events_of, write_run
from tests.build.viewer import HOSTILE_RUN, IN_A_BROWSER, REAL, SIZES, faults, opened, view

pytest.importorskip("playwright.sync_api")
pytestmark = IN_A_BROWSER

_APPROVED = Path(__file__).with_name("approved")
_APPROVE = os.environ.get("APPROVE") == "1"
# How much smaller pictures are compared, and by how much of 255 they may differ in the mean.
_EIGHTH, _MOST = 8, 2.0
# Where axe looks: at both sizes, and at the contrast of both themes.
_CHECKED = ((400, "light"), (1600, "dark"))
SCREENS = {
    "runs": "/",
    "run": "/run/{simulated}",
    "grid": "/run/{simulated}/grid",
    "curves": "/run/{simulated}#training",
    "examples": "/run/{simulated}/examples",
    "failures": "/run/{real}#test",
    "example": "/run/{simulated}/example/train-3-1/4",
}
_HOSTILE = ("", "/grid", "/examples",
            "/example/train-3-1", "/example/test-5/test")  # fmt: skip


def difference(png: bytes, name: str) -> float:
    """The mean difference, of 255, from the approved picture: in grey at an eighth of the size."""
    from PIL import Image, ImageChops, ImageStat

    picture = Image.open(io.BytesIO(png)).convert("L")
    size = (picture.width // _EIGHTH, picture.height // _EIGHTH)
    drawn = picture.resize(size, Image.Resampling.BOX)
    if _APPROVE:
        drawn.save(_APPROVED / f"{name}.png", optimize=True)
    with Image.open(_APPROVED / f"{name}.png") as approved:
        assert approved.size == drawn.size
        return ImageStat.Stat(ImageChops.difference(drawn, approved.convert("L"))).mean[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
def test_every_screen_is_drawn_as_approved_readable_and_silent(
    browser: Any, base: str, keys: dict[str, str], axe: str, width: int, scheme: str
) -> None:
    with opened(browser, width, scheme) as (page, heard):
        for screen, path in SCREENS.items():
            page.goto(base + path.format(**keys))
            page.locator("#main").wait_for()
            page.wait_for_function("() => document.getElementById('status')?.textContent !== ''")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, screen
            name = f"{screen}-{width}-{scheme}"
            assert difference(page.screenshot(), name) <= _MOST, name
            if (width, scheme) in _CHECKED:
                assert faults(page, axe) == [], name
        assert heard.complaints == []
        assert heard.foreign(base) == []


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
        assert go("l") == f"{first}/grid"
        assert go("l") == f"{first}/examples"
        assert go("j", "Enter").startswith(f"{first}/example/")
        assert go("u") == f"{first}/examples"
        assert go("h") == f"{first}/grid"
        assert go("u") == first
        assert go("u") == "/"
        assert heard.complaints == []


def write_one(folder: Path) -> str:
    """The address of a report on 60 test inputs."""
    store, target = write_run(folder, ScriptedRun(steps=1, hostile="")), folder / "report.html"
    write_report(store, target)
    store.close()
    return target.as_uri()


@pytest.mark.parametrize("width", SIZES)
def test_test_inputs_are_filtered_sorted_searched_and_kept(
    browser: Any, tmp_path: Path, width: int
) -> None:
    with opened(browser, width, "light") as (page, heard):
        page.goto(write_one(tmp_path))
        rows, seek = page.locator(".answers tbody tr:visible"), page.locator(".seek")
        assert rows.count() == 0
        page.get_by_text("What is still wrong").click()
        assert rows.count() == 60 and "wrong" in rows.first.inner_text()
        for kind, count in (("wrong", 18), ("worse", 0), ("better", 18), ("all", 60)):
            page.locator(f".only input[value={kind}]").check(force=True)
            assert rows.count() == count, kind
        seek.fill("test-4")
        assert rows.count() == 11  # test-4 and test-40 to test-49
        page.locator(".only input[value=wrong]").check(force=True)
        assert rows.count() == 8
        if width > 1000:
            page.get_by_role("button", name="input").click()
            page.get_by_role("button", name="input").click()
            assert "test-49" in rows.first.inner_text()
        with page.expect_download() as saving:
            page.get_by_label("These test inputs as CSV").click()
        assert "test-49" in Path(saving.value.path()).read_text("utf-8")
        assert heard.complaints == []


def test_without_a_script_the_list_is_complete_and_filtered(browser: Any, tmp_path: Path) -> None:
    size = {"width": 1600, "height": 1000}
    context = browser.new_context(java_script_enabled=False, viewport=size)
    page = context.new_page()
    page.goto(write_one(tmp_path))
    page.get_by_text("What is still wrong").click()
    rows = page.locator(".answers tbody tr")
    assert rows.count() == 60 and not page.locator(".seek").is_visible()
    page.get_by_text("worse than before").click()
    assert [row.is_visible() for row in rows.all()[:3]] == [False] * 3
    page.get_by_text("all 60").click()
    context.close()


@pytest.mark.parametrize("width", SIZES)
def test_the_grid_is_filtered_and_opened_by_keyboard(
    browser: Any, base: str, keys: dict[str, str], width: int
) -> None:
    with opened(browser, width, "dark") as (page, heard):
        page.goto(f"{base}/run/{keys[REAL]}/grid")
        rows, press = page.locator(".matrix tbody tr:visible"), page.keyboard.press
        assert rows.count() == 60
        press("/")
        page.keyboard.type("test-4")
        assert rows.count() == 11
        with page.expect_navigation():
            press("Enter")
        assert rows.count() == 11 and "words=test-4" in page.url
        press("Tab")
        with page.expect_navigation():
            page.get_by_label("Which results").select_option("wrong")
        assert rows.count() == 8 and "only=wrong" in page.url
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        press("j")
        with page.expect_navigation():
            press("Enter")
        assert re.search(r"/example/test-4\d?/test$", page.url)
        assert heard.complaints == []


def test_runs_are_sorted_and_filtered(browser: Any, tmp_path: Path) -> None:
    for task, score in (("good", 0.9), ("bad", 0.3)):
        rows = (("present", "the present prompt", 0.5), ("learned", "the learned policy", score))
        write_run(tmp_path, ScriptedRun(1, 4, 2, 1, hostile="", task=task, rows=rows)).close()
    write_run(tmp_path, ScriptedRun(steps=4, verdict=False, hostile="", task="cut")).close()
    with view(tmp_path) as base, opened(browser, 400, "dark") as (page, heard):
        page.goto(f"{base}/?by=gain")
        ids = page.locator("table .id a")
        order = [each.rpartition("-")[2] for each in ids.all_inner_texts()]
        assert order == ["good", "bad", "cut"]
        assert all(box["height"] < 30 for box in (each.bounding_box() for each in ids.all()))
        page.get_by_label("Which runs").select_option("stopped")
        with page.expect_navigation():
            page.get_by_role("button", name="Show").click()
        assert ids.count() == 1 and "by=gain" in page.url
        assert heard.complaints == []


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
            assert page.evaluate("document.scripts.length") == 2
            foreign = "base, iframe, img:not([src^='data:image/png;base64,iVBOR'])"
            assert page.locator(foreign).count() == 0
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


@pytest.mark.parametrize("width", SIZES)
def test_the_report_is_readable_and_silent_without_a_network(
    browser: Any, runs_dir: Path, keys: dict[str, str], axe: str, tmp_path: Path, width: int
) -> None:
    for task, scheme in ((HOSTILE_RUN, "dark"), (REAL, "light")):
        target = tmp_path / f"{task}.html"
        store = RunStore.open(runs_dir / keys[task])
        write_report(store, target)
        store.close()
        with opened(browser, width, scheme) as (page, heard):
            page.goto(target.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert heard.complaints == [] and heard.requests == [target.as_uri()]
            assert task == HOSTILE_RUN or faults(page, axe) == []
    tampered = target.read_text("utf-8").replace("<style>", "<style>p{}", 1)
    target.write_text(tampered, "utf-8")
    with opened(browser, width, "light") as (page, _):
        refusal = "Content Security Policy"
        with page.expect_console_message(lambda message: refusal in message.text):
            page.goto(target.as_uri())


def test_a_page_follows_its_run_over_a_restart_and_an_end_until_it_is_gone(
    browser: Any, tmp_path: Path
) -> None:
    events = iter(list(events_of(ScriptedRun(steps=9, verdict=False, hostile="")))[1:])
    store = write_run(tmp_path, ScriptedRun(steps=0, verdict=False, hostile=""))

    def shows_the_next(page: Any, kept: RunStore) -> float:
        began = time.monotonic()
        kept.append(next(events))
        mark = "(n) => +document.getElementById('main').dataset.mark.split('-')[1] >= n"
        page.wait_for_function(mark, arg=kept.last_event(), timeout=120_000)
        return time.monotonic() - began

    with opened(browser, 1600, "light") as (page, heard):
        with view(tmp_path) as base:
            port = int(base.rpartition(":")[2])
            page.goto(f"{base}/run/{store.header.id}")
            page.get_by_text("Following.").wait_for()
            # The machine is busy at times, and not at each of them.
            assert min(shows_the_next(page, store) for _ in range(3)) < 1.0
            assert page.locator(".plot").first.is_visible()
        page.get_by_text("Connection lost").wait_for()
        with view(tmp_path, port):
            shows_the_next(page, store)
            page.get_by_text("Up to date at").wait_for()
            shows_the_next(page, store)
            store.close()
            page.reload()
            page.get_by_text("This run is not active.").wait_for()
            again = RunStore.open(store.path, write=True)
            shows_the_next(page, again)
            again.close()
            remove_run(store.path)
            page.get_by_text("This run no longer exists.").wait_for()
            page.get_by_text(f"There is no run {store.header.id}").wait_for()
        lines = [each for each in heard.complaints if "ERR_CONNECTION" not in each]
        assert [each for each in lines if "ERR_INCOMPLETE" not in each and "404" not in each] == []


def test_a_page_that_nobody_sees_lets_go_of_its_connection_and_catches_up(
    browser: Any, tmp_path: Path
) -> None:
    hide = (
        "(hidden) => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: "
        "true}); document.dispatchEvent(new Event('visibilitychange')); }"
    )
    store = write_run(tmp_path, ScriptedRun(steps=1, verdict=False, hostile=""))
    with view(tmp_path) as base, opened(browser, 400, "light") as (page, heard):
        page.goto(f"{base}/run/{store.header.id}")
        page.get_by_text("Following.").wait_for()
        page.evaluate(hide, True)
        assert page.evaluate("news") is None
        with page.expect_request("**/live/**"):
            page.evaluate(hide, False)
        assert page.evaluate("news !== null")
        assert len([url for url in heard.requests if "/live/" in url]) == 2
        assert heard.complaints == []
    store.close()
