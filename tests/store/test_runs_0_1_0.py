"""A run that version 0.1.0 began and a call budget stopped: it opens, and is not resumed.

`runs_0_1_0` holds its file and its data: 4 instincts, 3 steps planned and 2 made, 70 calls to the
simulated model.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from promptcodebook.assemble import Sources
from promptcodebook.config import load_config
from promptcodebook.errors import RunChanged
from promptcodebook.policy.references import first_policy, resolve
from promptcodebook.run.opening import Where, open_run
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import list_runs

STORED = Path(__file__).parent / "runs_0_1_0"
ID = "20261121-211650-data"


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """Its folder, below a folder of runs and beside its data, as 0.1.0 left them."""
    shutil.copy(STORED / "data.jsonl", tmp_path)
    folder = tmp_path / "runs" / ID
    folder.mkdir(parents=True)
    shutil.copy(STORED / ID / "run_sqlite.bin", folder / "run.sqlite")
    return folder


def test_its_events_fold_to_where_it_stopped(old_run: Path) -> None:
    store = RunStore.open(old_run)
    state = store.state()
    assert store.header.version == "0.1.0"
    assert (state.step, state.epoch, state.ended) == (1, 1, "budget")
    assert [(m.step, m.score, m.n) for m in state.validations] == [(-1, 0.75, 4), (1, 0.75, 4)]
    assert state.parameters is not None and len(state.parameters.codebook.instincts) == 4
    assert store.outline() == state
    assert list(store.test_evaluations()) == []
    assert sum(usage.calls for usage in store.usage().values()) == 70
    store.close()


def test_its_steps_and_traces_are_read_as_if_written_today(old_run: Path) -> None:
    store = RunStore.open(old_run)
    steps = list(store.steps(traces=True))
    store.close()
    assert [step.index for step in steps] == [0, 1]
    for step in steps:
        assert len(step.traces) == 4
        assert all(trace.rollout.prompt and trace.rollout.route for trace in step.traces)
        assert all(0 <= k < 4 for trace in step.traces for k in trace.gradients.codebook)
    # 0.1.0 named an instinct 'c2' where it is 2 now.
    rewritten = {rewrite.variable for step in steps for rewrite in step.rewrites}
    assert rewritten <= {"encoder", "generator", "critic", 0, 1, 2, 3}
    assert rewritten & {0, 1, 2, 3}


def test_it_is_listed(old_run: Path) -> None:
    (run,) = list_runs(old_run.parent)
    assert (run.id, run.step, run.best, run.ended) == (ID, 1, 0.75, "budget")


def test_its_policy_is_the_best_validated_one(old_run: Path) -> None:
    reference = resolve(old_run.parent, "2026")
    assert reference.best is not None and (reference.best.step, reference.best.score) == (-1, 0.75)
    first = first_policy(old_run.parent, ID)
    assert first.encoder
    assert (reference.file.encoder, reference.file.codebook) == (first.encoder, first.codebook)


def test_resuming_it_is_refused_in_a_sentence(old_run: Path) -> None:
    config = load_config(RunStore.open(old_run).header.config)
    where = Where(old_run.parent, resume=old_run)
    with pytest.raises(RunChanged, match=f"the run {ID} was begun by version 0.1.0") as refused:
        open_run(config, Sources(old_run.parents[1]), where)
    assert refused.value.hint.endswith(f"pco codebook show {ID}")
