"""The file of a run, and the events in it."""

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import is_dataclass, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.base.paths import write_whole
from promptcodebook.base.randomness import keyed_random
from promptcodebook.base.sqlite import Reader, pack
from promptcodebook.calls import Message, Reply, Request, Role, Usage
from promptcodebook.errors import DiskFull, RunBusy, RunNotFound, StoreError
from promptcodebook.store.events import (
    Amended,
    Broke,
    Compared,
    Concluded,
    Ended,
    Event,
    Resumed,
    RunState,
    Scope,
    Started,
    Stepped,
    Validated,
    fold,
    pack_event,
    unpack_event,
)
from promptcodebook.store.header import Header
from promptcodebook.store.lock import RunLock, holder
from promptcodebook.store.run import LAYOUT, RunStore
from promptcodebook.types import Codebook, Evaluation, Instinct, Parameters, Rollout, Step

MakeStep = Callable[[int], Step]
MakeParameters = Callable[[str], Parameters]


def test_a_new_run_has_a_name_that_says_when_and_what(run: RunStore, header: Header) -> None:
    assert run.path.name == run.header.id == "20260131-154502-constraints"
    assert replace(run.header, id="") == header
    second = RunStore.create(run.path.parent, header)
    second.close()
    assert second.header.id == "20260131-154502-constraints-2"
    with pytest.raises(StoreError, match="already exists") as caught:
        RunStore.create(run.path.parent, replace(header, id=run.header.id))
    assert "--resume" in caught.value.hint


def _modes(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_mode & 0o777 for p in (folder, *folder.iterdir())}


def test_a_run_is_its_owners_alone_under_any_umask(tmp_path: Path, header: Header) -> None:
    before = os.umask(0)
    try:
        run = RunStore.create(tmp_path / "runs", header)
        run.append(Ended("budget"))
        write_whole(run.path / "policy.json", "{}")
        modes = _modes(run.path)
        run.close()
    finally:
        os.umask(before)
    assert modes.pop(run.path.name) == 0o700
    assert {"run.sqlite", "run.sqlite-wal", "lock", "policy.json"} <= modes.keys()
    assert set(modes.values()) == {0o600}


def test_an_open_run_is_closed_to_others_when_it_is_written_again(run: RunStore) -> None:
    run.close()
    run.path.chmod(0o755)
    elsewhere = run.path.parent / "elsewhere"
    elsewhere.touch(0o644)
    (run.path / "link").symlink_to(elsewhere)
    for file in run.path.iterdir():
        file.chmod(0o644)
    with pytest.raises(StoreError, match="link does not belong in a run: it is a link"):
        RunStore.open(run.path, write=True)
    assert elsewhere.stat().st_mode & 0o777 == 0o644
    (run.path / "link").unlink()
    again = RunStore.open(run.path, write=True)
    modes = _modes(run.path)
    again.close()
    assert modes.pop(run.path.name) == 0o700
    assert set(modes.values()) == {0o600}


