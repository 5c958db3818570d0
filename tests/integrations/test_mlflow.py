"""`telemetry = ["mlflow"]`: a run in MLflow's local files."""

import json
from pathlib import Path

import pytest

from tests.build.cli import pco

pytestmark = pytest.mark.local

WORDS = ("train", "--task", "constraints", "--lm", "simulated", "--preset", "quick", "--plain")
SETS = ("update.epochs=2", "update.batch_size=2", "verdict_examples=20", "validation.every=1")


def train(folder: Path, *more: str) -> str:
    """The run's id."""
    sets = (*SETS, 'telemetry=["mlflow"]', "validation.subset=4")
    made = pco(*WORDS, "--json", *(w for s in sets for w in ("--set", s)), *more, cwd=folder)
    assert made.code == 0, made.err
    assert "gets nothing more" not in made.err
    return str(made.json["run"])


def test_a_run_is_on_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run_id = train(tmp_path)
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


def test_a_service_that_fails_costs_the_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    train(tmp_path, "--set", "validation.every=0")
    assert caplog.text.count("MLflow logs nothing more from this run") == 1
