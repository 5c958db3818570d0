"""Tables as they are printed, and whose figures they say they are."""

import io
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.cli.command import columns, wrap_text
from promptcodebook.progress import Note, ProgressLine, watch_run
from tests.build.cases import table
from tests.build.cli import ESC, Terminal, pco, script


@pytest.mark.parametrize("case", table(__file__, "tables"), ids=lambda case: str(case["width"]))
def test_a_table_fits_its_width(case: dict[str, Any]) -> None:
    """Numbers to the right; what finds no room follows below; text is broken into lines."""
    assert columns(case["rows"], case["width"]).splitlines() == case["lines"]


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


@pytest.mark.parametrize("command", [
    ("eval", "last"),
    ("registry", "effect", "last", "0"),
    ("batch", "last", "in.jsonl", "out.jsonl"),
])  # fmt: skip
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

# Lines that are there to be copied, commands and paths, are never broken up.
TO_COPY = (
    "next: ",
    "      pco ",
    "  pco ",
    "report: ",
    "  file  ",
    "  type  ",
    "command  ",
    "wrote ",
)


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
        ("registry", "show", run_id),
        ("registry", "log", run_id),
        ("registry", "diff", run_id),
        ("explain", run_id, "Which is the largest of 12, 48 and 7? " * 5),
        ("eval", run_id),
        ("eval", run_id, "--samples", "3"),
        ("compare", run_id, policy),
        ("config",),
        ("doctor",),
        ("data", "check", "data.jsonl"),
    ):
        result = pco(*typed, cwd=trained)
        assert result.code == 0, (typed, result.err)
        assert result.out and wide(result.out) == [], typed


# A run on a terminal.


def test_a_terminal_gets_one_line_that_is_redrawn_below_notes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("promptcodebook.progress.QUIET_S", 0.0)
    stream = Terminal()
    environment = {"TERM": "xterm-256color"}
    with pytest.raises(RuntimeError), watch_run(stream=stream, environment=environment) as view:
        for event in script():
            view(event)
        view(Note(f"note {ESC}[2J"))
        raise RuntimeError("boom")
    written = stream.getvalue()
    assert "run 20260131-x in " in written
    assert "note  [2J\n" in written and f"{ESC}[2J" not in written
    assert "validating step 12: 4 of 8" in written and written.count("entropy") == 0
    assert written.count(f"{ESC}[?25l") == written.count(f"{ESC}[?25h") > 0, "the cursor is back"


class Ascii(Terminal):
    encoding = "ascii"  # type: ignore[assignment]


@pytest.mark.parametrize(("stream", "plain", "term", "redrawn"), [
    (Terminal(), False, "xterm", True),
    (Terminal(), True, "xterm", False),
    (Terminal(), False, "dumb", False),
    (Terminal(), False, "", False),
    (io.StringIO(), False, "xterm", False),
    (Ascii(), False, "xterm", False),
])  # fmt: skip
def test_a_terminal_gets_a_line_that_is_redrawn_and_all_else_lines(
    stream: io.StringIO, plain: bool, term: str, redrawn: bool
) -> None:
    view = watch_run(plain=plain, stream=stream, environment={"TERM": term})
    assert isinstance(view, ProgressLine) is redrawn
