"""How a run is followed: in the log, as lines, and in one line that is redrawn."""

import io
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import pytest

from promptcodebook import types
from promptcodebook.calls import Limits, Usage
from promptcodebook.progress import (
    QUIET_S,
    Began,
    Lines,
    Note,
    Phase,
    ProgressEvent,
    ProgressLine,
    Spent,
    StepDone,
    ValidationDone,
    counting,
    watch,
)
from tests.build.cli import ESC, began, script, step
from tests.build.optimize import train

BEGAN = Began("r1", "runs/r1", 10, 0, 16, {}, simulated=False)


class Clock:
    """Seconds that the test says."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


LOST = Spent(
    {"executor": Usage(370, 900, 100, 0, 0.2)},
    {},
    Usage(2, 8000, 4000, 0, 0.05),
    Limits(400, 90_000),
)


def test_every_step_and_validation_is_logged_and_labelled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "promptcodebook.progress")
    run = train(tmp_path)
    messages = [r.getMessage() for r in caplog.records if r.name == "promptcodebook.progress"]
    assert all(line.startswith("[simulated] ") for line in messages)
    assert f"run {run.id} in {run.path}: 3 steps" in messages[0]
    assert sum(line.startswith("[simulated] step 3 of 3  reward ") for line in messages) == 1
    assert any("validation untrained: " in line for line in messages)


def test_lines_say_what_happened_in_order(clock: Clock) -> None:
    stream = io.StringIO()
    with Lines(stream, clock) as lines:
        for event in script(steps=2):
            lines(event)
            clock.now += 2.0
        lines(Note("stopping: waiting for calls in flight"))
    assert stream.getvalue().splitlines() == [
        "[simulated] run 20260131-x in runs/20260131-x: 20 steps, K = 16, simulated",
        "[simulated] validation untrained: 0.250 (n = 1), best",
        "[simulated] step 1 of 20  reward 0.000  epsilon 0.50  entropy 1.00 bits  utilisation 12 %"
        "  1 failed",
        "[simulated] step 2 of 20  reward 0.050  epsilon 0.50  entropy 1.00 bits  utilisation 12 %"
        "  2 failed  15 calls, 1.1k tokens  cost unknown",
        "validating step 12: 0 of 8",
        "validating step 12: 4 of 8",
        "stopping: waiting for calls in flight",
    ]


@pytest.mark.parametrize("before", [0, 7])
def test_the_time_left_is_told_from_ten_answers_on(clock: Clock, before: int) -> None:
    """The first answers wait for a model to be loaded: of a phase, and of training's steps."""
    stream = io.StringIO()
    lines = Lines(stream, clock)
    lines(began(4))
    for done in range(before, 25):
        clock.now += 5.0
        lines(Phase("judging learned", done, 400))
        assert (" left" in stream.getvalue()) is (done >= before + 10), done
    stream.truncate(0)
    for index in range(9):
        lines(StepDone(step(index, 4), 3.0))  # of two answers
        assert (" left" in stream.getvalue()) is (index >= 4), index


SCORED = types.Evaluation("x", "val", (types.Rollout("v", reward=0.5),))


@pytest.mark.parametrize(("events", "message"), [
    ([LOST, StepDone(step(0, 4), 3.0)], "372 of 400 calls, 13k of 90k tokens  $0.25  2 lost\n"),
    # Of a router that learns from outcomes: neither ε nor entropy.
    ([StepDone(replace(step(1, 4), ranking=types.Ranking((), 1.0, (), ())), 3.0, 0.25)],
     "step 2  25 % of inputs solved so far  reward of rollouts 0.050  utilisation 50 %"),
    ([replace(began(4), first=3)], "x: step 4 of 20, K = 4, simulated\n"),
    ([replace(began(4), first=20)], "x: all 20 steps are done, K = 4, simulated\n"),
    ([replace(began(4), steps=0)], "x: simulated\n"),
    ([ValidationDone(4, SCORED, False, True)], "keep: validation after step 5: 0.500 (n = 1)"),
    ([ValidationDone(4, types.Evaluation("x", "val", ()), False)], "after step 5: none (n = 0)\n"),
    ([Note(f"a model wrote {ESC}[2J{ESC}]0;title\x07 and \ud800")],
     "a model wrote  [2J ]0;title  and ?\n"),
])  # fmt: skip
def test_a_line_says(events: list[ProgressEvent], message: str) -> None:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, "utf-8")
    lines = Lines(stream)
    for event in events:
        lines(event)
    written = buffer.getvalue().decode()
    assert message in written and ESC not in written


def test_a_phase_is_said_at_most_every_two_seconds(clock: Clock) -> None:
    stream = io.StringIO()
    lines = Lines(stream, clock)
    for done in range(101):
        lines(Phase("judging learned", done, 100))
        clock.now += 0.125
    counts = re.findall(r"judging learned: (\d+) of 100", stream.getvalue())
    assert [int(n) for n in counts] == list(range(0, 101, 16))
    assert QUIET_S == 2.0


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TextIO, Callable[[], str]]]:
    """A pseudo-terminal to write to, and what it was sent so far."""
    pytest.importorskip("pty")
    for name, value in (("TERM", "xterm"), ("COLUMNS", "80"), ("LINES", "24")):
        monkeypatch.setenv(name, value)
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    sent = b""

    def read() -> str:
        nonlocal sent
        with suppress(BlockingIOError):
            while piece := os.read(ours, 65536):
                sent += piece
        return sent.decode()

    with open(theirs, "w", encoding="utf-8") as stream:
        yield stream, read
    os.close(ours)


