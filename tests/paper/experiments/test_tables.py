"""The tables of the paper, measured again, and the page that shows them."""

import json
import re
import sys
from collections.abc import Mapping
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.config import load_config
from promptcodebook.errors import MissingExtra
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.paper.experiments import page as pages
from promptcodebook.paper.experiments import reproduce
from promptcodebook.paper.experiments.experiment import (
    Experiment,
    ExperimentRequest,
    Results,
    about,
    base,
)
from promptcodebook.paper.experiments.lab import Cell, Lab, open_lab
from promptcodebook.paper.experiments.main import cells_of, methods
from promptcodebook.paper.experiments.page import Page
from promptcodebook.paper.experiments.variants import _spearman  # pyright: ignore[reportPrivateUsage]
from promptcodebook.store.run import RunStore

# The others have tests of their own.
OTHERS = ("small-real-model", "what-learns", "real-roles")
TABLES = [name for name in reproduce.experiment_names() if name not in OTHERS]


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Results, Page]]:
    """All of them in one lab, as `pco reproduce all` makes them."""
    made: dict[str, tuple[Results, Page]] = {}
    with closing(open_lab(tmp_path_factory.mktemp("lab"), "simulated")) as lab:
        for name in TABLES:
            experiment = reproduce.experiment_named(name)
            measured = reproduce.measure(
                ExperimentRequest(experiment, "quick", 1), lab, lambda _: None
            )
            made[name] = measured, experiment.page(measured)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_every_table_of_the_paper_can_be_made_and_is_marked(
    name: str, page_of: dict[str, tuple[Results, Page]]
) -> None:
    measured, page = page_of[name]
    assert not measured.missing
    first, *rest = [block for block in page.blocks if isinstance(block, str)]
    assert first.startswith("**Simulated.**")
    assert f"pco reproduce {name} --preset quick --seeds 1 --lm simulated" in rest[1]
    assert all(len(row) == len(table.head) for table in page.tables for row in table.rows)
    assert page.tables or page.figures or name in ("prompts", "evolution")


@pytest.mark.slow
def test_every_method_of_table_1_trains_with_the_same_and_is_judged(
    page_of: dict[str, tuple[Results, Page]],
) -> None:
    measured, page = page_of["main"]
    made = {name.split("/")[1]: result for name, result in measured.results.items()}
    for name, method in methods().items():
        assert method.row in made[f"{name}-calls"]["rows"], name
    assert not any("ended before" in str(block) for block in page.blocks)
    # What ends by its budget ends at that of training, whatever judging then takes.
    ended = {n: r for n, r in made.items() if n != "floor" and r["ended"] == "budget"}
    assert ended and all("448 calls (48 made" in reason_of(measured, r) for r in ended.values())


def reason_of(measured: Results, result: Mapping[str, Any]) -> str:
    with closing(RunStore.open(measured.lab.folder / result["run"])) as store:
        return store.outline().detail


@pytest.mark.slow
def test_pages_show_the_papers_numbers_apart_and_share_the_runs_that_they_have_in_common(
    page_of: dict[str, tuple[Results, Page]],
) -> None:
    [table] = page_of["ablation"][1].tables
    theirs = [k for k, head in enumerate(table.head) if head.startswith("paper: ")]
    assert [table.head[k] for k in theirs] == [f"paper: {c}" for c in ("Acc", "CSR", "Ent.", "Δ")]
    assert [table.rows[0][k] for k in theirs] == ["34.18", "36.73", "3.76", "+3.23"]
    ours = [cell for row in table.rows for k, cell in enumerate(row) if k not in theirs]
    assert not [cell for cell in ours if re.search(r"3[0-9]\.\d\d", cell)]
    full = (("ablation", "pco/0"), ("sweep-k", "K-8/0"))
    assert len({page_of[name][0].results[cell]["run"] for name, cell in full}) == 1


def test_rank_correlation_looks_at_ranks_alone_and_at_nothing_that_is_constant() -> None:
    same = [(1, 1), (1, 1), (2, 2), (3, 3)]
    for pairs, rank in (([(1, 5), (2, 6), (30, 7)], 1), ([(1, 9), (2, 4), (3, 1)], -1), (same, 1)):
        assert _spearman(pairs) == pytest.approx(rank)
    assert _spearman([(2, 1), (2, 2), (2, 3)]) == 0.0


