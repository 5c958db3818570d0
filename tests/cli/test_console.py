"""Tables as they are printed, and whose figures they say they are."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import pytest

from promptcodebook.calls import Usage
from promptcodebook.cli.command import columns, wrap_text
from promptcodebook.cli.train import Cell, suite_text
from promptcodebook.intervals import Interval
from promptcodebook.run.verdict import Conclusion, Row
from promptcodebook.simulated.cli import _print_table  # pyright: ignore[reportPrivateUsage]
from promptcodebook.store.runs import list_runs
from tests.cli.invoked import pco
from tests.run.test_optimize import train

TEXT = "Read the whole question before you answer any part of it."


@pytest.mark.parametrize(
    ("rows", "width", "lines"),
    [
        pytest.param(
            [
                {"run": "20260131-154502-a", "calls": "1,260 / 3", "tokens": "7.7k", "USD": "-"},
                {"run": "20260131-154502-long", "calls": "24", "tokens": "-", "USD": "unknown"},
                {"run": "x", "calls": "+0.5", "tokens": "-", "USD": "$0.0012"},
            ],
            80,
            [
                "run                       calls  tokens      USD",
                "20260131-154502-a     1,260 / 3    7.7k        -",
                "20260131-154502-long         24       -  unknown",
                "x                          +0.5       -  $0.0012",
            ],
            id="numbers to the right",
        ),
        pytest.param(
            [{"run": "r-1", "calls": "1,260 / 1,386", "tokens": "565k / 612k", "time": "12 min"}],
            34,
            [
                "run          calls       tokens",
                "r-1  1,260 / 1,386  565k / 612k",
                "",
                "run    time",
                "r-1  12 min",
            ],
            id="no room: below",
        ),
        pytest.param(
            [{"k": "0", "instinct": TEXT, "selected": "12"}, {"k": "1", "instinct": "[b]Be ï"}],
            45,
            [
                "k  instinct                          selected",
                "0  Read the whole question before          12",
                "   you answer any part of it.",
                "1  [b]Be ï",
            ],
            id="text in lines",
        ),
        pytest.param([], 80, [], id="no rows"),
    ],
)
def test_a_table_fits_its_width(rows: list[dict[str, str]], width: int, lines: list[str]) -> None:
    assert columns(rows, width).splitlines() == lines


def test_the_width_is_that_of_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"name": "a", "first": "x" * 20, "second": "y" * 20, "third": "z" * 20}]
    words = "word " * 60
    for width in (60, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        assert max(map(len, columns(rows).splitlines())) <= width
        assert width - 8 < max(map(len, wrap_text(words).splitlines())) <= width
    model = "http://localhost:8000/v1#organisation/name"
    two = [{"task": "aime", "cost": "$0.0012 / $12,000.00", "note": words, "model": model}]
    assert max(map(len, columns(two, 60).splitlines())) <= 60
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


def test_the_estimate_with_its_widest_figures(folder: Path) -> None:
    prices = (
        '{"http://localhost:8000/v1#organisation/a-model": {"prompt": 1.5, "completion": 6.25}}'
    )
    roles = ("--set", "roles.critic.model=http://localhost:8000/v1#organisation/a-model")
    more = ("--set", f"prices={prices}", "--set", "update.epochs=4", "--seconds-per-call", "700")
    result = pco("estimate", *roles, *more, cwd=folder)
    assert result.code == 0 and wide(result.out) == []
    assert "$" in result.out


def test_the_table_of_a_suite_with_its_widest_figures(tmp_path: Path) -> None:
    worst = Interval(-0.375, -0.750, -0.125, 294)
    row = Row("learned", worst, worst, None, 294, 0, Usage(), 1.0)
    run = train(tmp_path, size=8, select=3)
    run = dataclasses.replace(run, conclusion=Conclusion((row, row), "", None))
    [found] = list_runs(tmp_path / "runs")
    used = dataclasses.replace(found.usage, calls=999_000)
    summary = dataclasses.replace(found, task="livebench_math", step=999, usage=used)
    text = suite_text("paper", [Cell(run, summary, "resumed")] * 2, {})
    assert wide(text) == []
    assert text.count("-0.375 (-0.750..-0.125)") == 6


def test_the_tables_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"n": 480, "calls": 5.0, "tokens": 12_345, "longest_prompt": 1200}
    names = ("present", "concat", "best_fixed", "untrained", "learned", "oracle")
    worst = [-0.375, -0.750, -0.125]
    rows = [{"name": name, "score": worst, "gain": worst, **figures} for name in names]
    _print_table("load 0 (long prompts cost nothing)", rows, 5)
    printed = capsys.readouterr().out
    assert wide(printed) == []
    assert "-0.750..-0.125" in printed
