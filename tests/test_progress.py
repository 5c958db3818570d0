"""A run in Python says how it goes, in the log."""

from __future__ import annotations

import io
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import promptcodebook as pco
from promptcodebook.calls import Limits, Usage
from promptcodebook.progress import Began, Note, Phase, ProgressLine, Spent, StepDone, watch
from promptcodebook.step import Step
from promptcodebook.types import Codebook, Parameters
from tests.run.test_optimize import QUICK, data, train


def test_every_step_and_validation_is_logged_and_labelled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "promptcodebook.progress")
    run = train(tmp_path)
    said = [r.getMessage() for r in caplog.records if r.name == "promptcodebook.progress"]
    assert all(line.startswith("[simulated] ") for line in said)
    assert f"run {run.id} in " in said[0]
    assert [line.split(":")[0] for line in said if "step 3 of 3" in line] == [
        "[simulated] step 3 of 3"
    ]
    assert any("validation untrained: " in line for line in said)


BEGAN = Began("r1", "runs/r1", 10, 0, 16, {}, simulated=False)


class Clock:
    """Seconds that the test says."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Screen(io.StringIO):
    encoding = None  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def _line(stream: io.StringIO) -> tuple[ProgressLine, Callable[[float], None]]:
    clock = Clock()

    def wait(seconds: float) -> None:
        clock.now += seconds

    return ProgressLine(stream, clock), wait


def test_a_line_tells_how_far_it_is_and_how_long_it_takes_after_two_seconds() -> None:
    stream = io.StringIO()
    line, wait = _line(stream)
    line(BEGAN)
    line(Phase("judging learned", 0, 40))
    wait(1.5)
    line(Phase("judging learned", 10, 40))
    assert stream.getvalue() == ""
    wait(1.5)
    line(Phase("judging learned", 20, 40))
    assert stream.getvalue() == "pco judging learned: 20 of 40, about 3.0 s left\n"
    wait(3)
    line(Phase("judging learned", 30, 40))  # too soon for a second line where none is redrawn
    assert stream.getvalue().count("\n") == 1
    wait(8)
    line(Spent({"executor": Usage(calls=372)}, {}))
    assert stream.getvalue().count("\n") == 2


def test_on_a_terminal_one_line_is_redrawn_and_taken_away() -> None:
    stream = Screen()
    line, wait = _line(stream)
    line(replace(BEGAN, simulated=True))
    wait(3)
    line(Spent({"executor": Usage(calls=372)}, {}))
    shown = "pco [simulated] step 0 of 10, calls 372"
    assert stream.getvalue() == "\r" + shown
    wait(1)
    line(Note("look here"))
    assert stream.getvalue().startswith("\r" + shown + "\r" + " " * len(shown) + "\r")
    line.close()
    assert "\n" not in stream.getvalue()


def test_where_it_can_be_shown_a_bar_stands_in_the_line() -> None:
    stream = Screen()
    stream.encoding = "UTF-8"  # type: ignore[misc]
    line, wait = _line(stream)
    line(Phase("evaluating tickets", 0, 40))
    wait(3)
    line(Phase("evaluating tickets", 10, 40))
    assert stream.getvalue() == "\rpco ███░░░░░░░░░ evaluating tickets: 10 of 40, about 9.0 s left"


def test_the_line_shows_calls_beside_their_limit_and_what_was_lost() -> None:
    stream = io.StringIO()
    line, wait = _line(stream)
    line(BEGAN)
    wait(3)
    line(Spent({"executor": Usage(calls=370)}, {}, Usage(calls=2), Limits(calls=400)))
    assert stream.getvalue() == "pco step 0 of 10, calls 372 of 400, lost 2\n"


def _full(stream: io.StringIO) -> str:
    """The line of a long run with everything to tell."""
    line, wait = _line(stream)
    line(replace(BEGAN, steps=500, simulated=True))
    wait(600)
    parameters = Parameters("", "", Codebook(()), "")
    line(StepDone(Step(11, 0, 0.1, (), (), parameters, (), (), ()), 600.0))
    line(Spent({"executor": Usage(calls=12040)}, {}, Usage(calls=12), Limits(calls=50000)))
    return stream.getvalue().splitlines()[-1]


def test_what_has_no_room_in_the_line_is_a_fact_and_not_the_time_left() -> None:
    shown = _full(io.StringIO())
    assert shown == "pco [simulated] step 12 of 500, about 6 h 46 min left, reward none"


def test_the_line_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "fileno", lambda: 1, raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((60, 24)))
    assert _full(stream) == "pco [simulated] step 12 of 500, about 6 h 46 min left"


def test_a_stream_that_nobody_reads_any_more_stops_no_run() -> None:
    stream = io.StringIO()
    line, wait = _line(stream)
    line(BEGAN)
    wait(3)
    stream.close()
    line(Phase("judging", 0, 4))


def test_who_listens_gets_the_events_in_place_of_the_line() -> None:
    stream, heard = io.StringIO(), list[object]()
    with watch(heard.append, stream) as watcher:
        watcher(BEGAN)
    assert heard == [BEGAN]
    assert stream.getvalue() == ""


@pytest.mark.parametrize("progress", [True, False])
def test_a_run_shows_its_line_unless_told_not_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], progress: bool
) -> None:
    began = time.monotonic()

    def slow(example: pco.Example, output: str) -> float:
        time.sleep(max(0.0, began + 2.5 - time.monotonic()))
        return float((example.target or "") in output)

    pco.optimize(data(), slow, "simulated", config=QUICK, runs_dir=tmp_path, progress=progress)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("pco [simulated] " in err) is progress
