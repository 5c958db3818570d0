"""One page, written as Markdown, LaTeX and JSON, with its figures drawn."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.errors import MissingExtra
from promptcodebook.experiments.experiment import Experiment, Order
from promptcodebook.experiments.lab import Cell, Lab, open_lab
from promptcodebook.experiments.page import (
    Bars,
    Curves,
    Figure,
    Heat,
    Page,
    Point,
    Table,
    draw,
    latex,
    markdown,
)
from promptcodebook.experiments.reproduce import measure, write_page
from promptcodebook.lm.scripted import ScriptedLM

TABLE = Table(
    "ablation", ["setting", "Acc (%)"], [["w/o ε_greedy", "28.2 ± 1.0"], ["a|b & c", "50 %"]]
)
FIGURES: list[Figure] = [
    Bars("usage", "How often", "uses", ["0", "1"], {"with": [3.0, None], "without": [9.0, 1.0]}),
    Curves(
        "sweep",
        "Codebook size K",
        "K",
        "Acc (%)",
        {"Acc": [Point(4, 0.3, 0.2, 0.5), Point(16, 0.4)]},
        {"CSR": [Point(4, 0.5), Point(16, 0.6)]},
        "CSR (%)",
        log_x=True,
    ),
    Heat("routing", "Routing", "epoch", "instinct", [[0.1, 0.9], [0.7, 0.2]]),
]
PAGE = Page("Ablation", ["What is left out.", TABLE, *FIGURES])


def test_markdown_has_the_tables_cells_and_a_picture_for_each_figure() -> None:
    text = markdown(PAGE, "ablation")
    assert text.startswith(
        "# Ablation\n\nWhat is left out.\n\n| setting | Acc (%) |\n| --- | --- |\n"
    )
    assert "| a\\|b & c | 50 % |" in text
    assert [f"](ablation/{figure.name}.svg)" in text for figure in FIGURES] == [True] * 3


def test_latex_has_no_sign_that_latex_reads_as_its_own() -> None:
    text = latex(TABLE)
    assert r"w/o $\varepsilon$\_greedy & 28.2 $\pm$ 1.0 \\" in text
    assert r"setting & Acc (\%) \\" in text
    assert r"a|b \& c & 50 \% \\" in text


@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f.name)
def test_a_figure_is_drawn_twice_to_the_same_bytes(figure: Figure, tmp_path: Path) -> None:
    first, again = draw(figure, tmp_path / "a"), draw(figure, tmp_path / "b")
    assert [p.suffix for p in first] == [".svg", ".png"]
    assert first[0].read_bytes() == again[0].read_bytes()
    drawn = first[0].read_text("utf-8")
    labels = [figure.x, figure.y] if not isinstance(figure, Bars) else [figure.y, *figure.series]
    assert all(f">{label}</text>" in drawn for label in labels)


def _measure(lab: Lab) -> Mapping[str, Any]:
    return {"rewards": [0.25]}


def _written(out: Path) -> str:
    one = Experiment("ablation", "Table 3", lambda *_: [Cell("only", {}, _measure)], lambda _: PAGE)
    lab = open_lab(out / "lab", "http://127.0.0.1:9/v1#scripted", lm=ScriptedLM())
    try:
        return write_page(out, measure(Order(one, "quick", 1), lab, lambda _: None)).read_text()
    finally:
        lab.close()


def test_a_page_is_written_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    assert _written(tmp_path) == markdown(PAGE, "ablation")
    names = {path.name for path in (tmp_path / "ablation").iterdir()}
    drawn = {f"{figure.name}.{kind}" for figure in FIGURES for kind in ("svg", "png")}
    assert names == {"ablation.tex", "results.json", *drawn}
    assert '"results": {"only": {"rewards": [0.25]}}' in (
        tmp_path / "ablation" / "results.json"
    ).read_text("utf-8")


def test_without_matplotlib_the_page_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra):
        draw(FIGURES[0], tmp_path)
    assert "How often: not drawn (pip install 'promptcodebook[figures]')" in _written(tmp_path)
