"""Tables as they are printed, and whose figures they say they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.cli.console import columns, wrap_text
from tests.cli.invoked import pco

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


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "task": st.sampled_from(["aime", "livebench_math"]),
                "reward": st.sampled_from(["-0.375 (-0.750..-0.125)", "0.5", "-"]),
                "cost": st.sampled_from(["$0.0012 / $1,204.00 / $12,000.00", "unknown"]),
                "note": st.text("ab ", max_size=120),
                "model": st.sampled_from(
                    ["simulated", "http://localhost:8000/v1#organisation/name"]
                ),
            }
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(60, 120),
)
def test_no_line_is_wider_than_the_screen_and_no_figure_is_cut(
    values: list[tuple[str, ...]], width: int
) -> None:
    heads = ("task", "reward", "cost", "note", "model")
    rows = [dict(zip(heads, each, strict=True)) for each in values]
    lines = columns(rows, width).splitlines()
    assert max(map(len, lines)) <= width
    shown = "\n".join(lines)
    for row in rows:
        assert row["reward"] in shown and row["cost"] in shown


def test_the_width_is_that_of_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"name": "a", "first": "x" * 20, "second": "y" * 20, "third": "z" * 20}]
    words = "word " * 60
    for width in (60, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        assert max(map(len, columns(rows).splitlines())) <= width
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