def test_a_preset_that_an_experiment_does_not_have_is_refused() -> None:
    refused = reproduce.refusal(reproduce.experiment_named("small-real-model"), "paper", "")
    assert refused and "small-real-model has no preset 'paper'" in str(refused)


def test_a_benchmark_takes_part_where_the_model_leaves_its_floor(tmp_path: Path) -> None:
    """One whose floor is not known is no result: else it would be kept as one that the model cannot
    do, and never be measured."""
    nowhere = str(tmp_path / "nowhere")
    order = ExperimentRequest(reproduce.experiment_named("main"), "quick", 1, "pupa", nowhere)
    with closing(open_lab(tmp_path / "lab", "simulated")) as lab:
        measured = reproduce.measure(order, lab, lambda _: None)
        assert not measured.results and "pupa/floor" in measured.missing
        assert "pupa/floor has no result" in measured.missing["pupa/pco-calls/0"]
        floor, *cells = cells_of(order, "simulated")
        assert all(floor.name in cell.after for cell in cells)
        for rewards, answer in (([0.0] * 9, "no"), ([0.5] * 9, "yes")):
            lab.keep(floor, {"row": {"rewards": rewards}})
            measured = reproduce.measure(order, lab, lambda _: None)
            low = {name for name, result in measured.results.items() if result.get("floor")}
            assert len(low) == (0 if answer == "yes" else len(cells))
            assert order.experiment.page(measured).tables[0].rows[0][-1].startswith(answer)
            for name in low:
                (lab.folder / "cells" / f"{name}.json").unlink()


def _search_measured(tmp_path: Path, tried: Mapping[str, Mapping[str, int] | None]) -> Results:
    """Two seeds of each method, as its cells are kept; None = a result that does not say."""
    lab = open_lab(tmp_path, "simulated")
    row = {"rewards": [0.5, 1.0], "failed": 0, "calls": 1.0, "seconds": 0.1}
    row |= dict.fromkeys(("prompt_tokens", "completion_tokens", "longest_prompt"), 10)
    run = {"stopped": "", "verdict": "", "ended": "budget", "training": {"calls": 9, "tokens": 99}}
    results: dict[str, Any] = {}
    for name, search in tried.items():
        rows = {key: row | {"total_prompt": 10} for key in ("present", methods()[name].row)}
        for seed in range(2):
            known = {} if search is None else {"search": search}
            results[f"constraints/{name}-calls/{seed}"] = run | {"rows": rows} | known
    lab.close()
    return Results(
        ExperimentRequest(reproduce.experiment_named("main"), "quick", 2), lab, results, {}
    )


@pytest.mark.parametrize("name", ["main", "cost", "prompt-length"])
def test_a_search_that_tried_one_prompt_is_no_row_and_the_others_say_what_they_tried(
    name: str, tmp_path: Path
) -> None:
    searches: dict[str, Mapping[str, int] | None] = {
        "pco": None,
        "gepa": {"tried": 7, "replies": 12, "cut": 1},
        "gepa-merge": {"tried": 1, "replies": 9, "cut": 9},
        "mipro": None,
    }
    page = reproduce.experiment_named(name).page(_search_measured(tmp_path, searches))
    ours = [t for t in page.tables if not t.name.startswith("paper")]
    titles = [row[0] for table in ours for row in table.rows]
    assert "GEPA (tried 7 prompts a run, 2 of 24 replies cut)" in titles
    assert not [title for title in titles if title.startswith(("GEPA+Merge", "MIPROv2"))]
    text = "\n".join(map(str, page.blocks))
    assert "GEPA+Merge is left out" in text and "tried 1 prompt a run, 18 of 18 replies cut" in text
    assert "MIPROv2 is left out" in text, "a stored result of the old terms brings no row back"


@pytest.mark.parametrize("preset", ["quick", "default", "paper"])
def test_all_that_validate_do_so_on_the_same_examples_and_pay_for_it(preset: str) -> None:
    order = ExperimentRequest(reproduce.experiment_named("main"), preset, 1, "houserules")
    cells = {cell.name.split("/")[1]: cell.settings for cell in cells_of(order, "smollm2")}
    del cells["floor"]
    for key in ("subset", "examples"):
        assert len({settings["validation"][key] for settings in cells.values()}) == 1
    for name, settings in cells.items():
        method, _, kind = name.rpartition("-")
        if method == "pco":
            assert settings["validation"]["every"] > 0 and "keep" not in settings
        if methods()[method].searches:
            drawn = {"temperature": 1.0, "max_tokens": 1024}
            assert settings["roles"]["updater"] == drawn, "a cell of the old terms is not reused"
        same = [s["budget"] for n, s in cells.items() if n.endswith(kind)]
        assert all(budget == same[0] for budget in same)


