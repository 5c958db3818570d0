"""The demo on the weights of SmolLM2, a fraction of its work, and the command of its page. What a
killed run over HTTP comes to is measured by `python -m bench.smollm2_http`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from promptcodebook.assemble import Sources
from promptcodebook.config import load_config
from promptcodebook.paper.experiments.demo import demo_config, missing_model, show
from tests.build.cli import pco

pytestmark = pytest.mark.local


PAGE = (Path(__file__).parents[3] / "docs" / "smollm2.md").read_text("utf-8")


def test_the_demo_learns_and_judges_on_smollm2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert missing_model() is None
    monkeypatch.chdir(tmp_path)
    tree = demo_config().model_dump(mode="json")
    tree["update"].update({"epochs": 2, "batch_size": 4})
    tree["validation"]["subset"] = 2
    tree["roles"]["executor"]["max_tokens"] = 24
    config = load_config(tree, {"verdict_examples": 2}, where="the test")
    assert show(config, Sources(), plain=True, as_json=True) == 0
    shown = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in shown["rows"]}
    named = {"none", "present", "best_single", "concat", "untrained", "learned", "oracle"}
    assert set(rows) == named
    assert all(row["failed"] == 0 and row["score"]["n"] == 2 for row in rows.values())
    assert rows["learned"]["calls_per_query"] == 1.0
    replies = {
        sample[row]["reply"] for sample in shown["samples"] for row in ("present", "learned")
    }
    assert len(replies) > 1 and all(replies)
    assert shown["simulated"] is False and shown["verdict"]


def test_the_command_of_its_page_trains(tmp_path: Path) -> None:
    section = PAGE.split("\n## A real model without an endpoint\n")[1].split("\n## ")[0]
    lines = section.replace("\\\n", " ").splitlines()
    [line] = [line for line in lines if line.startswith("pco train")]
    less = ["--set", "roles.executor.max_tokens=8", "--set", "validation.subset=2"]
    less += ["--set", "update.epochs=2", "--set", "update.batch_size=4"]
    less += ["--set", "verdict_examples=2", "--json"]
    done = pco(*shlex.split(line)[1:], *less, cwd=tmp_path)
    assert done.code == 0, done.err
    assert json.loads(done.out)["ended"] == "finished"
