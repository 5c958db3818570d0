"""Loading PUPA, its place in a session, and the advice about the untrusted endpoint."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.assemble import plan_run
from promptcodebook.config import load_config
from promptcodebook.doctor.checkup import checkup
from promptcodebook.errors import DataError, TaskError
from promptcodebook.estimation.estimate import estimate
from promptcodebook.incidents import no_tally
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.structured import Ask
from promptcodebook.tasks.pupa.judge import JudgeReward, StandIn, units_of
from promptcodebook.tasks.pupa.score import leaked_units
from promptcodebook.tasks.task import load_task

SHARED = Path(os.environ.get("PCO_SHARED") or Path(__file__).parents[4] / "shared")
ROW = {"id": "a", "user_query": "SECRET q", "target_response": "SECRET r", "pii_units": "secret"}


@pytest.fixture(autouse=True)
def _own_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a data folder nor a public copy of the one who runs the tests is met."""
    monkeypatch.delenv("PCO_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no copy here"))


def written(folder: Path, train: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.jsonl").write_text(train, "utf-8")
    for split in ("val", "test"):
        (folder / f"{split}.jsonl").write_text(json.dumps({**ROW, "id": split}), "utf-8")
    return folder


def test_what_ships() -> None:
    task = load_task("pupa")
    assert len(task.dataset) >= 8
    assert len(set(task.seeds)) >= 16
    assert task.reward_range == (-1.0, 1.0)
    assert "quality - 1 x leakage" in task.description and "--data" in task.description
    for _, examples in task.dataset.items():
        for example in examples:
            units = units_of(example)
            # A unit that the query does not hold could neither leak nor be removed.
            assert units and leaked_units(example.input, units) == units


def test_a_folder_or_its_parent(tmp_path: Path) -> None:
    written(tmp_path / "pupa", json.dumps(ROW) + "\n\n")
    for folder in (tmp_path, tmp_path / "pupa"):
        task = load_task("pupa", folder)
        (example,) = task.dataset.train
        assert (example.id, example.input, example.target) == ("a", "SECRET q", "SECRET r")
        assert units_of(example) == ("secret",)
        assert "keep runs on them private" in task.description


def test_a_folder_without_the_files(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no train.jsonl in") as caught:
        load_task("pupa", tmp_path)
    assert "--data" in caught.value.hint


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ('{"id": "SECRET', "cannot be read"),
        ('["SECRET"]', "cannot be read"),
        ("SECRET", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        (json.dumps({k: v for k, v in ROW.items() if k != "pii_units"}), "'pii_units' is missing"),
        (json.dumps({**ROW, "user_query": None}), "'user_query' must be a text"),
        (json.dumps({**ROW, "target_response": ["SECRET"]}), "'target_response' must be a text"),
        (json.dumps({**ROW, "target_response": " "}), "'target_response' is empty"),
        (json.dumps({**ROW, "pii_units": {"SECRET": 1}}), "'pii_units' must be a text"),
        (json.dumps({**ROW, "user_query": "SECRET"}), "the field 'id' is that of an earlier row"),
    ],
)
def test_a_malformed_row_is_named_by_line_and_field_and_never_quoted(
    tmp_path: Path, second: str, said: str
) -> None:
    folder = written(tmp_path, f"{json.dumps(ROW)}\n{second}\n")
    with pytest.raises(DataError, match=said) as caught:
        load_task("pupa", folder)
    assert f"{folder / 'train.jsonl'}:2: " in str(caught.value)
    assert "secret" not in f"{caught.value} {caught.value.hint}".lower()


def test_bytes_that_are_no_text_and_a_file_without_rows(tmp_path: Path) -> None:
    folder = written(tmp_path, "\n")
    with pytest.raises(DataError, match=r"train.jsonl: cannot be read"):
        load_task("pupa", folder)
    (folder / "train.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(DataError, match=r"train.jsonl:1: cannot be read"):
        load_task("pupa", folder)


def test_the_public_split_sizes() -> None:
    folder = SHARED / "data" / "pupa"
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}; set PCO_SHARED to the folder that holds it")
    dataset = load_task("pupa", SHARED / "data").dataset
    assert [len(examples) for _, examples in dataset.items()] == [111, 111, 147]


def test_the_judge_decides_unless_the_stand_in_is_asked_for() -> None:
    ask = Ask(ScriptedLM(), no_tally)
    task = load_task("pupa")
    assert isinstance(task.reward(None), StandIn)
    assert isinstance(task.reward(ask), JudgeReward)


def calls(**settings: Any) -> dict[str, float]:
    config = load_config({"task": "pupa", "lm": "simulated", **settings})
    return {share.role: share.calls.expected for share in estimate(plan_run(config)).roles}


SHORT = {"update": {"epochs": 10}, "validation": {"every": 5, "subset": 20}}


@pytest.mark.slow
def test_the_estimate_counts_the_judge_and_the_outside_model() -> None:
    with_judge, without = calls(**SHORT), calls(**SHORT, reward="stand-in")
    # Two calls of the executor for each request that goes outside; three of the judge an answer.
    assert with_judge["executor"] == pytest.approx(2 * with_judge["untrusted"], abs=2)
    assert with_judge["judge"] == pytest.approx(3.06 * with_judge["untrusted"], rel=0.02)
    assert "judge" not in without and without["untrusted"] == with_judge["untrusted"]


def endpoint(tmp_path: Path, **settings: Any) -> dict[str, str]:
    """What doctor finds about the untrusted role's endpoint: level and words."""
    config = load_config({"lm": "simulated", "cache": False, **settings})

    async def looked() -> dict[str, str]:
        found = [s async for s in checkup(config, tmp_path, tmp_path / "runs", {})]
        return {f.level: f.what for s in found if s.title == "untrusted" for f in s.findings}

    return asyncio.run(looked())


def test_doctor_warns_of_a_shared_endpoint_even_where_none_is_named(tmp_path: Path) -> None:
    shared = endpoint(tmp_path, task="pupa")
    assert list(shared) == ["warn"] and "executor" in shared["warn"]
    own = {"untrusted": {"model": "simulated?world=2"}}
    assert list(endpoint(tmp_path, task="pupa", roles=own)) == ["warn"]
    apart = {"untrusted": {"model": "http://127.0.0.1:9/v1#m"}}
    assert list(endpoint(tmp_path, task="pupa", roles=apart, retries=0)) == ["ok"]
    assert endpoint(tmp_path, task="constraints") == {}
