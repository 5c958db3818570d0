"""A run that version 0.1.0 began and a call budget stopped: it opens, is read, and goes on.

`runs_0_1_0` holds its file and its data: 4 instincts, 3 steps planned and 2 made, 70 calls to the
simulated model.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from promptcodebook.assemble import Sources
from promptcodebook.config import Budget, load_config
from promptcodebook.errors import RunChanged
from promptcodebook.policy.references import first_policy, resolve
from promptcodebook.run.opening import Opened, Where, open_run
from promptcodebook.store import RunStore, list_runs

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


def resume(folder: Path) -> Opened:
    """The run with more budget; its paths start from where its data lies now."""
    store = RunStore.open(folder)
    store.close()
    config = load_config(store.header.config).model_copy(update={"budget": Budget(calls=500)})
    return open_run(config, Sources(folder.parents[1]), Where(folder.parent, resume=folder))


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


def test_it_is_listed_as_resumable(old_run: Path) -> None:
    (run,) = list_runs(old_run.parent)
    assert (run.id, run.step, run.best, run.ended) == (ID, 1, 0.75, "budget")
    assert run.resumable


def test_its_policy_is_the_best_validated_one(old_run: Path) -> None:
    reference = resolve(old_run.parent, "2026")
    assert reference.best is not None and (reference.best.step, reference.best.score) == (-1, 0.75)
    first = first_policy(old_run.parent, ID)
    assert first.encoder
    assert (reference.file.encoder, reference.file.codebook) == (first.encoder, first.codebook)


async def test_it_resumes_from_its_journal_and_finishes(old_run: Path) -> None:
    before = RunStore.open(old_run)
    steps, paid = list(before.steps(traces=True)), before.usage()
    before.close()
    opened = resume(old_run)
    await opened.session.run()
    store = opened.store
    state = store.state()
    assert (state.step, state.ended, state.resumes) == (2, "finished", 1)
    assert list(store.steps(traces=True))[:2] == steps
    assert store.tallies()["journal_hits"] > 0
    assert all(store.usage()[role].calls >= usage.calls for role, usage in paid.items())
    assert [row.name for row in store.test_evaluations()][-1] == "learned"
    await opened.close()


def test_it_is_refused_with_a_sentence_when_its_data_changed(old_run: Path) -> None:
    data = old_run.parents[1] / "data.jsonl"
    rows = [json.loads(line) for line in data.read_text("utf-8").splitlines()]
    rows[0]["target"] = "1000"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    with pytest.raises(RunChanged, match=f"the data of the run {ID} changed since it started"):
        resume(old_run)
