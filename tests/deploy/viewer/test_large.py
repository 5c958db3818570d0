"""A run of 50 epochs of 150 examples with full traces: opened at once, and mailed as one file."""

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from promptcodebook.deploy.viewer import screens
from promptcodebook.deploy.viewer.following import FollowedRun
from promptcodebook.deploy.viewer.grid import GridFilter, grid_screen
from promptcodebook.report.page import render_report
from promptcodebook.store.events import Stepped
from promptcodebook.store.run import RunStore
from promptcodebook.types import Example
from tests.build.scripted_run import ScriptedRun, events_of, write_run

pytestmark = pytest.mark.slow
_TEXT = " ".join(f"word{n % 97}" for n in range(250))
MOST_BYTES = 8_000_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 10 kB of texts a trace."""
    run = ScriptedRun(steps=50, batch=150, hostile=_TEXT)
    store = write_run(tmp_path_factory.mktemp("large"), run)
    store.close()
    return store.path


def _grid(followed: FollowedRun) -> screens.Screen:
    return grid_screen(followed, GridFilter())


def test_every_screen_of_a_large_run_opens_within_two_seconds(large: Path) -> None:
    def seconds(screen: Callable[[FollowedRun], screens.Screen], followed: FollowedRun) -> float:
        began = time.process_time()
        screens.page_of(screen(followed), "/")
        return time.process_time() - began

    for first in (screens.run_screen, _grid, screens.examples_screen):
        followed = FollowedRun(large, large.name)
        assert seconds(first, followed) <= 2.0
        for again in (screens.run_screen, _grid):
            assert seconds(again, followed) <= 1.0
        followed.close()


def test_the_file_of_a_large_run_can_be_mailed_and_says_that_it_is_a_sample(large: Path) -> None:
    store = RunStore.open(large)
    source = render_report(store, {f"test-{n}": Example(f"test-{n}", _TEXT) for n in range(60)})
    store.close()
    assert len(source.encode()) <= MOST_BYTES
    assert "Some test inputs, with their prompts" in source


def test_long_lives_of_many_instincts_are_cut_until_the_file_can_be_mailed(tmp_path: Path) -> None:
    draw = random.Random(3)
    words = [f"w{draw.randrange(10**6)}" for _ in range(3000)]

    def text() -> str:
        return " ".join(draw.choices(words, k=400))

    run = ScriptedRun(steps=0, size=64, verdict=False, hostile="")
    store = write_run(tmp_path, run)
    try:
        for event in events_of(replace(run, steps=600, batch=2)):
            if isinstance(event, Stepped):
                rewrites = tuple(
                    replace(r, before=text(), after=text(), gradient=text())
                    for r in event.step.rewrites
                )
                store.append(Stepped(replace(event.step, rewrites=rewrites)))
        source = render_report(store)
    finally:
        store.close()
    assert len(source.encode()) <= MOST_BYTES
    assert "the first 3 and the latest 5 rewrites are shown" in source  # else 6 and 14
