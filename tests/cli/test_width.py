"""Every command that prints a table, on a screen of 80 columns: no line is wider."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from promptcodebook.calls import Usage
from promptcodebook.cli.bench import Cell, suite_text
from promptcodebook.intervals import Interval
from promptcodebook.run.verdict import Conclusion, Row
from promptcodebook.simulated.cli import _print_table  # pyright: ignore[reportPrivateUsage]
from promptcodebook.store.runs import list_runs
from tests.cli.invoked import pco
from tests.run.test_optimize import train

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


def test_the_verdict_and_the_estimate(folder: Path) -> None:
    prices = (
        '{"http://localhost:8000/v1#organisation/a-model": {"prompt": 1.5, "completion": 6.25}}'
    )
    roles = ("--set", "roles.critic.model=http://localhost:8000/v1#organisation/a-model")
    more = ("--set", f"prices={prices}", "--set", "update.epochs=4", "--seconds-per-call", "700")
    result = pco("estimate", *roles, *more, cwd=folder)
    assert result.code == 0 and wide(result.out) == []
    assert "$" in result.out
    small = ("--preset", "quick", "--set", "update.epochs=1", "--set", "validation.every=0")
    result = pco("train", *small, cwd=folder)
    assert result.code == 0 and wide(result.out) == []
    assert "gain 95 %" in result.out


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
