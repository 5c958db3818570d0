"""Calls in processes that are killed at a limit: reused, limited, and gone with their caller."""

import asyncio
import functools
import os
import signal
import time
from pathlib import Path

import pytest

from promptcodebook.base.worker import CallResult, Worker

HERE = "tests.build.awkward"
LONG = 30.0


@pytest.fixture
def worker() -> Worker:
    return Worker(1)


def gone(pid: int) -> bool:
    """Neither running nor a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_process_is_reused_and_sees_no_key_and_no_file_of_the_folder(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    (tmp_path / "json.py").write_text("raise SystemExit(9)", "utf-8")
    monkeypatch.chdir(tmp_path)
    assert worker.call(f"{HERE}:add", (2, 3), LONG) == CallResult(5)
    first = worker.call(f"{HERE}:process_id", (), LONG).value
    assert worker.call(f"{HERE}:process_id", (), LONG).value == first != os.getpid()
    assert isinstance(first, int)
    assert os.getpgid(first) != os.getpgrp(), "the caller's interrupt does not reach it"
    names = worker.call(f"{HERE}:environment", (), LONG).value
    assert isinstance(names, list) and "SOME_API_KEY" not in names


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="only time in all is counted here")
def test_a_call_is_late_by_what_it_computed_and_not_by_what_it_waited_for(worker: Worker) -> None:
    """Else a right answer is scored 0 where the machine has other things to do."""
    pid = worker.call(f"{HERE}:process_id", (), LONG).value
    start = time.monotonic()
    result = worker.call(f"{HERE}:search", (r"^(a+)+$", "a" * 60 + "!"), 0.3)
    assert result == CallResult(timed_out=True)
    assert 0.3 <= time.monotonic() - start < 30
    assert isinstance(pid, int) and gone(pid)
    assert worker.call(f"{HERE}:search", ("a+", "caaab"), LONG) == CallResult(True)
    assert isinstance(worker.call(f"{HERE}:nap", (0.55,), 0.5).value, int)
    start = time.monotonic()
    assert worker.call(f"{HERE}:nap", (60,), 0.2) == CallResult(timed_out=True)
    assert time.monotonic() - start < 30, "but nothing is waited for without end"


def test_an_exception_and_a_crash_are_told_apart_from_a_value(worker: Worker) -> None:
    assert "missing )" in worker.call(f"{HERE}:search", ("(", "x"), LONG).error
    assert worker.call(f"{HERE}:deep", (), LONG).error.startswith("RecursionError")
    assert worker.call(f"{HERE}:nothing", (), LONG).error.startswith("AttributeError")
    pid = worker.call(f"{HERE}:process_id", (), LONG).value
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)  # while idle: it is replaced
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    pid = worker.call(f"{HERE}:process_id", (), LONG).value
    assert worker.call(f"{HERE}:die", (7,), LONG).error.endswith("exited with code 7")
    assert isinstance(pid, int) and gone(pid)
    assert worker.call(f"{HERE}:add", (1, 1), LONG) == CallResult(2)


def test_odd_text_passes_unchanged_and_prints_do_not_disturb(worker: Worker) -> None:
    text = "line\nline \ud83d \U0001f600 \x00 " + "x" * 200_000
    assert worker.call(f"{HERE}:search", ("\ud83d \U0001f600 \x00", text), LONG) == CallResult(True)
    assert worker.call(f"{HERE}:chatter", (), LONG) == CallResult("the answer")


async def test_many_concurrent_callers_share_the_processes() -> None:
    worker = Worker(2)
    asked = functools.partial(asyncio.to_thread, worker.call)
    bad = [asked(f"{HERE}:nap", (LONG,), 0.2) for _ in range(3)]
    good = [asked(f"{HERE}:add", (i, 1), LONG) for i in range(100)]
    results = await asyncio.gather(*bad, *good)
    assert results[:3] == [CallResult(timed_out=True)] * 3
    assert [r.value for r in results[3:]] == [i + 1 for i in range(100)]


def test_a_forgotten_worker_ends_its_process() -> None:
    pid = Worker(1).call(f"{HERE}:process_id", (), LONG).value
    assert isinstance(pid, int) and gone(pid)
