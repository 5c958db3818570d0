"""The folder of all runs, the lines about them that are kept, and the headers that are compared."""

import contextlib
import hmac
import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.assemble import Sources
from promptcodebook.base.paths import cache_folder
from promptcodebook.base.sqlite import connect
from promptcodebook.calls import Usage
from promptcodebook.config import load_config
from promptcodebook.errors import ConfigError, RunBusy, RunChanged, RunNotFound, StoreError
from promptcodebook.policy.references import first_policy, resolve
from promptcodebook.run.opening import Where, open_run
from promptcodebook.store.events import Ended, Event, Started, Stepped, Validated
from promptcodebook.store.header import (
    Difference,
    Header,
    check_resumable,
    check_run_name,
    differences,
    digest,
    is_sealed,
    seal,
)
from promptcodebook.store.lock import RunLock
from promptcodebook.store.run import LAYOUT, RunStore
from promptcodebook.store.runs import find_run, list_runs, remove_run
from promptcodebook.types import Evaluation, Parameters, Rollout, Step

MakeStep = Callable[[int], Step]
MakeParameters = Callable[[str], Parameters]


@pytest.fixture
def runs(tmp_path: Path, header: Header) -> Path:
    for name, day in (("beta-2", "03"), ("alpha", "01"), ("beta-1", "02")):
        created = f"2026-01-{day}T00:00:00+00:00"
        RunStore.create(tmp_path, replace(header, id=name, created=created)).close()
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_a_run_is_found_by_id_beginning_path_or_last(runs: Path, header: Header) -> None:
    assert find_run(runs, "alpha") == runs / "alpha"
    RunStore.create(runs, replace(header, id="alpha-1")).close()
    assert find_run(runs, "alpha") == runs / "alpha", "an exact id wins over longer ones"
    remove_run(runs / "alpha-1")
    assert find_run(runs, "al") == runs / "alpha"
    assert find_run(runs, str(runs / "beta-1")) == runs / "beta-1"
    assert find_run(runs, "last") == runs / "beta-2"


def test_the_runs_of_suites_are_found_and_listed_too(runs: Path, header: Header) -> None:
    created = "2026-01-09T00:00:00+00:00"
    suite = runs / "bench" / "quick"
    RunStore.create(suite, replace(header, id="cell-1", created=created, name="first")).close()
    for ref in ("cell-1", "cell", "last", "first"):
        assert find_run(runs, ref) == suite / "cell-1"
    assert [run.id for run in list_runs(runs)] == ["alpha", "beta-1", "beta-2", "cell-1"]
    remove_run(suite / "cell-1")
    for suite in ("quick", "paper"):
        RunStore.create(runs / "bench" / suite, replace(header, id="cell")).close()
    with pytest.raises(RunNotFound, match=r"bench/paper/cell, .*bench/quick/cell") as caught:
        find_run(runs, "cell")
    assert caught.value.hint == "type its path"
    RunStore.create(runs, replace(header, id="cell")).close()
    assert find_run(runs, "cell") == runs / "cell"


def test_a_name_stands_for_the_latest_run_that_has_it(runs: Path, header: Header) -> None:
    for id, day in (("one", "04"), ("two", "06"), ("three", "05")):
        created = f"2026-01-{day}T00:00:00+00:00"
        RunStore.create(runs, replace(header, id=id, created=created, name="tickets")).close()
    assert find_run(runs, "tickets") == runs / "two"
    assert {run.id: run.name for run in list_runs(runs)}["three"] == "tickets"
    with pytest.raises(RunNotFound, match=r"did you mean 'tickets'\?"):
        find_run(runs, "ticket")
    # An id wins over a name, and a name over the start of an id.
    RunStore.create(runs, replace(header, id="other", name="alpha")).close()
    RunStore.create(runs, replace(header, id="third", name="beta")).close()
    assert find_run(runs, "alpha") == runs / "alpha"
    assert find_run(runs, "beta") == runs / "third"


@pytest.mark.parametrize("name", ["last", "a/b", "two words", "x.json", "-x", "a@b", "x" * 61])
def test_a_name_that_could_not_be_typed_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be called"):
        check_run_name(name)
    for typed in ("", "tickets", "Übung_2.b-3"):
        assert check_run_name(typed) == typed


