"""`pco reproduce`: a page by its name, and what is typed next where it cannot be made."""

from __future__ import annotations

from pathlib import Path

from tests.cli.invoked import pco

SWEEP = ("reproduce", "sweep-s", "--preset", "quick", "--out", "results")


def test_a_page_is_written_and_a_second_time_nothing_is_measured(tmp_path: Path) -> None:
    first = pco(*SWEEP, "--json", cwd=tmp_path)
    assert first.code == 0, first.err
    told = first.json
    assert told["finished"] == ["S-1/0", "S-2/0", "S-4/0"] and told["missing"] == {}
    assert "S-1/0 (1 of 3)" in first.err
    page = (tmp_path / told["page"]).read_text("utf-8")
    assert told["page"] == "results/sweep-s.md" and "**Simulated.**" in page
    beside = {path.suffix for path in (tmp_path / "results" / "sweep-s").iterdir()}
    assert beside == {".tex", ".svg", ".png", ".json"}
    again = pco(*SWEEP, "--json", cwd=tmp_path)
    assert "(1 of 3)" not in again.err and again.json == told


def test_another_model_has_its_own_folder_and_its_runs_are_listed(tmp_path: Path) -> None:
    assert pco(*SWEEP, cwd=tmp_path).code == 0
    noisy = pco(*SWEEP, "--lm", "simulated?noise_seed=4", cwd=tmp_path)
    assert noisy.code == 0 and "S-1/0 (1 of 3)" in noisy.err
    assert "simulated?noise_seed=4" in (tmp_path / "results/sweep-s.md").read_text("utf-8")
    folders = {path.name for path in (tmp_path / "runs/bench").iterdir()}
    assert folders == {"tables-simulated", "tables-simulated-noise-seed-4"}
    assert len(pco("runs", "list", "--json", cwd=tmp_path).json) == 6


def test_an_unknown_name_or_preset_says_what_there_is(tmp_path: Path) -> None:
    pco("reproduce", "abblation", cwd=tmp_path).error(2, "did you mean 'ablation'", "sweep-k")
    preset = pco("reproduce", "small-real-model", "--preset", "paper", cwd=tmp_path)
    preset.error(2, "--preset quick or default")
