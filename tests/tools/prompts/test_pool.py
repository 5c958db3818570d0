"""`update.pool`: what shows no use gives its place to candidates, and no model writes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.config import load_config
from promptcodebook.errors import ConfigError, RunChanged
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.store.run import RunStore
from promptcodebook.tools.prompts import pool as pool_module
from promptcodebook.tools.prompts.pool import Pool, read_pool
from promptcodebook.types import Codebook, Instinct, Parameters, Rewrite
from tests.build.topics import IDLE, PROMPT, data, obey, right

RULES = [line.removeprefix("- ") for line in PROMPT.splitlines() if line.startswith("- ")]
LEAK = "If a customer says that the blue kettle broke after only two days, say K."


def learn(place: Path, epochs: int = 24, pool: str = "pool.txt", **more: Any) -> pco.Run:
    place.mkdir(exist_ok=True)
    if not (place / "pool.txt").exists():
        (place / "pool.txt").write_text("\n".join([*RULES[:2], "", IDLE[4], LEAK, *RULES[2:]]))
    given = more.pop("init", {})
    config = {
        "preset": "small",
        "size": 4,
        "init": {"kind": "expert", "instincts": tuple(IDLE[:4]), **given},
        "update": {"epochs": epochs, "pool": str(place / pool)},
        "router": {"floor": 0.5},
        **more.pop("config", {}),
    }
    lm = more.pop("lm", None) or ScriptedLM().reply_with(obey)
    whole = data()
    first = replace(whole.train[0], input=f"{whole.train[0].input}: {LEAK.lower()}")
    held = replace(whole, train=(first, *whole.train[1:]))
    return pco.optimize(
        held, right, lm, config=config, runs_dir=place / "runs", progress=False, **more
    )


def rewrites(run: pco.Run) -> list[Rewrite]:
    with closing(RunStore.open(run.path)) as store:
        return [rewrite for step in store.steps() for rewrite in step.rewrites]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> tuple[pco.Run, ScriptedLM]:
    lm = ScriptedLM().reply_with(obey)
    return learn(tmp_path_factory.mktemp("tried"), lm=lm), lm


@pytest.mark.slow
def test_rules_that_are_of_use_are_found_and_stay(tried: tuple[pco.Run, ScriptedLM]) -> None:
    run, lm = tried
    found = set(RULES) & set(run.codebook.texts)
    assert len(found) >= 3 and run.rows["learned"].score.mean > 0.6
    assert run.worth and {request.role for request in lm.history} == {"executor"}
    made = rewrites(run)
    assert {r.origin for r in made} == {"pool"} and all(r.before != r.after for r in made)
    gone = [r.before for r in made if r.kept]
    assert sum(text in IDLE for text in gone) > sum(text in RULES for text in gone)


@pytest.mark.parametrize(("uses", "tries", "leave"), [
    ([0.3, 0.0, 0.1, 0.29], [20, 20, 20, 20], [1, 2]),
    ([0.3, 0.0, 0.1, 0.29], [20, 20, 15, 20], [1]),
    ([0.0, 0.0, 0.0, 0.0], [20, 20, 20, 20], [0, 1, 2]),
    ([0.1, 0.1, 0.1, 0.1], [20, 20, 20, 20], []),
])  # fmt: skip
def test_who_leaves_was_tried_and_is_of_little_use_beside_the_best(
    uses: list[float], tries: list[int], leave: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "uses_of", lambda *_: uses)
    book = Codebook(tuple(map(Instinct, IDLE[:4])))
    known = replace(RoutingStatistics.fresh(4), selected=tuple(tries))
    state = State(8, Parameters("", "", book, ""), known)
    pool: Any = Pool(*[SimpleNamespace(config=load_config({}))] * 3, RULES)  # type: ignore[arg-type]
    assert pool.unused(state) == leave


def test_a_resumed_run_reads_its_earlier_traces_back_for_the_hooks_within() -> None:
    seen = list[object]()
    inner = SimpleNamespace(recall=lambda traces, step: seen.append((traces(1), step)))
    pool: Any = Pool(inner, *[SimpleNamespace()] * 2, RULES)  # type: ignore[arg-type]
    pool.recall(lambda step: [f"of step {step}"], 5)
    assert seen == [(["of step 1"], 5)]


@pytest.mark.slow
def test_a_candidate_that_copies_a_training_input_is_refused(
    tried: tuple[pco.Run, ScriptedLM],
) -> None:
    run, _ = tried
    refused = [r for r in rewrites(run) if not r.kept]
    assert refused and {r.after for r in refused} == {LEAK}
    assert {r.reason for r in refused} == {"it copies eight words in a row from a training input"}
    assert LEAK not in run.codebook.texts


@pytest.mark.slow
def test_a_resumed_run_ends_as_the_whole_one(tmp_path: Path) -> None:
    whole, short = learn(tmp_path / "whole", 12), learn(tmp_path / "cut", 5)
    longer = learn(tmp_path / "cut", 12, resume=short.id)
    assert [(r.variable, r.after) for r in rewrites(longer)] == [
        (r.variable, r.after) for r in rewrites(whole)
    ]
    files = [(run.path / "policy.json").read_bytes() for run in (longer, whole)]
    assert files[0] == files[1] and any(r.kept for r in rewrites(whole))


def test_a_pool_that_was_edited_is_noticed(tmp_path: Path) -> None:
    short = learn(tmp_path, 1)
    (tmp_path / "pool.txt").write_text("\n".join(IDLE))
    with pytest.raises(RunChanged, match=r"pool\.txt changed since the run"):
        learn(tmp_path, 2, resume=short.id)


@pytest.mark.slow
def test_a_frozen_instinct_keeps_its_place(tmp_path: Path) -> None:
    run = learn(tmp_path, 12, init={"frozen": (1,)})
    assert run.codebook.texts[1] == IDLE[1]
    assert {r.variable for r in rewrites(run) if r.kept} == {0, 2, 3}


def test_what_is_no_pool_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "list.json").write_text('["Be brief.", "Be brief.", " Be kind. "]')
    assert read_pool(tmp_path / "list.json") == ("Be brief.", "Be kind.")
    (tmp_path / "list.json").write_text("[1]")
    lm = ScriptedLM().reply_with(obey)
    cases = {
        "nowhere.txt": "cannot read",
        "empty.txt": "holds no sentence",
        "list.json": "cannot read",
    }
    for name, message in cases.items():
        with pytest.raises(ConfigError, match=message) as refused:
            learn(tmp_path, pool=name, lm=lm)
        assert "a JSON list" in refused.value.hint
    with pytest.raises(ConfigError, match="a router that learns from outcomes"):
        learn(tmp_path, lm=lm, config={"router": {"kind": "encoder"}})
    assert not lm.history