_CODES = re.compile("\x1b\\[[0-9;?]*[A-Za-z]")
_HIDDEN, _SHOWN = "\x1b[?25l", "\x1b[?25h"


def test_a_line_tells_how_far_it_is_and_how_long_it_takes_after_two_seconds(clock: Clock) -> None:
    stream = io.StringIO()
    line = ProgressLine(stream, clock)
    line(BEGAN)
    line(Phase("judging learned", 0, 40))
    clock.now = 1.5
    line(Phase("judging learned", 10, 40))
    assert stream.getvalue() == ""
    clock.now = 3
    line(Phase("judging learned", 20, 40))
    assert stream.getvalue() == "pco judging learned: 20 of 40, about 3.0 s left\n"
    clock.now = 6
    line(Phase("judging learned", 30, 40))  # too soon for a second line where none is redrawn
    assert stream.getvalue().count("\n") == 1
    clock.now = 14
    line(Spent({"executor": Usage(calls=372)}, {}))
    assert stream.getvalue().count("\n") == 2


def test_on_a_terminal_one_line_is_redrawn_with_a_bar_and_taken_away(
    terminal: tuple[TextIO, Callable[[], str]], clock: Clock
) -> None:
    stream, read = terminal
    line = ProgressLine(stream, clock)
    line(replace(BEGAN, simulated=True))
    clock.now = 1
    line(Spent({"executor": Usage(calls=371)}, {}))
    assert read() == ""  # nothing before two seconds
    clock.now = 3
    line(Phase("judging learned", 10, 40))
    line.close()
    text = _CODES.sub("", read())
    assert "━╺" in text and "pco [simulated] judging learned: 10 of 40" in text
    assert text.count("\n") <= 1
    assert read().rstrip("\r").endswith("\x1b[2K")  # the line is empty again
    assert read().count(_HIDDEN) == read().count(_SHOWN) == 1
    clock.now = 4
    with suppress(ZeroDivisionError), line:
        line(Phase("judging learned", 11, 40))
        raise ZeroDivisionError
    assert read().count(_HIDDEN) == read().count(_SHOWN) == 2


def test_a_dumb_terminal_gets_lines(
    terminal: tuple[TextIO, Callable[[], str]], monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream, read = terminal
    with counting("p.json", 40, stream, before=8, clock=clock) as count:
        for _ in range(32):
            clock.now += 0.5
            count(None)
    assert read().splitlines() == [
        "pco p.json: 12 of 40",
        "pco p.json: 32 of 40, about 4.0 s left",
    ]


PARAMETERS = types.Parameters("", "", types.Codebook(()), "")
LONG_RUN = [
    replace(BEGAN, steps=500, simulated=True),
    StepDone(
        types.Step(11, 0, 0.1, (types.Trace(types.Rollout("a")),) * 10, (), PARAMETERS, (), (), ()),
        50.0,
    ),
    Spent({"executor": Usage(calls=12040)}, {}, Usage(calls=12), Limits(calls=50000)),
]


@pytest.mark.parametrize(("events", "message"), [
    ([Phase("evil\x1b]0;title\x07\nname", 1, 4)], "pco evil ]0;title name: 1 of 4\n"),
    ([BEGAN, Spent({"executor": Usage(370)}, {}, Usage(2), Limits(400))],
     "pco step 0 of 10, calls 372 of 400, lost 2\n"),
    ([BEGAN, ValidationDone(-1, SCORED, True)], "pco step 0 of 10, best 0.500\n"),
    ([replace(BEGAN, steps=0)], "pco at work\n"),
    # What has no room is a fact and not the time left.
    (LONG_RUN, "pco [simulated] step 12 of 500, about 6 h 46 min left, reward none\n"),
])  # fmt: skip
def test_the_line_says(events: list[ProgressEvent], message: str, clock: Clock) -> None:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, "utf-8")
    line = ProgressLine(stream, clock)
    for event in events[:-1]:
        line(event)
    clock.now = 3
    line(events[-1])
    assert buffer.getvalue().decode() == message  # at once, not when a buffer is full


@pytest.mark.parametrize("kind", [ProgressLine, Lines])
def test_a_stream_that_is_closed_stops_no_run(kind: Any, clock: Clock) -> None:
    stream = io.StringIO()
    with kind(stream, clock) as line:
        line(BEGAN)
        clock.now = 3
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: bool
) -> None:
    for pause in ("QUIET_S", "_PAUSE_S"):
        monkeypatch.setattr(f"promptcodebook.progress.{pause}", 0.0)
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    train(tmp_path, budget="20calls", progress=progress)
    assert ("pco [simulated] " in shown.getvalue()) is progress
