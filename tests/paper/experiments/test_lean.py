"""`lean`: what decides whether fewer calls are worth it, on figures made up for it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.config import load_config
from promptcodebook.paper.experiments.experiment import ExperimentRequest, Results
from promptcodebook.paper.experiments.lab import open_lab
from promptcodebook.paper.experiments.page import PageTable
from promptcodebook.paper.experiments.reproduce import experiment_named
from tests.build.experiments import Obedient

LEAN = experiment_named("lean")


def run(reward: float, calls: int, row: str = "learned", tried: int = 0) -> dict[str, Any]:
    return {
        "rows": {row: {"rewards": [reward] * 600}, "untrained": {"rewards": [0.0] * 600}},
        "training": {"calls": calls},
        "by_role": {"critic": [10, 0]},
        "search": {"tried": tried},
        "stopped": "",
    }


def page(tmp_path: Path, **arms: list[dict[str, Any]]) -> tuple[str, list[PageTable]]:
    """The page of runs by arm: what was decided, and the tables."""
    named = ((f"simulated/{n}", made) for n, made in arms.items())
    results = {f"{n}/{k}": each for n, made in named for k, each in enumerate(made)}
    with closing(open_lab(tmp_path, "simulated")) as lab:
        made = LEAN.page(Results(ExperimentRequest(LEAN, "default", 1), lab, results, {}))
    texts = [block for block in made.blocks if isinstance(block, str)]
    [decided] = [text for text in texts if "Set before" in text]
    return decided, made.tables


@pytest.mark.parametrize(
    ("rewards", "calls", "met"),
    [
        ((0.5, 0.5), (490, 1000), True),
        ((0.5, 0.5), (510, 1000), False),
        ((0.7, 0.7), (510, 1000), False),
        ((0.5, 0.9), (490, 1000), False),
    ],
    ids=["as good at half the calls", "too many calls", "better, too many calls", "uncertain"],
)
def test_both_the_margin_and_the_share_of_calls_must_be_met(
    tmp_path: Path, rewards: tuple[float, ...], calls: tuple[int, int], met: bool
) -> None:
    lean, default = calls
    own = [run(reward, lean) for reward in rewards]
    decided, _ = page(tmp_path, lean=own, default=[run(0.5, default)] * 2)
    assert f"**{'met' if met else 'not met'}**" in decided


def test_gains_are_over_the_same_untrained_codebook_and_by_calls(tmp_path: Path) -> None:
    """A search with a single prompt is no row; one world that is missing is missing for both."""
    lean = [run(0.5, 500), run(0.5, 500), run(0.5, 500)]
    gepa, mipro = run(0.5, 250, "gepa", 2), run(0.5, 250, "mipro", 1)
    arms = {"lean": lean, "default": [run(0.5, 1000)] * 2, "gepa": [gepa], "mipro": [mipro]}
    _, (table, calls) = page(tmp_path, **arms)
    rows = {row[0]: row for row in table.rows}
    assert list(rows) == ["preset `lean`", "preset `default`", "GEPA (tried 2 to 2 prompts a run)"]
    assert [row[-1] for row in rows.values()] == ["2", "2", "1"]
    assert [row[6].split(" ")[0] for row in rows.values()] == ["+1.000", "+0.500", "+2.000"]
    assert calls.rows[0] == ["preset `lean`", "490", "10", "0", "0", "500"]


def test_a_reader_s_model_is_measured_alone_and_every_setting_is_one() -> None:
    """SmolLM2 and the simulated worlds are one page; a model over HTTP needs neither."""
    order = ExperimentRequest(LEAN, "default", 1)
    small, other = (LEAN.cells(order, spec) for spec in ("smollm2", "http://127.0.0.1:1/v1#m"))
    halves = [{cell.name.partition("/")[0] for cell in cells} for cells in (small, other)]
    assert halves == [{"model", "simulated"}, {"model"}]
    worlds = {cell.settings["lm"] for cell in small if cell.name.startswith("simulated/lean/")}
    assert worlds == {"simulated?world=101", "simulated?world=102"}
    settings = [{**cell.settings} for cell in (*small, *other)]
    configs = [load_config(own) for own in settings if own.pop("form")]
    assert {config.preset for config in configs} == {"default", "lean", "small"}
    capped = [c for c in configs if c.optimizer != "pco" or c.preset == "small"]
    assert {config.budget.calls for config in capped} == {3050, 2150}


def test_on_this_machine_rules_teach_whoever_asks(tmp_path: Path) -> None:
    """Both our loop and GEPA learn rules from the same teacher, and pay for each call."""
    pytest.importorskip("gepa")
    with closing(open_lab(tmp_path, "smollm2", lm=Obedient())) as lab:
        listed = LEAN.cells(ExperimentRequest(LEAN, "quick", 1), "smollm2")
        cells = {cell.name: cell for cell in listed}
        lean, gepa = (cells[f"model/{name}/0"].measure(lab) for name in ("lean", "gepa"))
    assert any(text.startswith("Answer in ") for text in lean["instincts"])
    assert "routes" not in lean
    assert lean["by_role"].keys() == {"encoder", "executor", "critic", "updater"}
    assert gepa["search"]["tried"] >= 2 and gepa["training"]["calls"] <= 60
