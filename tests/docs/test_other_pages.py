"""The Python of the other pages runs, given what each takes as known: data, a run, a policy."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from tests.docs.blocks import DOCS, run_page

SMALL = {"preset": "quick", "update": {"epochs": 1, "batch_size": 6}, "validation": {"every": 0}}
PAGES = ["registry.md", "router.md", "verdict.md", "your-code.md"]


def reward(example: pco.Example, output: str) -> pco.Score:
    return pco.Score(float((example.target or "") in output), "name the form")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """In a folder of its own: `data`, `reward`, a `run`, its `policy`, and the files of both."""
    folder = tmp_path_factory.mktemp("pages")
    rows = [
        {"question": f"How do I return order {n}, bought {n} days ago?", "answer": f"form {n % 9}"}
        for n in range(12)
    ]
    (folder / "tickets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    before = Path.cwd()
    os.chdir(folder)
    try:
        data = pco.load("tickets.jsonl", input="question", target="answer")
        run = pco.optimize(data, reward, lm="simulated", config=SMALL, progress=False)
        run.policy.save("tickets.pco.json")
    finally:
        os.chdir(before)
    return {"pco": pco, "data": data, "reward": reward, "run": run, "policy": run.policy}


@pytest.fixture
def folder(known: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the run lies, with a registry and a model of its own."""
    folder = known["run"].path.parents[1]
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PCO_LM", "simulated")
    monkeypatch.setenv("PCO_REGISTRY", str(folder / "registry.sqlite"))
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page: str, known: dict[str, Any], folder: Path) -> None:
    run_page(DOCS / page, folder, dict(known))


def test_the_python_of_the_readme_runs(known: dict[str, Any], folder: Path) -> None:
    run_page(DOCS.parent / "README.md", folder, dict(known))


@pytest.mark.slow
def test_gepa_runs_as_the_page_of_baselines_says(
    known: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    """GRPO, below on that page, needs weights: tests/local/test_grpo.py."""
    (folder / "pco.toml").write_text(
        'preset = "quick"\nlm = "simulated"\nreward = "exact"\n'
        '[data]\npath = "tickets.jsonl"\ninput = "question"\ntarget = "answer"\n',
        "utf-8",
    )
    page = tmp_path / "baselines.md"
    page.write_text((DOCS / "baselines.md").read_text("utf-8").split("\n## GRPO")[0], "utf-8")
    run_page(page, folder, dict(known))
