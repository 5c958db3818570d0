"""What a run buys with a small budget, on the simulated model: first of all a verdict."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.assemble import Sources, plan_run
from promptcodebook.config import load_config
from promptcodebook.data import Dataset
from promptcodebook.optimizers.reserve import budget_remark
from promptcodebook.progress import Note, ProgressEvent
from promptcodebook.store.run import RunStore
from tests.build.cli import served
from tests.build.server import Server, says

SETTINGS: dict[str, Any] = {"preset": "full", "task": "constraints", "lm": "simulated"}


def rows(test: int = 37) -> Dataset:
    known = plan_run(load_config(SETTINGS)).dataset
    every = [*known.train, *known.val, *known.test]
    train, val = tuple(every[:75]), tuple(every[75:113])
    return Dataset(train, val, tuple(every[113 : 113 + test]))


def train(folder: Path, budget: str, data: Dataset | None = None, **more: Any) -> pco.Run:
    config = {**SETTINGS, **more.pop("config", {})}
    return pco.optimize(
        data or rows(), "", budget=budget, config=config, runs_dir=folder, progress=False, **more
    )


def hear(notes: list[str]) -> Callable[[ProgressEvent], None]:
    return lambda event: notes.append(event.text) if isinstance(event, Note) else None


@pytest.mark.parametrize(
    ("calls", "trained", "judged"), [(100, 0, 20), (163, 1, 20), (300, 1, 20), (1200, 1, 33)]
)
def test_a_budget_buys_a_verdict_before_it_buys_training(
    tmp_path: Path, calls: int, trained: int, judged: int
) -> None:
    run = train(tmp_path, f"{calls}calls")
    assert run.ended == "budget" and run.spent.calls <= calls
    with closing(RunStore.open(run.path)) as store:
        assert store.outline().step + 1 >= trained
    assert run.conclusion is not None
    present, *_, learned = run.conclusion.rows
    assert present.score.n == learned.score.n == judged
    assert run.conclusion.headline().decision in ("Deploy", "Do not deploy", "Undecided")
    assert f"budget covered judging {judged} of 37 test inputs" in run.verdict
    assert run.stop is not None and "if it trains on, the next verdict" in run.stop.hint


def test_a_budget_that_buys_no_verdict_says_so_before_the_first_call_with_the_least_that_does(
    tmp_path: Path,
) -> None:
    notes = list[str]()
    run = train(tmp_path, "60calls", listener=hear(notes))
    assert run.conclusion is None and run.ended == "budget"
    assert notes[0].startswith("60 calls are too few for training and a verdict: a verdict takes ")
    assert "about 88 calls on 20 test inputs" in notes[0] and "--budget 163calls covers" in notes[0]
    enough = load_config({**SETTINGS, "budget": {"calls": 163}})
    assert budget_remark(plan_run(enough)) == ""
    judge = {"kind": "judge", "rubric": "Is it polite?"}
    judged = load_config({**SETTINGS, "task": "", "reward": judge, "budget": {"calls": 163}})
    assert "about 132 calls" in budget_remark(plan_run(judged, Sources(data=rows())))
    given = {"calls": 60, "reserve_for_verdict": 0.5}
    assert budget_remark(plan_run(load_config({**SETTINGS, "budget": given}))) == ""


def test_a_limit_of_tokens_is_kept_for_a_verdict_as_soon_as_rollouts_were_measured(
    tmp_path: Path,
) -> None:
    run = train(tmp_path, "400ktok")
    assert run.ended == "budget" and run.conclusion is not None
    assert 20 <= run.conclusion.rows[0].score.n <= 37
    notes = list[str]()
    small = {"update": {"batch_size": 3}}
    poor = train(tmp_path, "25ktok", listener=hear(notes), config=small)
    assert poor.conclusion is None
    assert any(n.startswith("25,000 tokens are too few for a verdict: ") for n in notes), notes


def test_rivals_that_the_budget_does_not_reach_are_judged_when_there_is_more_of_it(
    tmp_path: Path,
) -> None:
    short = {"update": {"epochs": 1}}
    run = train(tmp_path, "200calls", config=short)
    assert run.conclusion is not None and run.conclusion.missing
    more = train(tmp_path, "9000calls", resume=run.id, config=short)
    assert more.conclusion is not None and not more.conclusion.missing
    assert more.conclusion.rows[0].score.n == 37
    assert "This is look 2 at the same test split" in more.verdict


def test_runs_on_the_same_test_rows_are_counted_and_each_looks_with_a_wider_interval(
    tmp_path: Path,
) -> None:
    data, widths = rows(), list[float]()
    for number in (1, 2, 3):
        run = train(tmp_path, "300calls", data, seed=number)
        made = run.conclusion
        assert made is not None and made.earlier == number - 1
        nth = {2: "the 2nd run judged", 3: "the 3rd run judged"}.get(number, "")
        assert nth in made.headline().title and ("judged on" in made.headline().title) == bool(nth)
        assert ("but a wider one decides" in made.headline().lines["gain"]) == bool(nth)
        assert (f"look {number} at the same test split" in run.verdict) == (number > 1)
        widths.append(float(run.verdict.partition(" % ")[0].rpartition("(")[2]))
    assert widths == [95, 98.75, 99.38]
    other = train(tmp_path, "300calls", rows(test=36))
    assert other.conclusion is not None and other.conclusion.earlier == 0, "other test rows"
    elsewhere = train(tmp_path / "elsewhere", "300calls", data)
    assert elsewhere.conclusion is not None and elsewhere.conclusion.earlier == 0
    for seed in (1, 2):  # of an experiment, which measures methods and chooses none
        run = train(tmp_path / "bench" / "main", "300calls", data, seed=seed)
        assert run.conclusion is not None and run.conclusion.earlier == 0
    last = train(tmp_path, "300calls", data, seed=4)
    assert last.conclusion is not None and last.conclusion.earlier == 3


def test_what_choosing_took_leaves_fewer_test_rows_and_each_is_judged_on_them(
    tmp_path: Path,
) -> None:
    looks = {"every": 40, "finalists": 1}
    run = train(tmp_path, "700calls", config={"validation": looks, "update": {"epochs": 1}})
    assert run.conclusion is not None and not run.conclusion.missing
    [judged] = {row.score.n for row in run.conclusion.rows}
    assert 20 <= judged < 37


def test_replies_from_the_cache_take_nothing_of_a_budget_which_is_not_called_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_CACHE", str(tmp_path / "cache.sqlite"))
    data = pco.load([{"input": f"letter {n}", "target": "yes"} for n in range(150)])
    with served(Server()) as server:
        server.default = says("yes")
        asked: Any = {"budget": "70calls", "prompt": "Say yes. Say no.", "progress": False}
        config = {"preset": "small", "size": 2, "update": {"epochs": 2}}
        asked |= {"runs_dir": tmp_path, "config": config}
        runs = [pco.optimize(data, "exact", server.spec, **asked) for _ in range(5)]
        assert sum(run.spent.calls for run in runs) == server.calls > 70
    free = runs[-1]
    assert free.spent.calls == 0 and free.tallies["cache_hits"] >= 70
    assert "room for 20 of 38 test inputs, counted as if no reply" in str(free.stop)


def test_where_no_look_was_made_the_untrained_state_is_a_finalist(tmp_path: Path) -> None:
    looks = {"every": 40, "finalists": 1}
    run = train(tmp_path, "1200calls", config={"validation": looks, "update": {"epochs": 3}})
    with closing(RunStore.open(run.path)) as store:
        marks = store.outline().validations
    assert {mark.scope for mark in marks} == {"full"}
    assert -1 in {mark.step for mark in marks} and len(marks) == 2
    scores = {mark.step: mark.score for mark in marks}
    assert run.best.score == max(score for score in scores.values() if score is not None)