@pytest.mark.parametrize(("ref", "message"), [
    ("alpah", r"did you mean 'alpha'\?"),
    ("beta", "more than one run: beta-1, beta-2"),
    ("notes", "no run 'notes'"),
    ("", "no run ''"),
    ("./notes", "no run at ./notes"),
])  # fmt: skip
def test_what_cannot_be_found_is_explained(runs: Path, ref: str, message: str) -> None:
    with pytest.raises(RunNotFound, match=message) as caught:
        find_run(runs, ref)
    assert caught.value.hint
    with pytest.raises(RunNotFound, match="there is no run in") as none:
        find_run(runs / "absent", "last")
    assert none.value.hint == "pco train" and list_runs(runs / "absent") == []


def test_the_list_says_how_each_run_stands(
    runs: Path, make_step: MakeStep, make_parameters: MakeParameters
) -> None:
    store = RunStore.open(runs / "alpha", write=True)
    done: list[Event] = [
        Started(make_parameters("zero"), "expert"),
        Stepped(make_step(0)),
        Stepped(make_step(1)),
        Validated(1, "subset", Evaluation("val", "val", (Rollout("a", reward=0.75),))),
        Ended("budget"),
    ]
    for event in done:
        store.append(event)
    log = store.journal.attempts
    log.end(log.begin("critic", Usage()), "critic", Usage(2, 10, 5, 0, 0.5), False)
    store.flush()
    busy = next(run for run in list_runs(runs) if run.id == "alpha")
    assert busy.running and not busy.resumable
    with pytest.raises(RunBusy):
        remove_run(runs / "alpha")
    with pytest.raises(RunNotFound):
        remove_run(runs / "notes")
    assert (runs / "notes").is_dir()
    store.close()

    listed = list_runs(runs)
    assert [run.id for run in listed] == ["alpha", "beta-1", "beta-2"]
    alpha = listed[0]
    assert (alpha.step, alpha.best, alpha.ended, alpha.task) == (1, 0.75, "budget", "constraints")
    assert alpha.usage == Usage(2, 10, 5, 0, 0.5)
    assert alpha.resumable and not alpha.running
    assert listed[1].step == -1


