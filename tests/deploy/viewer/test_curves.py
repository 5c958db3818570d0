"""Curves that answer, in a real browser: what they say is what their files hold."""

import base64
import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.report.page import write_report
from promptcodebook.store.run import RunStore
from tests.build.scripted_run import ScriptedRun, events_of, write_run
from tests.build.viewer import IN_A_BROWSER, SIMULATED, opened, view

pytest.importorskip("playwright.sync_api")
pytestmark = IN_A_BROWSER

_CHARTS = 6


class Shown:
    """One chart of a page, by its title."""

    def __init__(self, page: Any, title: str) -> None:
        self.page = page
        self.figure = page.locator("figure").filter(has=page.locator("h4", has_text=title)).first
        self.plot = self.figure.locator(".plot")
        self.over = self.figure.locator(".over")

    def filed(self) -> dict[str, dict[float, list[str]]]:
        """What its CSV file has: by series and step, value, low and high."""
        link = self.figure.locator("a[download$='.csv']").get_attribute("href")
        text = base64.b64decode(link.partition(",")[2]).decode()
        series: dict[str, dict[float, list[str]]] = {}
        for name, x, *values, _ in list(csv.reader(text.splitlines()))[1:]:
            series.setdefault(name, {})[float(x)] = values
        return series

    def legend(self) -> tuple[float, dict[str, str]]:
        """The step in its legend, and the value of each series."""
        step = self.figure.locator(".at").inner_text().rpartition(" ")[2]
        entries = self.figure.locator(".entry").all()
        values = {e.inner_text(): e.locator("b").inner_text() for e in entries}
        return float(step), {name.removesuffix(v).strip(): v for name, v in values.items()}

    def hover(self, share: float) -> None:
        """Puts the pointer at a share of its width."""
        self.over.scroll_into_view_if_needed()
        size = self.over.bounding_box()
        self.page.mouse.move(size["x"] + share * size["width"], size["y"] + size["height"] / 2)

    def drag(self, start: float, end: float) -> None:
        self.hover(start)
        self.page.mouse.down()
        self.hover((start + end) / 2)
        self.hover(end)
        self.page.mouse.up()

    def range(self) -> tuple[float, float]:
        """The steps that are told at its first and at its last place."""
        ends: list[float] = []
        for share in (0.001, 0.999):
            self.hover(share)
            ends.append(self.legend()[0])
        return ends[0], ends[1]

    def agrees(self) -> None:
        """What it tells is what the file has at that step."""
        step, values = self.legend()
        filed = self.filed()
        for name, value in values.items():
            row = [float(each) for each in filed[name].get(step, []) if each]
            numbers = [float(each.replace(",", "")) for each in value.split(" to ") if each != "—"]
            assert numbers == pytest.approx(row, rel=1e-3, abs=1e-4), (name, step)


@pytest.fixture(params=["viewer", "report"])
def address(
    request: pytest.FixtureRequest, base: str, runs_dir: Path, keys: dict[str, str], tmp_path: Path
) -> str:
    """A page with the curves of the simulated run: live, and as a file."""
    if request.param == "viewer":
        return f"{base}/run/{keys[SIMULATED]}"
    store = RunStore.open(runs_dir / keys[SIMULATED])
    try:
        write_report(store, tmp_path / "report.html")
    finally:
        store.close()
    return (tmp_path / "report.html").as_uri()


@pytest.fixture
def chart(browser: Any, address: str) -> Iterator[Callable[[str], Shown]]:
    with opened(browser, 1600, "light") as (page, heard):
        page.goto(address)
        page.locator(".chart.answers").nth(_CHARTS - 1).wait_for()
        yield lambda title: Shown(page, title)
        assert heard.complaints == []


def test_a_pointer_is_told_what_the_file_has_and_a_drag_zooms_all_charts_at_once(
    chart: Callable[[str], Shown],
) -> None:
    reward, entropy = chart("Training reward"), chart("Routing entropy")
    everything = reward.range()
    reward.drag(0.3, 0.7)
    first, last = reward.range()
    assert everything[0] < first < last < everything[1]
    assert entropy.range() == (first, last)
    reward.agrees()
    entropy.over.dblclick()
    assert reward.range() == everything
    assert not reward.figure.locator(".legend:not(.values)").is_visible()
    seen: set[float] = set()
    for share in (0.05, 0.5, 0.95):
        reward.hover(share)
        reward.agrees()
        step, values = reward.legend()
        assert set(values) == {"batch mean", "mean of 10 steps", "± 1 sd"}
        assert entropy.legend()[0] == step
        entropy.agrees()
        seen.add(step)
    assert len(seen) == 3
    validation = chart("Validation reward")
    validation.hover(0.99)
    validation.agrees()
    _, values = validation.legend()
    low, _, high = values["95 %, subset"].partition(" to ")
    assert float(low) < float(values["subset"]) < float(high)


