"""The demo on the real weights, a fraction of its work: every row is made by the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from promptcodebook.assemble import Sources
from promptcodebook.cli.demo_real import demo_config, missing_model, show
from promptcodebook.config import load_config

pytestmark = pytest.mark.local


def test_the_demo_learns_and_judges_on_smollm2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert missing_model() is None
    monkeypatch.chdir(tmp_path)
    tree = demo_config().model_dump(mode="json")
    tree["update"].update({"epochs": 2, "batch_size": 8})
    tree["validation"]["subset"] = 2
    tree["roles"]["executor"]["max_tokens"] = 24
    config = load_config(tree, {"verdict_examples": 4}, where="the test")
    assert show(config, Sources(), plain=True, as_json=True) == 0
    shown = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in shown["rows"]}
    assert set(rows) == {"none", "present", "best_single", "concat", "learned", "oracle"}
    assert all(row["failed"] == 0 and row["score"]["n"] == 4 for row in rows.values())
    assert rows["learned"]["calls_per_query"] == 1.0
    replies = {
        sample[row]["reply"] for sample in shown["samples"] for row in ("present", "learned")
    }
    assert len(replies) > 1 and all(replies)
    assert shown["simulated"] is False and shown["verdict"]
