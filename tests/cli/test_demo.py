"""The tour: what it prints, and that it never forgets to say that it is simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptcodebook.simulated import cli
from tests.cli.invoked import pco

ROWS = [
    "zero-shot",
    "all K instincts (concat)",
    "best of its prompts for all",
    "untrained codebook",
    "trained",
    "oracle",
]


def test_one_world_gives_its_raw_rewards_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a third of the tour's updates."""
    monkeypatch.setitem(cli._SETTINGS, "update", {"epochs": 10})
    done = pco("demo", "--world", "3", cwd=tmp_path)
    assert done.code == 0, done.err
    worlds = done.json
    assert set(worlds) == {"load 0 (long prompts cost nothing)", "default load"}
    for rows in worlds.values():
        assert set(rows) == {"present", "concat", "best_fixed", "untrained", "learned", "oracle"}
        assert all(len(row["rewards"]) == 60 for row in rows.values())
        mean = {name: sum(row["rewards"]) / 60 for name, row in rows.items()}
        assert mean["present"] < mean["learned"] < mean["oracle"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_tour_shows_six_rows_with_intervals_at_both_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a few of its updates."""
    monkeypatch.setitem(cli._SETTINGS, "update", {"epochs": 3})
    done = pco("demo", "--worlds", "2", cwd=tmp_path)
    assert done.code == 0, done.err
    tables = done.out.split("simulated model, ")[1:]
    assert [t.split(":")[0] for t in tables] == [
        "load 0 (long prompts cost nothing)",
        "default load",
    ]
    for table in tables:
        assert [row for row in ROWS if row in table] == ROWS
        assert "2 worlds x 60 examples" in " ".join(table.split())
        assert table.count("..") >= 11  # an interval for every score and every gain
    assert "All figures above are simulated" in done.out
    reports = list((tmp_path / "runs").glob("*/report.html"))
    assert len(reports) == 2
    assert all("simulated" in report.read_text("utf-8") for report in reports)
