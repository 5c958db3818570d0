"""Both views of a run: what they say, how wide they are, and what they leave alone."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from promptcodebook.calls import Limits, Usage
from promptcodebook.cli.live import (
    WINDOW,
    LiveLayout,
    LiveView,
    RunView,
    advance,
    bar,
    one_line,
    sparkline,
)
from promptcodebook.cli.views import PAUSE, LineView, make_view
from promptcodebook.progress import (
    Began,
    Note,
    Phase,
    ProgressEvent,
    Spent,
    StepDone,
    ValidationDone,
)
from promptcodebook.types import (
    Codebook,
    Evaluation,
    Failure,
    Instinct,
    Parameters,
    Rollout,
    Route,
    Step,
    Trace,
)
from tests.cli.invoked import Terminal

ESC = "\x1b"


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def began(size: int, simulated: bool = True) -> Began:
    spec = "simulated" if simulated else "http://localhost:8000/v1#m"
    return Began("20260131-x", "runs/20260131-x", 20, 0, size, {"executor": spec}, simulated)


def step(index: int, size: int) -> Step:
    rollouts = [
        Rollout("a", route=Route((0, 1)), reward=index / 20),
        Rollout("b", failure=Failure("execute", "CallTimeout", "slow")),
    ]
    instincts = tuple(Instinct(f"Instinct {k} says {ESC}[31mred\x07.") for k in range(size))
    return Step(
        index=index,
        epoch=index,
        epsilon=0.5,
        traces=tuple(Trace(r) for r in rollouts),
        rewrites=(),
        parameters=Parameters("e", "g", Codebook(instincts), "c"),
        ema=(0.0,) * size,
        success=(0.25,) * size,
        selected=tuple((index + 1) * (k < 2) for k in range(size)),
    )


def script(size: int = 16, steps: int = 12) -> Iterator[ProgressEvent]:
    yield began(size)
    yield ValidationDone(-1, Evaluation("step 0", "val", (Rollout("v", reward=0.25),)), best=True)
    for index in range(steps):
        yield StepDone(step(index, size), 3.0)
        spent = {"executor": Usage(10, 900, 100, 0, None), "encoder": Usage(5, 90, 10, 0, 0.2)}
        yield Spent(spent, {"rate_limited": 3, "cache_misses": 0})
    yield Phase("validating step 12", 0, 8)
    yield Phase("validating step 12", 4, 8)


def view_after(events: Iterator[ProgressEvent]) -> RunView:
    view = RunView()
    for second, event in enumerate(events):
        view = advance(view, event, float(second))
    return view


def test_lines_say_what_happened_in_order() -> None:
    stream = io.StringIO()
    clock = Clock()
    with LineView(stream, clock) as view:
        for event in script(steps=2):
            view(event)
            clock.now += 2.0
        view(Note("stopping: waiting for calls in flight"))
    assert stream.getvalue().splitlines() == [
        "[simulated] run 20260131-x: 20 steps, K = 16, simulated",
        "in runs/20260131-x; Ctrl-C stops, `pco train --resume 20260131-x` resumes it",
        "[simulated] validation untrained: 0.250 (n = 1), best",
        "[simulated] step 1 of 20  reward 0.000  epsilon 0.50  entropy 1.00 bits  utilisation 12 %"
        "  1 failed  57 s left",
        "[simulated] step 2 of 20  reward 0.050  epsilon 0.50  entropy 1.00 bits  utilisation 12 %"
        "  2 failed  15 calls, 1.1k tokens  cost unknown  54 s left",
        "validating step 12: 0 of 8",
        "validating step 12: 4 of 8, 2.0 s left",
        "stopping: waiting for calls in flight",
    ]


LOST = Spent(
    {"executor": Usage(370, 900, 100, 0, 0.2)},
    {},
    Usage(2, 8000, 4000, 0, 0.05),
    Limits(400, 90_000),
)


def test_lines_show_what_was_spent_beside_its_limit_and_how_many_calls_were_lost() -> None:
    stream = io.StringIO()
    view = LineView(stream, Clock())
    for event in (began(4, simulated=False), LOST, StepDone(step(0, 4), 3.0)):
        view(event)
    assert "  372 of 400 calls, 13k of 90k tokens  $0.25  2 lost  " in stream.getvalue()


@pytest.mark.parametrize("height", [60, 12])
def test_the_live_view_shows_what_was_lost_apart_below_what_was_spent_of_the_budget(
    height: int,
) -> None:
    view = view_after(iter([*script(), LOST]))
    console = Console(width=80, height=height, file=io.StringIO(), record=True)
    console.print(LiveLayout(view, 50.0))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    place = lines.index("spent       372 of 400 calls, 13k of 90k tokens, $0.25")
    lost = "            of it lost to failures: 2 calls, up to 12k tokens and $0.05"
    assert lines[place + 1] == lost


def test_progress_of_a_phase_is_said_at_most_every_two_seconds() -> None:
    stream, clock = io.StringIO(), Clock()
    view = LineView(stream, clock)
    for done in range(101):
        view(Phase("judging learned", done, 100))
        clock.now += 0.125
    counts = re.findall(r"judging learned: (\d+) of 100", stream.getvalue())
    assert [int(n) for n in counts] == list(range(0, 101, 16))
    assert PAUSE == 2.0


def test_lines_of_a_real_model_do_not_say_simulated() -> None:
    stream = io.StringIO()
    view = LineView(stream)
    view(began(4, simulated=False))
    view(StepDone(step(0, 4), 1.0))
    assert "simulated" not in stream.getvalue()


def test_lines_carry_no_control_characters() -> None:
    stream = io.StringIO()
    view = LineView(stream)
    view(Note(f"a model wrote {ESC}[2J{ESC}]0;title\x07 and \ud800"))
    assert stream.getvalue() == "a model wrote  [2J ]0;title  and ?\n"


@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("width", [60, 120])
def test_the_layout_fits_its_width_and_shows_everything(width: int, size: int) -> None:
    console = Console(width=width, height=40, record=True, file=io.StringIO())
    console.print(LiveLayout(view_after(script(size)), 60.0))
    shown = console.export_text()
    lines = shown.splitlines()
    assert all(cell_len(line) <= width for line in lines)
    assert len(lines) <= 24
    for part in (
        "20260131-x  simulated",
        "12 of 20",
        "at most 24 s left",
        "validating step 12: 4 of 8",
        "0.550",
        "best 0.250 untrained",
        f"1.00 of {4 if size == 16 else 5}.00 bits",
        "cost unknown",
        "$0.20",
        "failed 12, rate limited 3",
        "pco train --resume 20260131-x",
    ):
        assert part in shown, part
    for k in range(size):
        assert re.search(rf"(^|\s){k} +[█░]", shown), k
    assert ESC not in shown and "\x07" not in shown


def test_a_low_terminal_gets_one_line_of_spend() -> None:
    def shown(height: int) -> str:
        console = Console(width=100, height=height, record=True, file=io.StringIO())
        console.print(LiveLayout(view_after(script()), 60.0))
        return console.export_text()

    assert "encoder" in shown(40)
    assert "encoder" not in shown(20)
    assert "spent" in shown(20)


def test_before_the_first_event_the_layout_says_so() -> None:
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(LiveLayout(RunView(), 0.0))
    assert "setting up" in console.export_text()


def test_a_run_that_never_began_leaves_no_empty_view_behind() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=30)
    with pytest.raises(RuntimeError, match="boom"), LiveView(console):
        raise RuntimeError("boom")
    assert "spent" not in stream.getvalue()


def test_the_live_view_gives_the_terminal_back_after_an_exception() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=30)
    with pytest.raises(RuntimeError, match="boom"), LiveView(console) as view:
        for event in script():
            view(event)
        view(Note(f"note {ESC}[2J"))
        raise RuntimeError("boom")
    written = stream.getvalue()
    assert written.count(f"{ESC}[?25l") == 1
    assert written.rstrip().endswith(f"{ESC}[?25h")
    assert "note  [2J" in written
    assert "12 of 20" in written
    assert f"{ESC}[2J" not in written


def test_the_last_layout_has_nothing_left_to_do() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=30)
    with LiveView(console) as view:
        for event in script():
            view(event)
    paper = Console(width=100, height=30, record=True, file=io.StringIO())
    paper.print(view.layout())
    shown = paper.export_text()
    assert "Ctrl-C" not in shown and " left" not in shown and "validating" not in shown


def test_an_event_draws_nothing() -> None:
    stream = io.StringIO()
    view = LiveView(Console(file=stream, force_terminal=True))
    for event in script():
        view(event)
    assert stream.getvalue() == ""


def test_a_terminal_gets_the_live_view_and_all_else_lines() -> None:
    xterm = {"TERM": "xterm-256color"}
    assert isinstance(make_view(Terminal(), environment=xterm), LiveView)
    assert isinstance(make_view(Terminal(), plain=True, environment=xterm), LineView)
    assert isinstance(make_view(Terminal(), environment={"TERM": "dumb"}), LineView)
    assert isinstance(make_view(io.StringIO(), environment=xterm), LineView)


def test_no_color_takes_the_colours_and_nothing_else() -> None:
    def drawn(environment: dict[str, str]) -> tuple[str, set[str]]:
        """What a terminal is last shown of a run, and the codes that style it."""
        stream = Terminal()
        with make_view(stream, environment={"TERM": "xterm-256color", **environment}) as view:
            for event in script():
                view(event)
        text = re.sub(r"\d+(\.\d+)?( ms| s| min)", "TIME", stream.getvalue())
        codes = {code for each in re.findall(r"\x1b\[([\d;]*)m", text) for code in each.split(";")}
        last = re.sub(r"\x1b\[[\d;]*m", "", text).rpartition("20260131-x  simulated")
        return "".join(last[1:]), codes

    with_colours, styles = drawn({})
    without, left = drawn({"NO_COLOR": "1"})
    assert "36" in styles and "33" in styles
    assert left == {code for code in styles if code in ("", "0", "1", "2")} >= {"1", "2"}
    assert without == with_colours and "█" in without


def test_a_terminal_that_cannot_show_blocks_gets_lines() -> None:
    class Ascii(Terminal):
        encoding = "ascii"  # type: ignore[assignment]

    assert isinstance(make_view(Ascii(), environment={"TERM": "xterm"}), LineView)


def test_selections_of_the_last_steps() -> None:
    assert view_after(script(4, 3)).recent == (3, 3, 0, 0)
    assert view_after(script(4, 15)).recent == (WINDOW, WINDOW, 0, 0)


@pytest.mark.parametrize("steps", [3, 10, 15])
def test_what_was_selected_before_the_run_is_not_of_the_last_steps(steps: int) -> None:
    """A run that goes on from a policy (init.kind = file) takes over its counts."""
    view = advance(RunView(), began(4), 0.0)
    for index in range(steps):
        done = step(index, 4)
        counts = tuple(n + earlier for n, earlier in zip(done.selected, (40, 7, 9, 0), strict=True))
        view = advance(view, StepDone(replace(done, selected=counts), 3.0), 1.0)
    last = min(steps, WINDOW)
    assert view.recent == (last, last, 0, 0)


def test_an_instinct_that_maintenance_made_anew_is_counted_from_there() -> None:
    view = view_after(script(4, 15))
    last = step(15, 4)
    anew = StepDone(replace(last, selected=(2, *last.selected[1:])), 3.0)
    view = advance(view, anew, 99.0)
    assert view.recent == (2, WINDOW, 0, 0)


def test_time_left_follows_the_pace() -> None:
    view = advance(RunView(), began(4), 0.0)
    assert view.training_left() is None
    view = advance(view, StepDone(step(9, 4), 2.0), 1.0)
    assert view.training_left() == 20.0
    view = advance(view, Phase("judging", 0, 10), 5.0)
    assert view.phase_left(6.0) is None
    view = advance(view, Phase("judging", 2, 10), 7.0)
    assert view.phase_left(7.0) == 8.0
    assert advance(view, Phase("judging", 10, 10), 9.0).phase is None


def test_small_drawings() -> None:
    assert sparkline([], 5) == ""
    assert sparkline([0.5, 0.5], 5) == "▄▄"
    assert sparkline([0.0, 0.5, 1.0], 5) == "▁▅█"
    assert sparkline([float(i) for i in range(100)], 4) == "▁▃▆█"
    assert [bar(0, 4), bar(0.5, 4), bar(1, 4), bar(7, 4)] == ["░░░░", "██░░", "████", "████"]
    assert bar(0.03125, 4) == "▏░░░"
    assert one_line("a\r\nb\x9bc\td") == "a  b c d"