def test_a_run_without_a_mark_is_made_all_the_same(
    tmp_path: Path, header: Header, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    run = RunStore.create(tmp_path / "runs", header)
    run.append(Ended("budget"))
    run.close()
    with closing(RunStore.open(run.path)) as again:
        assert not again.ours
    assert "--trust" in caplog.text


def test_the_same_step_cannot_be_written_twice(run: RunStore, make_step: MakeStep) -> None:
    run.append(Stepped(make_step(0)))
    with pytest.raises(StoreError):
        run.append(Stepped(make_step(0)))
    run.append(Stepped(make_step(1)))
    assert [s.index for s in run.steps()] == [0, 1]


def test_parameters_of_any_step_are_a_point_lookup(
    run: RunStore, make_step: MakeStep, make_parameters: MakeParameters
) -> None:
    run.append(Started(make_parameters("zero"), "expert"))
    for index in range(3):
        run.append(Stepped(make_step(index)))
    assert run.parameters_at(-1) == make_parameters("zero")
    assert run.parameters_at(1) == make_parameters("1")
    assert run.step_at(1) == replace(make_step(1), traces=())
    assert list(run.steps()) == [replace(make_step(i), traces=()) for i in range(3)]
    assert list(run.steps(traces=True)) == [make_step(i) for i in range(3)]
    assert run.traces(0) == make_step(0).traces
    later = [(n, e.step.index) for n, e in run.numbered_events(after=2) if isinstance(e, Stepped)]
    assert later == [(3, 1), (4, 2)]
    run.append(Validated(2, "subset", Evaluation("v", "val", (Rollout("a", reward=0.5),))))
    run.append(Resumed(2, "2026-02-01T00:00:00+00:00"))
    state = run.state()
    assert (state.step, state.parameters, state.resumes) == (2, make_parameters("2"), 1)
    assert run.outline() == state
    with pytest.raises(StoreError, match="no step 7"):
        run.parameters_at(7)
    with pytest.raises(StoreError, match="no step 7"):
        run.traces(7)


def test_what_was_judged_counts_until_a_step_is_made_or_the_run_is_made_longer(
    run: RunStore, make_step: MakeStep, header: Header
) -> None:
    """An address that changed is told as an event too, and changes nothing of the verdict."""
    rows = [Compared(Evaluation(name, "test", (Rollout("x", reward=0.5),))) for name in "abcd"]

    def judged() -> list[str]:
        return [evaluation.name for evaluation in run.test_evaluations()]

    run.append(rows[0])
    run.append(Stepped(make_step(0)))
    run.append(rows[1])
    run.amend(run.header, Amended(("the model is called elsewhere now",), "now"))
    assert judged() == ["b"]
    run.append(rows[2])
    assert judged() == ["b", "c"]
    run.amend(run.header, Amended(("update.epochs: 2 → 4",), "now", extended=True))
    assert judged() == []
    run.append(rows[3])
    assert judged() == ["d"]


def test_usage_is_summed_by_role_and_an_unknown_price_stays_unknown(run: RunStore) -> None:
    attempted(run, "critic", Usage(1, 10, 2, 4, 0.5, 1.0))
    attempted(run, "critic", Usage(1, 20, 3, 0, 0.25, 2.0))
    attempted(run, "encoder", Usage(1, 5, 5, 0, None, 0.5))
    attempted(run, "encoder", Usage(1, 5, 5, 0, 0.125, 0.5))
    attempted(run, "critic", Usage(1, 90, 50, 0, 1.0), lost=True)
    run.flush()
    assert run.usage() == {
        "critic": Usage(2, 30, 5, 4, 0.75, 3.0),
        "encoder": Usage(2, 10, 10, 0, None, 1.0),
    }
    assert run.lost() == {"critic": Usage(1, 90, 50, 0, 1.0)}


def attempted(run: RunStore, role: Role, usage: Usage, *, lost: bool = False) -> None:
    run.journal.attempts.end(run.journal.attempts.begin(role, usage), role, usage, lost)


async def test_a_journaled_reply_comes_back_as_it_was(run: RunStore) -> None:
    request = Request("executor", (Message("user", "hi"),))
    paid = Reply("ho", usage=Usage(1, 10, 2, 0, 0.5, 1.0), dropped=("temperature",), estimated=True)
    log = run.journal.replies()
    assert log.get(b"k" * 32) is None
    await log.put(b"k" * 32, request, paid)
    await log.put(b"k" * 32, request, Reply("second"))
    assert log.get(b"k" * 32) == paid, "the first reply of a key stays"
    assert run.usage() == {}, "what it cost is booked with its attempt"


async def test_a_damaged_reply_is_asked_for_again_and_replaced(
    run: RunStore, caplog: pytest.LogCaptureFixture
) -> None:
    key, request = b"k" * 32, Request("executor", (Message("user", "hi"),))
    await run.journal.replies().put(key, request, Reply("first"))
    run.close()
    with closing(sqlite3.connect(run.path / "run.sqlite")) as db, db:
        db.execute("UPDATE journal SET reply = x'00'")
    with closing(RunStore.open(run.path, write=True)) as again:
        log = again.journal.replies()
        assert log.get(key) is None and "requested again" in caplog.text
        await log.put(key, request, Reply("second"))
        kept = log.get(key)
        assert kept is not None and kept.text == "second"
        assert again.tallies() == {"journal_damaged": 1}


def test_replayable_incidents_are_committed_with_their_step_only(
    run: RunStore, make_step: MakeStep
) -> None:
    run.count("rate_limited")
    run.count("rate_limited", 2)
    run.count_replayable("route_repairs")
    run.append(Stepped(make_step(0)))
    run.count_replayable("route_repairs", 5)
    run.append(Ended("interrupted"))
    assert run.tallies() == {"rate_limited": 3, "route_repairs": 1}
    run.append(Stepped(make_step(1)))
    assert run.tallies() == {"rate_limited": 3, "route_repairs": 6}


def test_wall_time_adds_up_over_sessions(
    run: RunStore, header: Header, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    first = RunStore.create(run.path.parent, replace(header, id="timed"))
    now[0] += 7.0
    assert first.elapsed_s == 7.0
    first.append(Ended("interrupted"))
    now[0] += 1000.0
    first.close()  # no commit since: that time is not the run's

    second = RunStore.open(first.path, write=True)
    now[0] += 3.0
    assert second.elapsed_s == 10.0
    second.append(Ended("finished"))
    second.close()
    reading = RunStore.open(first.path)
    assert reading.elapsed_s == 10.0
    reading.close()


def test_a_run_can_be_read_while_it_is_written_but_not_written_twice(
    run: RunStore, make_step: MakeStep
) -> None:
    with closing(RunStore.open(run.path)) as reading:
        run.append(Stepped(make_step(0)))
        assert [s.index for s in reading.steps()] == [0]
        with pytest.raises(StoreError, match="not open for writing"):
            reading.append(Ended("finished"))
        with pytest.raises(RunBusy, match="process") as caught:
            RunStore.open(run.path, write=True)
        assert "kill -INT" in caught.value.hint
    run.close()
    RunStore.open(run.path, write=True).close()


def test_a_finished_run_can_be_read_where_nothing_may_be_written(
    run: RunStore, make_step: MakeStep
) -> None:
    run.append(Stepped(make_step(0)))
    run.close()
    # Side files cannot be made here: what a read-only folder does to anyone, and this to root too.
    (run.path / "run.sqlite-wal").mkdir()
    store = RunStore.open(run.path)
    assert [s.index for s in store.steps()] == [0]
    store.close()
    with pytest.raises(StoreError):
        RunStore.open(run.path, write=True)


def test_a_run_that_stopped_halfway_is_not_read_without_its_last_writes(
    run: RunStore, make_step: MakeStep, tmp_path: Path
) -> None:
    run.append(Stepped(make_step(0)))
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("run.sqlite", "run.sqlite-wal"):  # what a kill leaves, in a read-only folder
        shutil.copy(run.path / name, copy / name)
    (copy / "run.sqlite-shm").symlink_to(tmp_path / "absent" / "shm")
    with pytest.raises(StoreError, match=r"sqlite cannot be read: .* is not writable") as caught:
        Reader(copy / "run.sqlite", LAYOUT)
    assert caught.value.hint.startswith(f"copy {copy}")


def test_no_run_and_no_database_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="no run at"):
        RunStore.open(tmp_path / "absent")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "run.sqlite").write_bytes(b"not a database, but quite long enough to be read" * 9)
    for write in (False, True):
        with pytest.raises(StoreError, match="cannot be used") as caught:
            RunStore.open(broken, write=write)
        assert str(broken) in caught.value.hint


