"""One page, written as Markdown and JSON, with its figures drawn."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.errors import MissingExtra
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.paper.experiments import page as pages
from promptcodebook.paper.experiments.experiment import Experiment, ExperimentRequest
from promptcodebook.paper.experiments.lab import Cell, Lab, open_lab
from promptcodebook.paper.experiments.reproduce import measure, read_results, write_page

TABLE = pages.PageTable(
    "ablation", ["setting", "Acc (%)"], [["w/o ε_greedy", "28.2 ± 1.0"], ["a|b & c", "50 %"]]
)
FIGURES: list[pages.Plot] = [
    pages.Bars(
        "usage", "How often", "", "uses", ["0", "1"], {"with": [3, None], "without": [9, 1]}
    ),
    pages.Curves(
        *("sweep", "Codebook size K", "K", "Acc (%)"),
        {"Acc": [pages.PlotPoint(4, 0.3, 0.2, 0.5), pages.PlotPoint(16, 0.4)]},
        {"CSR": [pages.PlotPoint(4, 0.5), pages.PlotPoint(16, 0.6)]},
        y_right="CSR (%)",
        log_x=True,
    ),
    pages.Heat("routing", "Routing", "epoch", "instinct", [[0.1, 0.9], [0.7, 0.2]]),
]
PAGE = pages.Page("Ablation", ["What is left out.", TABLE, *FIGURES])


def test_markdown_has_the_tables_cells_and_no_sign_that_it_reads_as_its_own() -> None:
    text = pages.markdown(PAGE, "ablation")
    head = "# Ablation\n\nWhat is left out.\n\n| setting | Acc (%) |\n|---|---|\n"
    assert text.startswith(head) and "| a\\|b & c | 50 % |" in text
    assert [f"](ablation/{figure.name}.svg)" in text for figure in FIGURES] == [True] * 3


def _measure(lab: Lab) -> Mapping[str, Any]:
    return {"rewards": [0.25]}


def _written(out: Path) -> str:
    one = Experiment("ablation", "Table 3", lambda *_: [Cell("only", {}, _measure)], lambda _: PAGE)
    lab = open_lab(out / "lab", "http://127.0.0.1:9/v1#scripted", lm=ScriptedLM())
    try:
        measured = measure(ExperimentRequest(one, "quick", 1), lab, lambda _: None)
        return write_page(out, measured).read_text()
    finally:
        lab.close()


def test_a_page_is_written_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    assert _written(tmp_path) == pages.markdown(PAGE, "ablation")
    beside = tmp_path / "ablation"
    drawn = {f"{figure.name}.{kind}" for figure in FIGURES for kind in ("svg", "png")}
    assert {path.name for path in beside.iterdir()} == drawn
    for figure in FIGURES:
        svg = (beside / f"{figure.name}.svg").read_text("utf-8")
        bars = isinstance(figure, pages.Bars)
        labels = [figure.y, *figure.series] if bars else [figure.x, figure.y]
        assert all(f">{label}</text>" in svg for label in labels)
    again, _ = pages.draw(FIGURES[1], tmp_path / "again")
    assert again.read_bytes() == (beside / again.name).read_bytes(), "drawn twice alike"
    known = read_results(tmp_path / "ablation.json.zst")
    assert known.results == {"only": {"rewards": [0.25]}}
    assert (known.order.preset, known.lab.spec, known.lab.weights) == (
        "quick",
        "http://127.0.0.1:9/v1#scripted",
        "",
    )


DOCS = Path(__file__).parents[3] / "docs"
STORED = sorted((DOCS / "results").rglob("*.json.zst"))
# Beside what is generated, paragraphs that were written later.
BY_HAND = {"main", "cost", "prompt-length"}


@pytest.mark.parametrize("file", STORED, ids=lambda f: f.parent.name + f.name)
def test_the_figures_of_a_kept_page_are_recomputed_from_its_data(file: Path) -> None:
    measured = read_results(file)
    name, page = measured.order.experiment.name, measured.order.experiment.page(measured)
    kept, fresh = file.with_name(f"{name}.md").read_text("utf-8"), pages.markdown(page, name)
    if name not in BY_HAND:
        assert kept == fresh, f"python docs/generate_results.py {name}"
    rows = [line for line in fresh.splitlines() if line.startswith("| ")]
    assert len(rows) > 3 and [row for row in rows if row not in kept] == []


def test_without_matplotlib_the_page_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra):
        pages.draw(FIGURES[0], tmp_path)
    assert "How often: not drawn (pip install 'promptcodebook[figures]')" in _written(tmp_path)


# The paper's numbers: the file keeps its schema, and only numbers of one metric are paired.


SIX = ("HotpotQA", "IFBench", "HoVER", "PUPA", "AIME-25", "LB-Math")
MODELS = ("Qwen3-8B", "LLaMA-3.1-8B")


def entries() -> list[dict[str, Any]]:
    file = resources.files("promptcodebook.paper.experiments").joinpath("published.json")
    return json.loads(file.read_text("utf-8"))


def read(printed: str) -> float:
    """The number that the printed digits say: 9.05M, ~126s, 93.8%, 30/32, 14.1×, +3.73."""
    digits = printed.split("/")[0].strip("~+s%×M")
    return float(digits) * (1e6 if printed.endswith("M") else 1)


def test_the_file_of_the_papers_numbers_is_whole() -> None:
    """Every entry has its fields, and its value is what its printed digits say."""
    names = {field.name for field in fields(pages.Published)}
    for entry in entries():
        assert names - {"error", "note"} <= set(entry) <= names, entry
        texts = ("table", "row", "column", "metric", "printed", "unit")
        assert all(isinstance(entry[name], str) and entry[name] for name in texts), entry
        assert isinstance(entry["value"], int | float), entry
        assert all(isinstance(entry[name], str | None) for name in ("executor", "benchmark")), entry
        assert entry["value"] == pytest.approx(read(entry["printed"]), abs=1e-9), entry
    cells = [tuple(e[k] for k in ("table", "row", "column", "executor")) for e in entries()]
    assert len(set(cells)) == len(cells)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("row", ["Baseline", "GRPO", "MIPROv2", "GEPA", "GEPA+Merge", "PCO"])
def test_the_aggregates_of_table_1_are_the_means_of_its_columns(row: str, model: str) -> None:
    """A slip of a digit in the file would show here."""
    values = {v.column: v.value for v in pages.published("Table 1", model) if v.row == row}
    assert values["Agg."] == pytest.approx(sum(values[c] for c in SIX) / 6, abs=0.0051)


def test_a_number_is_paired_by_its_metric_alone() -> None:
    table = pages.published("Table 1", "LLaMA-3.1-8B")
    cell = pages.paired(table, "PCO", "IFBench", "loose_share")
    assert cell is not None
    assert (cell.printed, cell.unit, cell.benchmark) == ("34.18", "percent", "IFBench")
    assert pages.paired(table, "PCO", "IFBench", "csr") is None
    [sweep] = [v for v in pages.published("Figure 5a") if (v.row, v.column) == ("K=16", "Acc")]
    assert (sweep.value, sweep.error) == (34.18, 1.9)
    assert pages.paired(table, "PCO", "HoVER", "hover_score") is None
    assert pages.paired(table, "Baseline", "Δ", "mean_of_six_gain") is None, "a dash in the paper"
