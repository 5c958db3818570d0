"""An effect measured by a click, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.store.effects import read_effects
from tests.cli.invoked import pco
from tests.store.edit import edit_header
from tests.viewer.chromium import IN_A_BROWSER, faults, opened, view

pytest.importorskip("playwright.sync_api")
pytestmark = IN_A_BROWSER


def test_an_effect_is_measured_by_a_click_and_the_page_shows_it_come(
    browser: Any, tmp_path: Path, axe: str
) -> None:
    assert pco("init", cwd=tmp_path).code == 0
    assert pco("train", "--preset", "quick", "--set", "update.epochs=2", cwd=tmp_path).code == 0
    [run] = (tmp_path / "runs").iterdir()
    slower = '"simulated?latency=0.05"'
    edit_header(run / "run.sqlite", lambda text: text.replace('"simulated"', slower))
    with view(run.parent) as base, opened(browser, 400, "light") as (page, heard):
        page.goto(f"{base}/run/{run.name}/codebook/0")
        page.get_by_text("Not measured yet.").wait_for()
        told = page.locator("#measured li").nth(2).inner_text()
        assert re.fullmatch(r"train: about \d+ of 12 inputs .* about \d+ calls, about \$0", told)
        page.get_by_label("Split").select_option("train")
        budget = page.get_by_label("Spend at most")
        assert budget.input_value().endswith("calls")
        budget.fill("300calls")
        budget.press("j")  # a letter, and no key of the page
        assert budget.input_value() == "300callsj"
        budget.fill("300calls")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert faults(page, axe) == []
        page.get_by_role("button", name="Measure").click()
        page.get_by_role("button", name="Stop").wait_for()
        page.evaluate("window.same = true")
        page.get_by_text("Measured on the train split.").wait_for()
        assert page.evaluate("window.same") is True  # the page was told, and not asked for again
        [kept] = read_effects(run)
        assert kept.difference is not None
        assert f"{kept.difference.mean:+.3f}" in page.locator("#measured table").inner_text()
        assert faults(page, axe) == []
        assert heard.complaints == [] and heard.foreign(base) == []