def test_a_full_disk_is_said_and_nothing_committed_is_lost(
    run: RunStore, make_step: MakeStep
) -> None:
    written = -1
    with no_file_beyond(200_000), pytest.raises(DiskFull) as caught:
        for index in range(500):
            noise = keyed_random(index).randbytes(2_000).hex()
            codebook = Codebook((Instinct(noise),))
            bulky = replace(make_step(0).parameters, codebook=codebook)
            run.append(Stepped(replace(make_step(index), parameters=bulky)))
            written = index
    assert f"pco train --resume {run.path}" in caught.value.hint
    assert written >= 1
    with pytest.raises(DiskFull):  # it keeps refusing, also what would fit
        run.append(Ended("failed"))
    with pytest.raises(DiskFull):
        run.count("rate_limited")
    with pytest.raises(DiskFull):  # what it brings could not be kept
        run.journal.attempts.begin("critic", Usage(1, 1, 1))
    assert run.state().step == written
    run.close()

    again = RunStore.open(run.path, write=True)
    assert [s.index for s in again.steps(traces=True)] == list(range(written + 1))
    again.append(Ended("finished"))
    again.close()


@contextlib.contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """The system refuses to let any file of this process grow past `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# The lock of a run's folder

HOLD = """
import sys, pathlib
from promptcodebook.store.lock import RunLock
RunLock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_those_who_only_look_do_not_take_each_other_for_the_writer(tmp_path: Path) -> None:
    RunLock(tmp_path).release()
    with ThreadPoolExecutor(4) as pool:
        seen = set(pool.map(lambda _: holder(tmp_path), range(4000)))
    assert seen == {None}


