"""The page in a real browser: it is drawn, and the browser has nothing to complain about."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from promptcodebook.report import write_report
from promptcodebook.store.run import RunStore
from tests.report.scripted_run import ScriptedRun

_CHROMIUM = Path("/usr/bin/chromium")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _CHROMIUM.exists(), reason=f"there is no {_CHROMIUM} here"),
]


def open_page(page: Path, folder: Path) -> tuple[str, Path]:
    """What the browser logged, and its picture of the page."""
    picture = folder / "page.png"
    done = subprocess.run(
        [
            str(_CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--enable-logging=stderr",
            "--virtual-time-budget=2000",
            "--window-size=1200,2400",
            f"--screenshot={picture}",
            f"--user-data-dir={folder / 'browser'}",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stderr, picture


def test_the_page_opens_without_a_complaint(
    write: Callable[[ScriptedRun], RunStore], tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    write_report(write(ScriptedRun()), page)
    log, picture = open_page(page, tmp_path)
    assert "CONSOLE" not in log
    assert picture.stat().st_size > 50_000


def test_a_tampered_style_sheet_is_refused_by_the_policy(
    write: Callable[[ScriptedRun], RunStore], tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    write_report(write(ScriptedRun(steps=2)), page)
    page.write_text(page.read_text("utf-8").replace("<style>", "<style>p{}", 1), "utf-8")
    log, _ = open_page(page, tmp_path)
    assert "CONSOLE" in log
