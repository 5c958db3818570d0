"""The list of runs: up to date whatever was written last, cheap to follow, and open about what it
cannot read."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from promptcodebook.calls import Usage
from promptcodebook.store.events import Validated
from promptcodebook.store.run import RunStore
from promptcodebook.types import Evaluation, Rollout
from promptcodebook.viewer.lists import Runs
from promptcodebook.viewer.page import page_of
from tests.report.scripted_run import ScriptedRun, write_run
from tests.report.strict import flat

_RUN = ScriptedRun(steps=12, size=6, select=2, batch=2, hostile="", verdict=False)


def validated(step: int, score: float, n: int) -> Validated:
    rollouts = tuple(Rollout(f"v-{i}", output="o", reward=score) for i in range(n))
    return Validated(step, "subset", Evaluation("val", "val", rollouts))


def markup_of(runs: Runs) -> str:
    return page_of(runs.screen(), "/").decode()


def test_what_was_written_after_the_last_step_is_in_the_list(tmp_path: Path) -> None:
    store = write_run(tmp_path, _RUN)
    runs = Runs(tmp_path)
    assert "2 scores from 0.400 to 0.500" in markup_of(runs)
    store.append(validated(11, 0.9, 20))
    store.close()  # the same step, and no end: as after a kill
    assert "3 scores from 0.400 to 0.900" in markup_of(runs) and "0.900 n = 20" in flat(
        markup_of(runs)
    )


def test_calls_after_the_last_event_are_in_the_list(tmp_path: Path) -> None:
    store = write_run(tmp_path, _RUN)
    runs = Runs(tmp_path, kept_s=0.0)
    before, text = runs.mark(), flat(markup_of(runs))
    usage = Usage(100, 1, 1, 1, 0.0, 100)
    store.attempt_log.end(store.attempt_log.begin("executor", usage), "executor", usage, False)
    store.flush()
    store.close()
    assert runs.mark() != before
    assert " 510 " in text and " 610 " in flat(markup_of(runs))


def test_the_n_beside_the_best_validation_is_its_own(tmp_path: Path) -> None:
    store = write_run(tmp_path, _RUN)
    store.append(validated(11, 0.1, 7))
    store.close()
    text = flat(markup_of(Runs(tmp_path)))
    assert "n = 20" in text and "n = 7" not in text


def test_a_run_that_cannot_be_read_is_told_on_the_screen_and_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_run(tmp_path, _RUN).close()
    bad = tmp_path / "20260101-000000-bad"
    bad.mkdir()
    (bad / "run.sqlite").write_bytes(b"no database" * 100)
    runs = Runs(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            (bad / "run.sqlite").touch()
            text = flat(markup_of(runs))
    assert f"1 run cannot be read: {bad.name}" in text and "Next: " in text
    assert len(caplog.records) == 1


def test_all_pages_share_one_look_at_the_files(tmp_path: Path) -> None:
    store = write_run(tmp_path, _RUN)
    runs = Runs(tmp_path, kept_s=60.0)
    before = runs.mark()
    store.append(validated(11, 0.9, 20))
    store.close()
    assert runs.mark() == before
    fresh = re.search('data-mark="([^"]*)"', markup_of(runs))
    assert fresh is not None and fresh[1] != before  # a page that is asked for is up to date


def test_a_run_is_read_again_only_when_its_files_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, _RUN).close()
    runs = Runs(tmp_path)
    first = flat(markup_of(runs))
    opened: list[Path] = []
    monkeypatch.setattr(RunStore, "open", opened.append)
    assert flat(markup_of(runs)) == first and opened == []