def test_another_process_holds_it_until_it_is_killed(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], text=True, **pipes) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        assert holder(tmp_path) == other.pid
        with pytest.raises(RunBusy, match=f"process {other.pid}") as caught:
            RunLock(tmp_path)
        assert caught.value.hint.endswith(f"kill -INT {other.pid}")
        other.kill()
    assert holder(tmp_path) is None
    RunLock(tmp_path).release()


def test_the_lock_can_be_had_where_not_a_byte_can_be_written(tmp_path: Path) -> None:
    with no_file_beyond(0):
        lock = RunLock(tmp_path)
    assert holder(tmp_path) == 0
    with pytest.raises(RunBusy, match="another process"):
        RunLock(tmp_path)
    lock.release()


WITHOUT_LOCKS = """
import errno, fcntl
def flock(file, operation):
    raise OSError(errno.ENOSYS, "Function not implemented")
fcntl.flock = flock
"""


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's own locks are missing, as on some network and cluster file systems."""

    def flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.usefixtures("no_locks")
def test_a_killed_process_keeps_nobody_out_where_the_file_system_cannot_lock(
    tmp_path: Path,
) -> None:
    hold = WITHOUT_LOCKS + HOLD.replace("RunLock(p", "lock = RunLock(p")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], text=True, **pipes) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        assert holder(tmp_path) == other.pid
        with pytest.raises(RunBusy, match=f"process {other.pid}"):
            RunLock(tmp_path)
        with pytest.raises(subprocess.TimeoutExpired):  # asking for it does no harm
            other.wait(0.2)
        other.kill()
    assert (tmp_path / "lock.soft").exists()
    assert holder(tmp_path) is None
    lock = RunLock(tmp_path)
    assert holder(tmp_path) == os.getpid()
    with pytest.raises(RunBusy, match=f"process {os.getpid()}") as caught:
        RunLock(tmp_path)
    assert f"delete {tmp_path / 'lock.soft'}" in caught.value.hint
    lock.release()
    lock.release()
    assert holder(tmp_path) is None
    RunLock(tmp_path).release()


@pytest.mark.usefixtures("no_locks")
def test_a_process_on_another_machine_is_not_taken_for_gone(tmp_path: Path) -> None:
    (tmp_path / "lock.soft").write_text("4242424\nelsewhere\n", "ascii")
    (tmp_path / "lock").write_text("4242424 elsewhere/1", "ascii")
    with pytest.raises(RunBusy, match="process 4242424 on elsewhere/1") as caught:
        RunLock(tmp_path)
    assert "kill" not in caught.value.hint
    assert holder(tmp_path) == 0  # no process of this machine: nothing here may signal it


# Events: as rows and back, and the state that is their fold.

# Lone surrogates included: a reply's JSON may hold "\ud800", and it must come back unchanged.
texts = st.text(st.characters(), max_size=12)
finite = st.floats(allow_nan=False, width=32)
plain = st.none() | st.booleans() | st.integers(0, 2**40) | finite | texts
json = plain | st.lists(plain, max_size=2)
BASES: dict[Any, st.SearchStrategy[Any]] = {
    **{str: texts, float: finite, int: st.integers(0, 2**40), bool: st.booleans()},
    **{type(None): st.none(), Any: json, object: json},
}


