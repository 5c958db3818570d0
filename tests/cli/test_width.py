"""Every command that prints a table, on a screen of 80 columns: no line is wider."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from promptcodebook.cli.bench import _Outcome, _outcome_text  # pyright: ignore[reportPrivateUsage]
from promptcodebook.run.suite import CellResult
from promptcodebook.simulated.cli import _print_table  # pyright: ignore[reportPrivateUsage]
from tests.cli.invoked import pco

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


def test_the_table_of_a_suite_with_its_widest_figures() -> None:
    worst = {"mean": -0.375, "low": -0.750, "high": -0.125}
    row = {"score": {"n": 294, **worst}, "gain": worst, "failed": 294}
    cell = CellResult(
        "livebench_math", "id", Path("runs/id"), "resumed", (row, row), "", 1000, 999_000, True, {}
    )
    real = dataclasses.replace(cell, task="aime", simulated=False)
    text = _outcome_text("paper", _Outcome([cell, real], {}))
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
