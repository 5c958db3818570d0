"""The viewer in a real browser: drawn, clicked through by keyboard, readable by everybody, and
silent: nothing on the console, no request to anywhere else.

Pictures are compared with approved ones at an eighth of their size, in grey, by their mean
difference: what moves or vanishes is seen, another machine's font is not. `APPROVE=1 pytest
tests/viewer/test_browser.py -m slow` approves what is drawn now.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.report import write_report
from promptcodebook.store.run import RunStore
from tests.viewer.chromium import IN_A_BROWSER, SIZES, faults, opened
from tests.viewer.conftest import HOSTILE_RUN, REAL, SIMULATED

pytest.importorskip("playwright.sync_api")
pytestmark = IN_A_BROWSER

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
    "curves": "/run/{simulated}#training",
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
    for width in SIZES:
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
        assert go("h") == f"{first}/codebook"
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
            assert page.evaluate("document.scripts.length") == 2
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
    with opened(browser, width, "light") as (page, heard):
        page.goto(target.as_uri())
        assert any("Content Security Policy" in said for said in heard.complaints)
