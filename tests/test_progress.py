"""A run in Python says how it goes, in the log."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import pytest

import promptcodebook as pco
from promptcodebook.calls import Limits, Usage
from promptcodebook.progress import Began, Note, Phase, ProgressLine, Spent, StepDone, watch
from promptcodebook.types import Codebook, Parameters, Step
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


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TextIO, Callable[[], str]]]:
    """A pseudo-terminal to write to, and what it was sent so far."""
    pytest.importorskip("pty")
    for name, value in (("TERM", "xterm"), ("COLUMNS", "80"), ("LINES", "24")):
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
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


def _plain(text: str) -> str:
    return _CODES.sub("", text)


Line = tuple[ProgressLine, Callable[[float], None]]


def _line(stream: TextIO, waited: float = 0.0) -> Line:
    """A line to `stream`, and what lets time pass."""
    now = 0.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    made = ProgressLine(stream, lambda: now)
    made(BEGAN)
    wait(waited)
    return made, wait


def test_a_line_tells_how_far_it_is_and_how_long_it_takes_after_two_seconds() -> None:
    stream = io.StringIO()
    line, wait = _line(stream)
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


def test_on_a_terminal_one_line_is_redrawn_with_a_bar_and_taken_away(
    terminal: tuple[TextIO, Callable[[], str]],
) -> None:
    stream, read = terminal
    line, wait = _line(stream)
    line(replace(BEGAN, simulated=True))
    wait(1)
    line(Spent({"executor": Usage(calls=371)}, {}))
    assert read() == ""  # nothing before two seconds
    wait(2)
    line(Phase("judging learned", 10, 40))
    line.close()
    text = _plain(read())
    assert "━" in text and "pco [simulated] judging learned: 10 of 40" in text
    assert text.count("\n") <= 1
    assert read().rstrip("\r").endswith("\x1b[2K")  # the line is empty again
    assert read().count(_HIDDEN) == read().count(_SHOWN) == 1
    wait(1)
    line(Note("look here"))
    line.close()


def test_an_exception_leaves_the_terminal_whole(
    terminal: tuple[TextIO, Callable[[], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, read = terminal
    monkeypatch.setattr("promptcodebook.progress._QUIET_S", 0.0)
    with pytest.raises(ZeroDivisionError), watch(None, stream) as tell:
        tell(BEGAN)
        tell(Phase("judging", 1, 4))
        raise ZeroDivisionError
    assert read().count(_HIDDEN) == read().count(_SHOWN) == 1
    assert read().rindex(_SHOWN) > read().rindex("pco ")


def test_a_dumb_terminal_gets_lines(
    terminal: tuple[TextIO, Callable[[], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream, read = terminal
    line, wait = _line(stream)
    line(Phase("judging", 0, 40))
    wait(3)
    line(Phase("judging", 10, 40))
    assert read() == "pco judging: 10 of 40, about 9.0 s left\r\n"


def test_in_a_notebook_one_place_of_the_output_is_drawn_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a kernel does, without one: a stream of ipykernel's, and IPython's display."""
    shown, updated = list[str](), list[str]()

    class Place:
        def update(self, what: Any) -> None:
            updated.append(what._repr_mimebundle_((), ())["text/html"])

    def display(what: Any, display_id: bool) -> Place:
        assert display_id
        shown.append(what._repr_mimebundle_((), ())["text/html"])
        return Place()

    module = ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    kind = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    stream = kind()
    line, wait = _line(stream)
    for done in range(100):
        line(Phase("evaluating tickets", done, 200))
        wait(0.1)
    line.close()
    assert len(shown) == 1 and "pco evaluating tickets: 20 of 200" in shown[0]
    assert 10 < len(updated) < 60 and "of 200" in updated[-2] and "pco" not in updated[-1]
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (Phase("evil\x1b]0;title\x07\nname", 1, 4), "pco evil ]0;title name: 1 of 4\n"),
        (
            Spent({"executor": Usage(calls=370)}, {}, Usage(calls=2), Limits(calls=400)),
            "pco step 0 of 10, calls 372 of 400, lost 2\n",
        ),
    ],
)
def test_a_name_does_not_steer_the_terminal_and_calls_are_beside_their_limit(
    event: Phase | Spent, said: str
) -> None:
    stream = io.StringIO()
    line, _ = _line(stream, waited=3)
    line(event)
    assert stream.getvalue() == said


def _long_run(stream: TextIO) -> ProgressLine:
    """The line of a long run with everything to tell."""
    line, wait = _line(stream)
    line(replace(BEGAN, steps=500, simulated=True))
    wait(600)
    parameters = Parameters("", "", Codebook(()), "")
    line(StepDone(Step(11, 0, 0.1, (), (), parameters, (), (), ()), 600.0))
    line(Spent({"executor": Usage(calls=12040)}, {}, Usage(calls=12), Limits(calls=50000)))
    return line


def test_what_has_no_room_in_the_line_is_a_fact_and_not_the_time_left() -> None:
    stream = io.StringIO()
    _long_run(stream)
    last = stream.getvalue().splitlines()[-1]
    assert last == "pco [simulated] step 12 of 500, about 6 h 46 min left, reward none"


def test_the_line_is_as_wide_as_the_terminal(
    terminal: tuple[TextIO, Callable[[], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "74")
    stream, read = terminal
    _long_run(stream).close()
    assert "pco [simulated] step 12 of 500, about 6 h 46 min left" in _plain(read())
    assert "reward" not in read()


def test_a_stream_that_nobody_reads_any_more_stops_no_run() -> None:
    stream = io.StringIO()
    line, _ = _line(stream, waited=3)
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
