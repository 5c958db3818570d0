"""Tables as they are printed, and whose figures they say they are."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from promptcodebook.cli.command import columns, wrap_text
from promptcodebook.cli.live import LiveLayout, Screen, bar, sparkline, watch_run
from promptcodebook.progress import (
    WINDOW,
    Lines,
    Note,
    ProgressEvent,
    RunView,
    StepDone,
    advance,
)
from promptcodebook.types import Ranking
from tests.cli.invoked import Terminal, pco
from tests.test_progress import ESC, LOST, began, script, step

TEXT = "Read the whole question before you answer any part of it."


def table(heads: str, *rows: tuple[str, ...]) -> list[dict[str, str]]:
    return [dict(zip(heads.split(), row, strict=False)) for row in rows]


RUNS = table(
    "run calls tokens USD",
    ("20260131-154502-a", "1,260 / 3", "7.7k", "-"),
    ("20260131-154502-long", "24", "-", "unknown"),
    ("x", "+0.5", "-", "$0.0012"),
)
WIDE = table("run calls tokens time", ("r-1", "1,260 / 1,386", "565k / 612k", "12 min"))
WORDS = table("k instinct selected", ("0", TEXT, "12"), ("1", "[b]Be ï"))


@pytest.mark.parametrize(
    ("rows", "width", "lines"),
    [
        (RUNS, 80, ["run                       calls  tokens      USD",
                    "20260131-154502-a     1,260 / 3    7.7k        -",
                    "20260131-154502-long         24       -  unknown",
                    "x                          +0.5       -  $0.0012"]),
        (WIDE, 34, ["run          calls       tokens", "r-1  1,260 / 1,386  565k / 612k", "",
                    "run    time", "r-1  12 min"]),
        (WORDS, 45, ["k  instinct                          selected",
                     "0  Read the whole question before          12",
                     "   you answer any part of it.", "1  [b]Be ï"]),
        ([], 80, []),
    ],
)  # fmt: skip
def test_a_table_fits_its_width(rows: list[dict[str, str]], width: int, lines: list[str]) -> None:
    """Numbers to the right; what finds no room follows below; text is broken into lines."""
    assert columns(rows, width).splitlines() == lines


def test_the_width_is_that_of_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"name": "a", "first": "x" * 20, "second": "y" * 20, "third": "z" * 20}]
    words, model = "word " * 60, "http://localhost:8000/v1#organisation/name"
    two = [{"task": "aime", "cost": "$0.0012 / $12,000.00", "note": words, "model": model}]
    for width in (60, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        assert max(map(len, [*columns(rows).splitlines(), *columns(two).splitlines()])) <= width
        assert width - 8 < max(map(len, wrap_text(words).splitlines())) <= width
    monkeypatch.setenv("COLUMNS", "200")
    assert len(columns(rows).splitlines()) == 2


@pytest.mark.parametrize(
    "command",
    [
        ("eval", "last"),
        ("codebook", "effect", "last", "0"),
        ("batch", "last", "in.jsonl", "out.jsonl"),
    ],
)
def test_progress_says_that_a_model_is_simulated(
    trained: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr("promptcodebook.progress.QUIET_S", 0.0)
    (trained / "in.jsonl").write_text('{"input": "What are maps good for?"}\n')
    done = pco(*command, cwd=trained)
    assert done.code == 0, done.err
    lines = [line for line in done.err.splitlines() if re.match(r"pco (\[|[^:]+: \d+ of)", line)]
    assert lines and all(line.startswith("pco [simulated] ") for line in lines), done.err


# Every command that prints a table, on a screen of 80 columns: no line is wider.

TO_COPY = ("next: ", "      pco ", "  pco ", "report: ", "policy: ", "command  ", "wrote ")
"""Lines that are there to be copied, commands and paths, are never broken up."""


@pytest.fixture(autouse=True)
def screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def wide(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > 80 and not line.startswith(TO_COPY)]


def test_every_table_about_a_run(trained: Path, run_id: str) -> None:
    longer = trained / "runs" / f"{run_id}-of-a-task-with-a-rather-long-name"
    shutil.copytree(trained / "runs" / run_id, longer)
    policy = f"runs/{run_id}/policy.json"
    for typed in (
        ("runs", "list"),
        ("runs", "show", run_id),
        ("codebook", "show", run_id),
        ("codebook", "log", run_id),
        ("codebook", "diff", run_id),
        ("explain", run_id, "Which is the largest of 12, 48 and 7? " * 5),
        ("eval", run_id),
        ("eval", run_id, "--samples", "3"),
        ("compare", run_id, policy),
        ("config",),
        ("templates", "list"),
        ("doctor",),
        ("data", "check", "data.jsonl"),
    ):
        result = pco(*typed, cwd=trained)
        assert result.code == 0, (typed, result.err)
        assert result.out and wide(result.out) == [], typed


# The screen of a run: what it says, how wide it is, and what it leaves alone.

XTERM = {"TERM": "xterm-256color"}


def view_after(events: Iterable[ProgressEvent]) -> RunView:
    view = RunView()
    for second, event in enumerate(events):
        view = advance(view, event, float(second))
    return view


def drawn(view: RunView | LiveLayout, width: int = 100, height: int = 40) -> str:
    """What a terminal of that size shows."""
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(LiveLayout(view, 60.0) if isinstance(view, RunView) else view)
    return console.export_text()


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=80, height=30)


@pytest.mark.parametrize("height", [60, 12])
def test_what_was_lost_is_shown_apart_below_what_was_spent_of_the_budget(height: int) -> None:
    shown = drawn(view_after([*script(), LOST]), 80, height)
    lines = [line.rstrip() for line in shown.splitlines()]
    place = lines.index("spent       372 of 400 calls, 13k of 90k tokens, $0.25")
    lost = "            of it lost to failures: 2 calls, up to 12k tokens and $0.05"
    assert lines[place + 1] == lost


@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_layout_fits_its_width_and_shows_everything(width: int, size: int) -> None:
    shown = drawn(view_after(script(size)), width)
    lines = shown.splitlines()
    assert all(cell_len(line) <= width for line in lines)
    assert len(lines) <= 24
    cells = 8 if width < 80 else 24
    for part in (
        *("20260131-x  simulated", "at most 24 s left", "0.550", "best 0.250 untrained"),
        f"step        {bar(12 / 20, cells)} 12 of 20",
        f"now         {bar(4 / 8, cells)} validating step 12: 4 of 8",
        f"1.00 of {4 if size == 16 else 5}.00 bits",
        *("cost unknown", "$0.20", "failed 12, rate limited 3", "pco train --resume 20260131-x"),
    ):
        assert part in shown, part
    for k in range(size):
        assert re.search(rf"(^|\s){k} +[█░]", shown), k
    assert ESC not in shown and "\x07" not in shown


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (RunView(), "setting up"),
        (view_after([began(4)]), "now         training step 1"),
        (view_after([replace(began(4), first=7)]), "now         training step 8"),
        (view_after([replace(began(4), steps=0)]), "now         at work"),
        (view_after([began(4), StepDone(step(19, 4), 1.0)]), "now         finishing"),
    ],
)
def test_what_is_at_work(view: RunView, said: str) -> None:
    assert said in drawn(view)


def test_a_router_that_learns_from_outcomes_shows_what_is_solved_and_no_entropy() -> None:
    learned = replace(step(9, 4), ranking=Ranking((), 1.0, (), ()))
    shown = drawn(view_after([began(4), StepDone(learned, 1.0, 0.25)]))
    assert "solved       0.250  ▄  reward of tries 0.450" in shown
    assert "executor    not metered" in shown
    assert "ε" not in shown and "bits" not in shown and "routing     50 % used; last" in shown


def test_the_screen_gives_the_terminal_back_after_an_exception(console: Console) -> None:
    with pytest.raises(RuntimeError, match="boom"), Screen(console) as view:
        for event in script():
            view(event)
        view(Note(f"note {ESC}[2J"))
        raise RuntimeError("boom")
    written: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert written.count(f"{ESC}[?25l") == 1
    assert written.rstrip().endswith(f"{ESC}[?25h")
    assert "note  [2J" in written and f"{ESC}[2J" not in written
    assert "12 of 20" in written
    shown = drawn(view.layout())  # the last one has nothing left to do
    assert "Ctrl-C" not in shown and " left" not in shown and "validating" not in shown


class Ascii(Terminal):
    encoding = "ascii"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("stream", "plain", "term", "kind"),
    [
        (Terminal(), False, "xterm", Screen),
        (Terminal(), True, "xterm", Lines),
        (Terminal(), False, "dumb", Lines),
        (Terminal(), False, "", Lines),
        (io.StringIO(), False, "xterm", Lines),
        (Ascii(), False, "xterm", Lines),
    ],
)
def test_a_terminal_gets_the_screen_and_all_else_lines(
    stream: io.StringIO, plain: bool, term: str, kind: type
) -> None:
    view = watch_run(plain=plain, stream=stream, environment={"TERM": term})
    assert isinstance(view, kind)


def test_no_color_takes_the_colours_and_nothing_else() -> None:
    def shown(environment: dict[str, str]) -> tuple[str, set[str]]:
        """What a terminal is last shown of a run, and the codes that style it."""
        stream = Terminal()
        with watch_run(stream=stream, environment={**XTERM, **environment}) as view:
            for event in script():
                view(event)
        text = re.sub(r"\d+(\.\d+)?( ms| s| min)", "TIME", stream.getvalue())
        codes = {code for each in re.findall(r"\x1b\[([\d;]*)m", text) for code in each.split(";")}
        last = re.sub(r"\x1b\[[\d;]*m", "", text).rpartition("20260131-x  simulated")
        return "".join(last[1:]), codes

    with_colours, styles = shown({})
    without, left = shown({"NO_COLOR": "1"})
    assert "36" in styles and "33" in styles
    assert left == {code for code in styles if code in ("", "0", "1", "2")} >= {"1", "2"}
    assert without == with_colours and "█" in without


def test_the_last_steps_are_told_apart_from_what_was_selected_before() -> None:
    """A run that continues from a policy (init.kind = file) takes over its counts."""
    for steps in (3, 15):
        view = advance(RunView(), began(4), 0.0)
        for index in range(steps):
            done = step(index, 4)
            counts = tuple(n + m for n, m in zip(done.selected, (40, 7, 9, 0), strict=True))
            view = advance(view, StepDone(replace(done, selected=counts), 3.0), 1.0)
        assert f"last {WINDOW} steps 1.00 bits, 50 % used" in drawn(view)


def test_small_drawings() -> None:
    assert sparkline([], 5) == ""
    assert sparkline([0.5, 0.5], 5) == "▄▄"
    assert sparkline([0.0, 0.5, 1.0], 5) == "▁▅█"
    assert sparkline([float(i) for i in range(100)], 4) == "▁▃▆█"
    assert [bar(0, 4), bar(0.5, 4), bar(1, 4), bar(7, 4)] == ["░░░░", "██░░", "████", "████"]
    assert bar(0.03125, 4) == "▏░░░"