def test_a_broken_run_does_not_hide_the_others(
    runs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (runs / "beta-2" / "run.sqlite").write_bytes(b"broken" * 99)
    with caplog.at_level(logging.WARNING):
        assert [run.id for run in list_runs(runs)] == ["alpha", "beta-1"]
        assert find_run(runs, "last") == runs / "beta-1"
    assert "beta-2" in caplog.text


@pytest.mark.parametrize("made", ["nothing", "a file", "a database", "tables"])
def test_a_run_killed_while_it_was_made_is_in_nobodys_way(
    runs: Path, made: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = runs / "20260131-154502-killed"
    folder.mkdir()
    if made != "nothing":
        (folder / "run.sqlite").touch()
    if made == "a database":
        with contextlib.closing(sqlite3.connect(folder / "run.sqlite")) as db:
            db.execute("PRAGMA journal_mode = WAL")
    if made == "tables":
        connect(folder / "run.sqlite", LAYOUT, write=True).close()
    assert [run.id for run in list_runs(runs)] == ["alpha", "beta-1", "beta-2"]
    assert find_run(runs, "last").name == "beta-2"
    if made == "nothing":
        return
    assert f"the run {folder.name} was never started (pco runs rm {folder})" in caplog.text
    for write in (False, True):
        with pytest.raises(StoreError, match="was never started"):
            RunStore.open(find_run(runs, folder.name), write=write)
    remove_run(folder)
    assert not folder.exists()


# --- A run that version 0.1.0 began and a call budget stopped: it opens, and is not resumed ---


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
    (run,) = list_runs(old_run.parent)
    assert (run.id, run.step, run.best, run.ended) == (ID, 1, 0.75, "budget")


def test_its_policy_is_the_best_validated_one_and_resuming_it_is_refused(old_run: Path) -> None:
    reference = resolve(old_run.parent, "2026")
    assert reference.best is not None and (reference.best.step, reference.best.score) == (-1, 0.75)
    first = first_policy(old_run.parent, ID)
    assert first.encoder
    assert (reference.file.encoder, reference.file.codebook) == (first.encoder, first.codebook)
    config = load_config(RunStore.open(old_run).header.config)
    with pytest.raises(RunChanged, match=f"version 0.1.0 started the run {ID}") as refused:
        open_run(config, Sources(old_run.parents[1]), Where(old_run.parent, resume=old_run))
    assert refused.value.hint.endswith(f"pco registry show {ID}")


# --- summaries that are kept ---
@pytest.fixture
def ended(tmp_path: Path, header: Header) -> Path:
    store = RunStore.create(tmp_path / "runs", header)
    store.append(Ended("budget"))
    store.close()
    return tmp_path / "runs"


def test_it_says_whether_a_model_was_simulated(tmp_path: Path, header: Header) -> None:
    for name, model in {"real": "openai/m", "served": "http://localhost:1/v1#simulated"}.items():
        config = {"lm": "openai/m", "roles": {"critic": {"model": model}}}
        store = RunStore.create(tmp_path / "runs", replace(header, id=name, config=config))
        store.append(Ended("budget"))
        store.close()
    for _ in ("read", "kept"):
        assert {run.id: run.simulated for run in list_runs(tmp_path / "runs")} == {
            "real": False,
            "served": True,
        }


def test_one_that_was_locked_written_or_removed_since_is_looked_at_again(ended: Path) -> None:
    [before] = list_runs(ended)
    lock = RunLock(before.path)
    assert list_runs(ended)[0].writer == os.getpid()
    lock.release()
    assert list_runs(ended) == [before]
    store = RunStore.open(before.path, write=True)
    assert list_runs(ended)[0].running
    store.append(Ended("finished"))
    store.close()
    assert list_runs(ended)[0].ended == "finished"
    remove_run(before.path)
    assert list_runs(ended) == [] and not before.path.exists()
    [file] = (cache_folder() / "runs").iterdir()
    assert json.loads(file.read_text("utf-8"))["runs"] == {}, "what is gone is forgotten"


def test_a_list_of_kept_runs_opens_nothing_and_waits_for_no_pydantic(ended: Path) -> None:
    list_runs(ended)
    code = (
        "import sys; from pathlib import Path; from promptcodebook.store.runs import list_runs;"
        "print(list_runs(Path(sys.argv[1]))[0].ended, 'pydantic' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(ended)], capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["budget", "False"]


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '{"form": 1, "runs": 3}', "\x00"])
def test_a_damaged_file_of_summaries_is_done_without(ended: Path, damage: str) -> None:
    first = list_runs(ended)
    [file] = (cache_folder() / "runs").iterdir()
    kept = json.loads(file.read_text("utf-8"))
    file.write_text(damage, "utf-8")
    assert list_runs(ended) == first
    for run in kept["runs"].values():
        run["summary"] = {"id": 3}
    kept["runs"]["another"] = 7
    file.write_text(json.dumps(kept), "utf-8")
    assert list_runs(ended) == first


@pytest.mark.parametrize("field", ["looks", "latency_s"])  # of a summary, and of its usage
def test_summaries_kept_before_a_field_existed_are_made_again(ended: Path, field: str) -> None:
    first = list_runs(ended)
    [file] = (cache_folder() / "runs").iterdir()
    kept = json.loads(file.read_text("utf-8"))
    for run in kept["runs"].values():
        run["summary"]["step"] = 7
    file.write_text(json.dumps(kept), "utf-8")
    assert list_runs(ended)[0].step == 7, "with the same fields it is used"

    def without(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {name: without(value) for name, value in tree.items() if name != field}
        if isinstance(tree, list):
            return [without(each) for each in tree if each != field]
        return tree

    file.write_text(json.dumps(without(kept)), "utf-8")
    assert list_runs(ended) == first


SAME = ({"train": "aa"}, {"train": "aa"})


def test_differences_are_dotted_and_hold_both_values() -> None:
    tree, same = (
        load_config({"task": "constraints"}).model_dump(mode=m) for m in ("python", "json")
    )
    assert differences(tree, same) == () and digest(tree) == digest(same)
    old = load_config({"seed": 0}).model_dump()
    new = load_config({"seed": 7, "update": {"batch_size": 5}}).model_dump()
    assert differences(old, new) == (
        Difference("seed", 0, 7),
        Difference("update.batch_size", 15, 5),
    )
    assert digest(old) != digest(new)
    assert differences({}, {"a": {"b": 1}}, ignore=()) == (Difference("a.b", None, 1),)
    assert differences({"a": 1}, {"a": {}}, ignore=()) == (Difference("a", 1, {}),)
    check_resumable("r1", ({"seed": 1, "budget": 1}, {"seed": 1, "budget": 2}), SAME)


def test_a_run_that_sent_its_figures_to_a_place_that_is_gone_opens(header: Header) -> None:
    tree = {**load_config({}).model_dump(mode="json"), "telemetry": ["wandb", "otel"]}
    stored = Header.from_json(replace(header, config=tree).to_json())
    assert stored.configuration.telemetry == ("otel",) and stored.config["telemetry"] == [
        "wandb", "otel",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"telemetry\.0 must be 'otel' or 'mlflow', not 'wandb'"):
        load_config(tree)  # in new settings it is a mistake


def test_what_to_spend_and_how_fast_may_change() -> None:
    free = {
        **{"budget": {"usd": 5.0}, "concurrency": 8, "timeout": 9.0, "retries": 0, "cache": False},
        **{"data_dir": "/elsewhere", "max_reply_mb": 3.0, "user_code": {"threads": 2}},
        "prices": {"m": {"prompt": 1.0, "completion": 2.0}},
        "roles": {"critic": {"headers": {"X-Title": "blue"}}},
        "data": {key: f"{key}.jsonl" for key in ("path", "train", "val", "test")},
    }
    assert differences(load_config({}).model_dump(), load_config(free).model_dump()) == ()
    lean = load_config({"preset": "lean"}).model_dump()
    assert differences(load_config({}).model_dump(), lean) == (), "another name of the same"


@pytest.mark.parametrize("kept", [
    {"roles": {"critic": {"temperature": 0.25}}},
    {"roles": {"executor": {"model": "simulated?world=2"}}},
    {"data": {"input": "question"}},
    {"data": {"split_seed": 5}},
    {"validation": {"every": 3}},
    {"keep": "last"},
])  # fmt: skip
def test_what_decides_the_replies_or_the_policy_may_not(kept: dict[str, object]) -> None:
    """Nor is the key beside one that may change taken for it."""
    old = load_config({}).model_dump()
    assert len(differences(old, load_config(kept).model_dump())) == 1


def test_a_changed_setting_is_named_with_both_values() -> None:
    with pytest.raises(RunChanged, match=r"(?m)seed: 0 → 7; select: 4 → 2$") as caught:
        check_resumable("r1", ({"seed": 0, "select": 4}, {"seed": 7, "select": 2}), SAME)
    assert "--resume" in caught.value.hint
    assert caught.value.exit_code == 2
    with pytest.raises(RunChanged, match="and 4 more") as many:
        check_resumable("r1", ({f"k{i}": "x" * 200 for i in range(9)}, {}), SAME)
    assert len(str(many.value)) < 400
    now = {"train": "aa", "val": "XX", "test": "cc"}
    with pytest.raises(RunChanged, match="changed since it started: test, val"):
        check_resumable("r1", ({}, {}), ({"train": "aa", "val": "bb"}, now))


SECRET = bytes(range(32))
TEXT = r'{"id": "r1", "base": "/Gr\u00fc\udcff", "config": {"b": 2, "a": [1, 0.5]}}'


def test_a_mark_is_of_the_same_form_in_every_version() -> None:
    """HMAC-SHA-256 over JSON in ASCII, its keys in order: another form would make strangers of all
    runs there are."""
    plain = rb'{"base":"/Gr\u00fc\udcff","config":{"a":[1,0.5],"b":2},"id":"r1"}'
    sealed = seal(TEXT, SECRET)
    mark = hmac.new(SECRET, plain, "sha256").hexdigest()
    assert json.loads(sealed) == {**json.loads(TEXT), "seal": mark}
    assert sealed.isascii(), "a path may hold what no UTF-8 is"
    assert seal(sealed, SECRET) == sealed


def test_a_mark_holds_for_its_header_and_its_secret_alone() -> None:
    tree = json.loads(seal(TEXT, SECRET))
    assert is_sealed(json.dumps(tree), SECRET) is True
    assert is_sealed(json.dumps(dict(reversed(tree.items()))), SECRET) is True
    others: list[dict[str, object]] = [
        *({**tree, **edit} for edit in ({"id": "r2"}, {"config": {}}, {"more": 1})),
        *({**tree, "seal": mark} for mark in ("", "\u00fc", None, 1)),
        json.loads(TEXT),
    ]
    assert [is_sealed(json.dumps(other), SECRET) for other in others] == [False] * len(others)
    assert is_sealed(json.dumps(tree), SECRET[::-1]) is False
    assert is_sealed(json.dumps(tree), None) is False
