"""What a run has on record of one example, and what it withholds of private data."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import promptcodebook as pco
from promptcodebook.report.traces import read_record
from promptcodebook.store.run import RunStore
from tests.run.test_optimize import train
from tests.store.edit import edit_header


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pco.Run:
    return train(tmp_path_factory.mktemp("recorded"), size=8, select=3)


def test_every_time_an_example_was_drawn_is_there(run: pco.Run) -> None:
    store = RunStore.open(run.path)
    traces = [(step.index, trace) for step in store.steps(traces=True) for trace in step.traces]
    store.close()
    name = traces[0][1].rollout.example_id
    own = [(step, trace) for step, trace in traces if trace.rollout.example_id == name]
    record = read_record(run.path, name)
    assert record is not None and not record.judged and record.validated is None
    assert [(t.step, t.trace) for t in record.trainings] == own
    for training in record.trainings:
        blamed = {variable for variable, _ in training.blamed}
        assert {rewrite.variable for rewrite in training.rewrites} <= blamed


def test_an_example_that_the_run_never_saw_has_no_record(run: pco.Run) -> None:
    assert read_record(run.path, "nobody") is None


def test_texts_of_private_data_are_withheld(run: pco.Run, tmp_path: Path) -> None:
    copy = tmp_path / run.id
    shutil.copytree(run.path, copy)
    edit_header(copy / "run.sqlite", lambda t: t.replace('"private": false', '"private": true'))
    store = RunStore.open(copy)
    trained = next(store.steps(traces=True)).traces[0].rollout.example_id
    tested = next(store.test_evaluations()).rollouts[0].example_id
    store.close()
    for name in (trained, tested):
        record = read_record(copy, name)
        assert record is not None
        rollouts = [t.trace.rollout for t in record.trainings] + [r for _, r in record.judged]
        assert rollouts and all(r.output.startswith("(private: ") for r in rollouts)
