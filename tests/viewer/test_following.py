"""Pages that follow what they show, in a real browser: a run that trains, a server that is started
anew, a page that nobody sees."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import remove_run
from tests.load import crowding
from tests.report.scripted_run import ScriptedRun, events_of, write_run
from tests.viewer.chromium import IN_A_BROWSER, opened, view

pytest.importorskip("playwright.sync_api")
pytestmark = IN_A_BROWSER


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
                page.get_by_text("Up to date at").wait_for(timeout=20_000 * crowding())
                assert _lag(page, store) <= 2.0 * crowding()
            complaints = [said for said in heard.complaints if "ERR_CONNECTION" not in said]
            assert [said for said in complaints if "ERR_INCOMPLETE" not in said] == []
        store.close()
    finally:
        training.kill()
        training.wait()


def test_a_page_that_nobody_sees_lets_go_of_its_connection_and_catches_up(
    browser: Any, tmp_path: Path
) -> None:
    hide = (
        "(hidden) => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: "
        "true}); document.dispatchEvent(new Event('visibilitychange')); }"
    )
    store = write_run(tmp_path, ScriptedRun(steps=1, verdict=False, hostile=""))
    try:
        with view(tmp_path) as base, opened(browser, 400, "light") as (page, heard):
            page.goto(f"{base}/run/{store.header.id}")
            page.get_by_text("Following.").wait_for()
            page.evaluate(hide, True)
            assert page.evaluate("news") is None
            page.evaluate(hide, False)
            assert page.evaluate("news !== null")
            live = [url for url in heard.requests if "/live/" in url]
            assert len(live) == 2
            assert heard.complaints == []
    finally:
        store.close()


def test_pages_of_runs_that_nobody_writes_leave_the_connections_to_those_that_train(
    browser: Any, base: str, keys: dict[str, str]
) -> None:
    """A browser keeps six connections to one server."""
    context = browser.new_context()
    for key in [*keys.values(), *keys.values()]:
        page = context.new_page()
        page.goto(f"{base}/run/{key}", timeout=20_000 * crowding())
        page.get_by_text("Not running now.").wait_for()
    assert len(context.pages) == 8 and not context.pages[0].evaluate("document.hidden")
    page.wait_for_timeout(2500)
    assert page.get_by_text("Not running now.").is_visible()
    context.close()


def test_a_page_at_rest_sees_that_its_run_goes_on(browser: Any, tmp_path: Path) -> None:
    events = list(events_of(ScriptedRun(steps=2, verdict=False, hostile="")))
    store = write_run(tmp_path, ScriptedRun(steps=0, verdict=False, hostile=""))
    store.close()
    with view(tmp_path) as base, opened(browser, 400, "light") as (page, heard):
        page.goto(f"{base}/run/{store.header.id}")
        page.get_by_text("Not running now.").wait_for()
        again = RunStore.open(store.path, write=True)
        try:
            for event in events[1:]:
                again.append(event)
            page.get_by_text("Up to date at").wait_for(timeout=4000 * crowding())
            assert page.locator(".plot").first.is_visible()
        finally:
            again.close()
        assert heard.complaints == []


def test_a_page_says_that_its_run_is_gone(browser: Any, tmp_path: Path) -> None:
    store = write_run(tmp_path, ScriptedRun(steps=1, verdict=False, hostile=""))
    store.close()
    with view(tmp_path) as base, opened(browser, 400, "light") as (page, _):
        page.goto(f"{base}/run/{store.header.id}")
        page.get_by_text("Not running now.").wait_for()
        remove_run(store.path)
        page.get_by_text("This run is gone.").wait_for(timeout=5000)
        page.get_by_text(f"There is no run {store.header.id}").wait_for(timeout=1000)


def _first_run(runs: Path) -> RunStore:
    until = time.monotonic() + 30 * crowding()
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