@cache
def of(hint: Any) -> st.SearchStrategy[Any]:
    """Every value of a type that events are made of."""
    if hint in BASES:
        return BASES[hint]
    if is_dataclass(hint):
        return st.builds(hint, **{name: of(part) for name, part in get_type_hints(hint).items()})
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(parts)
    if origin is tuple and parts[-1] is ...:
        return st.lists(of(parts[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of, parts))
    if origin in (Union, UnionType):
        return st.one_of(*map(of, parts))
    return st.dictionaries(*map(of, parts), max_size=2)


events: st.SearchStrategy[Event] = of(Event)


def again(event: Event, *, whole: bool = True) -> Event:
    """The event as it is read from its row."""
    kind, _, light, bulk = pack_event(event)
    return unpack_event(kind, light, bulk if whole else None)


@given(events)
def test_an_event_comes_back_as_it_was(event: Event) -> None:
    assert again(event) == event


@given(events)
def test_the_light_part_alone_is_the_event_without_its_bulk(event: Event) -> None:
    light = again(event, whole=False)
    if isinstance(event, Stepped):
        assert light == Stepped(replace(event.step, traces=()))
    elif isinstance(event, Broke):
        assert light == Broke(event.step, ())
    elif isinstance(event, Validated | Compared):
        assert isinstance(light, Validated | Compared)
        assert light.evaluation.rewards == event.evaluation.rewards
        assert light.evaluation.failed == event.evaluation.failed
        assert light.evaluation.usage == event.evaluation.usage
        assert {each.prompt + each.output for each in light.evaluation.rollouts} <= {""}
    else:
        assert light == event


def test_a_damaged_event_says_where() -> None:
    with pytest.raises(StoreError, match=r"damaged at reason"):
        unpack_event("ended", pack({"reason": "tired", "detail": ""}))
    with pytest.raises(StoreError, match="damaged"):
        unpack_event("ended", b"not compressed")
    with pytest.raises(StoreError, match="unknown kind of event: 'danced'"):
        unpack_event("danced", pack({}))


def seen(score: float | None, name: str = "val") -> Evaluation:
    rollouts = () if score is None else (Rollout("a", reward=score), Rollout("b", reward=score))
    return Evaluation(name, "val", rollouts)


def validated(step: int, score: float | None, scope: Scope = "subset") -> Validated:
    return Validated(step, scope, seen(score))


def test_the_last_step_decides_where_the_run_stands(
    make_step: MakeStep, make_parameters: MakeParameters
) -> None:
    begun = fold([Started(make_parameters("zero"), "from_prompt")])
    assert (begun.step, begun.origin) == (-1, "from_prompt")
    assert begun.parameters == make_parameters("zero")

    last = make_step(3)
    state = fold([Stepped(make_step(2)), Stepped(last)], begun)
    assert state.origin == "from_prompt"
    assert (state.step, state.epoch, state.epsilon) == (3, last.epoch, last.epsilon)
    assert (state.ema, state.success, state.selected) == (last.ema, last.success, last.selected)
    assert state.parameters == last.parameters

    ended = fold([Ended("budget", "5 usd", "none", "go on")], state)
    assert (ended.ended, ended.detail, ended.missing) == ("budget", "5 usd", "none")
    resumed = fold([Resumed(4, "2026-02-01")], ended)
    assert resumed == replace(state, resumes=1)


def test_what_was_judged_counts_until_a_state_is_validated_after_it() -> None:
    """The later one may be deployed: a verdict before it is a look, about another policy."""
    judged = [validated(0, 0.5, "full"), Compared(seen(0.5)), Concluded("No.", False)]
    assert fold(judged).tests and fold(judged).conclusion is not None and fold(judged).looks == 0
    later = fold([*judged, validated(1, 0.9, "full")])
    assert (later.tests, later.conclusion, later.looks) == ((), None, 1)
    again = fold([*judged, validated(1, 0.9, "full"), Compared(seen(0.9))])
    assert [mark.score for mark in again.tests] == [0.9]


def test_the_best_validation_is_the_highest_and_on_a_tie_the_earliest() -> None:
    events = [validated(-1, 0.2), validated(9, 0.7), validated(19, 0.7), validated(29, None)]
    best = fold(events).best
    assert best is not None and (best.step, best.score, best.n) == (9, 0.7, 2)
    whole = fold([*events, validated(19, 0.5, "full")]).best
    assert whole is not None and (whole.step, whole.scope, whole.score) == (19, "full", 0.5)
    assert fold([]) == RunState() and fold([]).best is None