def test_the_keyboard_moves_zooms_and_is_told(chart: Callable[[str], Shown]) -> None:
    reward, other = chart("Training reward"), chart("Exploration")
    reward.plot.focus()
    press, told = reward.page.keyboard.press, reward.figure.locator(".told")
    for key, step in (("Home", 1), ("ArrowRight", 2), ("ArrowRight", 3), ("End", 12)):
        press(key)
        assert told.inner_text().startswith(f"step {step}: batch mean ")
        assert reward.legend()[0] == other.legend()[0] == step
        reward.agrees()
    assert told.get_attribute("aria-live") == "polite"
    assert other.figure.locator(".told").inner_text() == ""
    press("+")
    press("Home")
    assert reward.legend()[0] > 5
    assert reward.range() == other.range()
    press("0")
    press("Home")
    assert reward.legend()[0] == 1
    press("ArrowRight")
    press("ArrowRight")
    press("+")
    press("ArrowRight")
    assert reward.legend()[0] == 4  # it zoomed where it stood, at 3


def test_paper_and_a_page_without_scripts_have_the_whole_drawing(
    browser: Any, address: str
) -> None:
    with opened(browser, 1600, "light") as (page, _):
        page.goto(address)
        chart = Shown(page, "Training reward")
        path = chart.figure.locator("path.main")
        whole = path.get_attribute("d")
        chart.drag(0.3, 0.7)
        assert path.get_attribute("d") != whole
        chart.figure.get_by_role("button", name="batch mean").click()
        page.emulate_media(media="print")
        page.wait_for_function("() => !document.querySelector('.field.zoomed')")
        assert path.get_attribute("d") == whole
        assert chart.figure.locator("circle.dot").first.is_visible()
        assert not chart.figure.locator(".legend.values").is_visible()
        page.emulate_media(media="screen")
        page.wait_for_function("() => document.querySelector('.field.zoomed')")
        assert not chart.figure.locator("circle.dot").first.is_visible()
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    figure = Shown(page, "Training reward").figure
    assert figure.locator("svg path.main").is_visible() and figure.locator(".over").count() == 0
    assert figure.locator(".legend").is_visible()
    context.close()


def test_a_chart_that_cannot_be_made_to_answer_stays_a_drawing(browser: Any, address: str) -> None:
    with opened(browser, 1600, "light") as (page, heard):
        page.add_init_script("window.TextDecoder = undefined")
        page.goto(address)
        figures = [Shown(page, title).figure for title in ("Training reward", "Utilisation")]
        assert all(figure.locator("svg path").first.is_visible() for figure in figures)
        assert all(figure.locator(".legend:not(.values)").is_visible() for figure in figures)
        assert page.locator(".legend.values, .over, p.told").count() == 0
        assert heard.complaints


def test_news_of_a_run_leave_zoom_cursor_focus_and_what_was_put_away(
    browser: Any, tmp_path: Path
) -> None:
    long = list(events_of(ScriptedRun(steps=9, verdict=False, hostile="")))
    store = write_run(tmp_path, ScriptedRun(steps=0, verdict=False, hostile=""))
    for event in long[1:7]:
        store.append(event)
    try:
        with view(tmp_path) as base, opened(browser, 1600, "light") as (page, heard):
            page.goto(f"{base}/run/{store.header.id}")
            chart = Shown(page, "Training reward")
            page.get_by_text("Following.").wait_for()
            chart.figure.get_by_role("button", name="batch mean").click()
            chart.plot.focus()
            for key in ("End", "ArrowLeft", "+"):
                page.keyboard.press(key)
            before = chart.legend()
            assert before[0] == 4
            for event in long[7:]:
                store.append(event)
            page.wait_for_function(
                "() => document.querySelector('.chart .plot').ariaLabel.includes('at 9')"
            )
            assert chart.legend() == before
            away = chart.figure.get_by_role("button", name="batch mean")
            assert away.get_attribute("aria-pressed") == "false"
            assert page.evaluate("document.activeElement.className") == "plot"
            page.keyboard.press("End")
            assert chart.legend()[0] < 9
            page.keyboard.press("0")
            page.keyboard.press("End")
            assert chart.legend()[0] == 9
            chart.agrees()
            assert page.locator(".over").count() == _CHARTS
            assert heard.complaints == []
    finally:
        store.close()
