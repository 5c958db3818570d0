"""`telemetry = ["mlflow", "wandb"]`: a run in MLflow's local files, and in W&B's offline files."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.build.cli import pco

pytestmark = pytest.mark.local

WORDS = ("train", "--task", "constraints", "--lm", "simulated", "--preset", "quick", "--plain")
SETS = ("update.epochs=2", "update.batch_size=2", "verdict_examples=20", "validation.every=1")


def train(folder: Path, name: str, *more: str) -> str:
    """The run's id."""
    sets = (*SETS, f'telemetry=["{name}"]', "validation.subset=4")
    made = pco(*WORDS, "--json", *(w for s in sets for w in ("--set", s)), *more, cwd=folder)
    assert made.code == 0, made.err
    assert "hears no more" not in made.err
    return str(made.json["run"])


def test_a_run_is_on_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run_id = train(tmp_path, "mlflow")
    from mlflow import MlflowClient

    client = MlflowClient()
    home = client.get_experiment_by_name("promptcodebook")
    [run] = client.search_runs([home.experiment_id])
    assert run.info.run_name == run_id and run.info.status == "FINISHED"
    assert run.data.params["update.epochs"] == "2" and run.data.params["task"] == "constraints"
    assert run.data.params["model.executor"] == "simulated"
    steps = client.get_metric_history(run.info.run_id, "reward")
    assert {each.step for each in steps} == {1, 2}
    assert run.data.metrics["best_validation"] >= 0 and run.data.metrics["calls"] > 0
    assert "verdict/learned" in run.data.metrics and run.data.tags["pco.verdict"]
    files = {each.path for each in client.list_artifacts(run.info.run_id)}
    assert files == {"verdict.json", "report.html"}
    folder = Path(client.download_artifacts(run.info.run_id, "", str(tmp_path)))
    table = json.loads((folder / "verdict.json").read_text())
    assert table["columns"][:2] == ["prompt", "reward"] and "learned" in {
        r[0] for r in table["data"]
    }
    assert run_id in (folder / "report.html").read_text()


def test_a_run_is_in_the_offline_files_of_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    run_id = train(tmp_path, "wandb")
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    records = [*read_records(file)]
    [begun] = [r.run for r in records if r.WhichOneof("record_type") == "run"][:1]
    assert (begun.run_id, begun.project) == (run_id, "promptcodebook")
    config = {each.key: json.loads(each.value_json) for each in begun.config.update}
    assert config["update.epochs"] == "2" and config["task"] == "constraints"
    lines = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in r.history.item}
        for r in records
        if r.WhichOneof("record_type") == "history"
    ]
    assert {line["step"] for line in lines if "reward" in line} >= {1, 2}
    assert any("verdict_table" in line for line in lines)
    names = [r.artifact.name for r in records if r.WhichOneof("record_type") == "artifact"]
    assert f"report-{run_id}" in names


def read_records(file: Path) -> Iterator[Any]:
    """Of a .wandb file, a log as LevelDB writes it: blocks of 32 KiB, in which a record has a head
    of seven bytes (checksum, length, and whether it is whole, first, middle or last)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, held = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := -at % 2**15) and left < 7:  # the rest of a block has no room for a head
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        held += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(held)
            yield record
            held = b""


def test_a_service_that_fails_costs_the_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    train(tmp_path, "mlflow", "--set", "validation.every=0")
    assert caplog.text.count("MLflow hears no more of this run") == 1
