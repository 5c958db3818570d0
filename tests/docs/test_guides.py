"""Every block of the how-to guides runs as it is printed, on the simulated model."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from tests.build.blocks import DOCS, run_page
from tests.build.cli import pco as typed

NAMES = sorted(path.stem for path in (DOCS / "how-to").glob("*.md"))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader of the guides has: data, a reward, a run called tickets and its policy."""
    folder = tmp_path_factory.mktemp("shop")
    _write_tickets(folder, 12)
    (folder / "pco.toml").write_text(
        'preset = "quick"\nlm = "simulated"\nreward = { kind = "contains" }\n\n'
        '[data]\npath = "tickets.jsonl"\ninput = "question"\ntarget = "answer"\n',
        "utf-8",
    )
    trained = typed("train", "--set", "update.epochs=2", "--name", "tickets", cwd=folder)
    assert trained.code == 0, trained.err
    shutil.copy(next((folder / "runs").glob("*/policy.json")), folder / "tickets.pco.json")
    return folder


def _write_tickets(folder: Path, count: int) -> None:
    rows = [
        {"question": f"How do I return order {n}, bought {n} days ago?", "answer": f"form {n % 9}"}
        for n in range(count)
    ]
    (folder / "tickets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def test_a_gate_of_the_guide_to_ci_can_fail(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shop"
    shutil.copytree(shop, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PCO_PRESET", "quick")
    with pytest.raises(AssertionError, match=r"gain\.low >= -0\.1"):
        run_page(DOCS / "how-to" / "ci-for-prompts.md", folder)  # three examples show nothing


@pytest.mark.slow
@pytest.mark.parametrize("guide", NAMES)
def test_every_block_of_a_guide_runs(
    guide: str, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shop"
    shutil.copytree(shop, folder)
    if guide in ("ci-for-prompts", "headroom"):
        _write_tickets(folder, 160)  # few examples pass no gate, and show nothing
    if guide == "headroom":
        with (folder / "pco.toml").open("a", encoding="utf-8") as file:
            file.write('\n[init]\ninstincts = ["Name the form.", "Answer in one word."]\n')
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PCO_PRESET", "quick")
    run_page(DOCS / "how-to" / f"{guide}.md", folder)


def test_a_block_that_fails_is_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n1 / 0\n```\n", "utf-8")
    with pytest.raises(AssertionError, match="1 / 0"):
        run_page(page, tmp_path)


# The Python of the other pages runs, given what each takes as known: data, a run, a policy.

SMALL = {"preset": "quick", "update": {"epochs": 1, "batch_size": 6}, "validation": {"every": 0}}
PAGES = ["registry.md", "router.md", "verdict.md", "your-code.md"]


def reward(example: pco.Example, output: str) -> pco.Score:
    return pco.Score(float((example.target or "") in output), "name the form")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """In a folder of its own: `data`, `reward`, a `run`, its `policy`, and the files of both."""
    folder = tmp_path_factory.mktemp("pages")
    _write_tickets(folder, 12)
    with contextlib.chdir(folder):
        data = pco.load("tickets.jsonl", input="question", target="answer")
        run = pco.optimize(data, reward, lm="simulated", config=SMALL, progress=False)
        run.policy.save("tickets.pco.json")
    return {"pco": pco, "data": data, "reward": reward, "run": run, "policy": run.policy}


@pytest.fixture
def folder(known: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the run lies, with a registry and a model of its own."""
    folder = known["run"].path.parents[1]
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PCO_LM", "simulated")
    monkeypatch.setenv("PCO_REGISTRY", str(folder / "registry.sqlite"))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page: str, known: dict[str, Any], folder: Path) -> None:
    run_page(DOCS / page, folder, dict(known))


@pytest.mark.slow
def test_gepa_runs_as_the_page_of_baselines_says(
    known: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    """GRPO, below on that page, needs weights: tests/models/local/test_grpo.py."""
    (folder / "pco.toml").write_text(
        'preset = "quick"\nlm = "simulated"\nreward = "exact"\n'
        '[data]\npath = "tickets.jsonl"\ninput = "question"\ntarget = "answer"\n',
        "utf-8",
    )
    page = tmp_path / "baselines.md"
    page.write_text((DOCS / "baselines.md").read_text("utf-8").split("\n## GRPO")[0], "utf-8")
    run_page(page, folder, dict(known))