def test_attempts_that_were_lost_are_named_apart_from_what_training_took(tmp_path: Path) -> None:
    lab = open_lab(tmp_path, "simulated")
    order = ExperimentRequest(reproduce.experiment_named("cost"), "quick", 2)
    found = [{"lost": {"calls": 8, "tokens": 9_352}}, {"lost": {"calls": 0, "tokens": 0}}]
    for results, message in (({"pco/0": found[0], "pco/1": found[0]}, "16 attempts"), ({}, "")):
        results = results or {"pco/0": found[1]}
        page = "\n".join(map(str, about(Results(order, lab, results, {}), "constraints")))
        assert (message in page) and ("got no answer" in page) == bool(message)
        assert ("at most 18,704 tokens" in page) == bool(message)
    lab.close()


@pytest.mark.parametrize("name", ["main", "cost"])
def test_a_page_with_rewards_of_the_stand_in_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(Lab, "weights", "")  # no file of the model is at hand
    order = ExperimentRequest(reproduce.experiment_named(name), "default", 1)
    with closing(open_lab(tmp_path / "lab", "smollm2", lm=ScriptedLM())) as lab:
        page = order.experiment.page(Results(order, lab, {}, {}))
    assert sum("stand-in" in block for block in page.blocks if isinstance(block, str)) == 1


def test_a_small_model_is_asked_neither_to_judge_nor_to_write_without_end() -> None:
    order = ExperimentRequest(reproduce.experiment_named("main"), "default", 1, "pupa")
    here = load_config(base(order, "smollm2", "pupa"), where="a test")
    assert here.reward == "stand-in"
    assert here.roles["untrusted"] == here.roles["executor"]
    served = base(order, "http://localhost:8000/v1#m", "pupa")
    assert "reward" not in served and "roles" not in served
    order = ExperimentRequest(order.experiment, "default", 1, "houserules")
    houserules = base(order, "smollm2", "ifbench")
    assert houserules["roles"]["executor"] == {"temperature": 0.0, "max_tokens": 64}


# One page, written as Markdown and JSON, with its figures drawn.

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


def _measure(lab: Lab) -> Mapping[str, Any]:
    return {"rewards": [0.25]}


def test_markdown_has_the_tables_cells_and_no_sign_that_it_reads_as_its_own() -> None:
    text = pages.markdown(PAGE, "ablation")
    head = "# Ablation\n\nWhat is left out.\n\n| setting | Acc (%) |\n|---|---|\n"
    assert text.startswith(head) and "| a\\|b & c | 50 % |" in text
    assert [f"](ablation/{figure.name}.svg)" in text for figure in FIGURES] == [True] * 3


def _written(out: Path) -> str:
    one = Experiment("ablation", "Table 3", lambda *_: [Cell("only", {}, _measure)], lambda _: PAGE)
    lab = open_lab(out / "lab", "http://127.0.0.1:9/v1#scripted", lm=ScriptedLM())
    try:
        measured = reproduce.measure(ExperimentRequest(one, "quick", 1), lab, lambda _: None)
        return reproduce.write_page(out, measured).read_text()
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
    known = reproduce.read_results(tmp_path / "ablation.json.zst")
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
    measured = reproduce.read_results(file)
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


def test_the_numbers_of_the_paper_are_as_printed() -> None:
    """9.05M, ~126s, 93.8%, 30/32, 14.1×, +3.73: the value is what the digits say."""
    text = resources.files("promptcodebook.paper.experiments").joinpath("published.json")
    entries = [pages.Published(**entry) for entry in json.loads(text.read_text("utf-8"))]
    for entry in entries:
        digits = entry.printed.split("/")[0].strip("~+s%×M")
        value = float(digits) * (1e6 if entry.printed.endswith("M") else 1)
        assert entry.value == pytest.approx(value, abs=1e-9), entry
    cells = {(e.table, e.row, e.column, e.executor) for e in entries}
    assert len(cells) == len(entries)


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
