"""A run as data frames: every update and every rollout, and nothing private."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import promptcodebook as pco
from promptcodebook.errors import MissingExtra
from promptcodebook.run.optimize import HISTORY, ROLLOUTS
from promptcodebook.store.run import RunStore
from tests.run.test_optimize import train
from tests.store.edit import edit_header


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pco.Run:
    return train(tmp_path_factory.mktemp("framed"), size=8, select=3)


def test_the_history_has_a_row_for_each_update_and_one_before_it(run: pco.Run) -> None:
    pytest.importorskip("pandas")
    history = run.history
    store = RunStore.open(run.path)
    steps = list(store.steps(traces=True))
    store.close()
    assert tuple(history.columns) == HISTORY
    assert list(history["update"]) == list(range(len(steps) + 1))
    last, step = history.iloc[-1], steps[-1]
    rewards = [t.rollout.reward for t in step.traces if t.rollout.reward is not None]
    assert last["reward"] == pytest.approx(sum(rewards) / len(rewards))
    assert last["epsilon"] == step.epsilon and 0.0 < last["utilisation"] <= 1.0
    kept = history[history["kept"]]
    assert len(kept) == 1 and kept["update"].iloc[0] == run.best.step + 1
    assert kept["validation"].iloc[0] == run.best.score
    assert history["rewritten"].sum() == sum(
        r.kept and r.variable not in s.reverted for s in steps for r in s.rewrites
    )


def test_the_rollouts_are_those_of_training_validation_and_the_verdict(run: pco.Run) -> None:
    pytest.importorskip("pandas")
    rollouts = run.rollouts
    assert tuple(rollouts.columns) == ROLLOUTS
    test = rollouts[rollouts["split"] == "test"]
    assert list(dict.fromkeys(test["row"])) == list(run.rows)
    for name, row in run.rows.items():
        assert test[test["row"] == name]["reward"].mean() == pytest.approx(row.score.mean)
    training = rollouts[rollouts["split"] == "train"]
    assert len(training) == len(training["route"].dropna()) and set(training["row"]) == {""}
    assert training["critic"].notna().any() and (training["prompt"].str.len() > 0).all()
    assert set(rollouts["split"]) == {"train", "val", "test"}


def test_texts_of_private_data_are_left_out(run: pco.Run, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    copy = tmp_path / run.id
    shutil.copytree(run.path, copy)
    edit_header(
        copy / "run.sqlite", lambda text: text.replace('"private": false', '"private": true')
    )
    rollouts = pco.load_run(copy).rollouts
    assert len(rollouts) == len(run.rollouts) and rollouts["reward"].notna().any()
    for name in ("prompt", "output", "feedback", "critique", "failure"):
        assert rollouts[name].isna().all(), name


def test_without_pandas_the_error_says_what_to_install(
    run: pco.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for name in ("history", "rollouts"):
        with pytest.raises(MissingExtra, match=f"run.{name}") as caught:
            getattr(run, name)
        assert "pip install 'promptcodebook[pandas]'" in caught.value.hint
