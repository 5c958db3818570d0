"""Calls in processes that are killed at a limit."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from promptcodebook.tasks.worker import CallResult, Worker
from tests.load import crowding

HERE = "tests.tasks.awkward"
LONG = 30.0


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(1)
    yield made
    made.close()


def gone(pid: int) -> bool:
    """Neither running nor a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_process_is_reused(worker: Worker) -> None:
    assert worker.call(f"{HERE}:add", (2, 3), LONG) == CallResult(5)
    first = worker.call(f"{HERE}:process_id", (), LONG).value
    assert worker.call(f"{HERE}:process_id", (), LONG).value == first != os.getpid()


def test_a_catastrophic_pattern_is_stopped_and_the_next_call_answered(worker: Worker) -> None:
    pid = worker.call(f"{HERE}:process_id", (), LONG).value
    start = time.monotonic()
    result = worker.call(f"{HERE}:search", (r"^(a+)+$", "a" * 60 + "!"), 0.3)
    assert result == CallResult(timed_out=True)
    assert not result.done
    assert 0.3 <= time.monotonic() - start < 2 * crowding()
    assert isinstance(pid, int) and gone(pid)
    assert worker.call(f"{HERE}:search", ("a+", "caaab"), LONG) == CallResult(True)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="only time in all is counted here")
def test_a_call_is_late_by_what_it_computed_and_not_by_what_it_waited_for(worker: Worker) -> None:
    """Else a right answer is scored 0 where the machine has other things to do."""
    assert worker.call(f"{HERE}:nap", (0.4,), 0.2).done
    start = time.monotonic()
    assert worker.call(f"{HERE}:nap", (60,), 0.2) == CallResult(timed_out=True)
    assert time.monotonic() - start < 5 * crowding(), "but nothing is waited for without end"


def test_an_exception_and_a_crash_are_told_apart_from_a_value(worker: Worker) -> None:
    assert "missing )" in worker.call(f"{HERE}:search", ("(", "x"), LONG).error
    assert worker.call(f"{HERE}:deep", (), LONG).error.startswith("RecursionError")
    assert worker.call(f"{HERE}:nothing", (), LONG).error.startswith("AttributeError")
    pid = worker.call(f"{HERE}:process_id", (), LONG).value
    assert worker.call(f"{HERE}:die", (7,), LONG).error.endswith("ended with code 7")
    assert isinstance(pid, int) and gone(pid)
    assert worker.call(f"{HERE}:add", (1, 1), LONG) == CallResult(2)


def test_a_process_killed_while_idle_is_replaced(worker: Worker) -> None:
    pid = worker.call(f"{HERE}:process_id", (), LONG).value
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.1)
    assert worker.call(f"{HERE}:add", (1, 1), LONG) == CallResult(2)


def test_odd_text_passes_unchanged_and_prints_do_not_disturb(worker: Worker) -> None:
    text = "line\nline \ud83d \U0001f600 \x00 " + "x" * 200_000
    assert worker.call(f"{HERE}:search", ("\ud83d \U0001f600 \x00", text), LONG) == CallResult(True)
    assert worker.call(f"{HERE}:chatter", (), LONG) == CallResult("the answer")


def test_no_key_reaches_the_process(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    names = worker.call(f"{HERE}:environment", (), LONG).value
    assert isinstance(names, list) and "SOME_API_KEY" not in names


async def test_many_concurrent_callers_share_the_processes() -> None:
    worker = Worker(2)
    bad = [worker.acall(f"{HERE}:nap", (LONG,), 0.2) for _ in range(3)]
    good = [worker.acall(f"{HERE}:add", (i, 1), LONG) for i in range(100)]
    results = await asyncio.gather(*bad, *good)
    assert results[:3] == [CallResult(timed_out=True)] * 3
    assert [r.value for r in results[3:]] == [i + 1 for i in range(100)]
    await asyncio.to_thread(worker.close)


def test_close_ends_a_call_in_progress_and_leaves_no_process() -> None:
    worker = Worker(1)
    pid = worker.call(f"{HERE}:process_id", (), LONG).value
    results = list[CallResult]()
    caller = threading.Thread(
        target=lambda: results.append(worker.call(f"{HERE}:nap", (LONG,), LONG))
    )
    caller.start()
    time.sleep(0.2)
    worker.close()
    caller.join(5)
    assert results and not results[0].done
    assert isinstance(pid, int) and gone(pid)
    assert worker.call(f"{HERE}:add", (1, 1), LONG) == CallResult(2)
    worker.close()


def test_an_interrupt_of_the_caller_does_not_reach_a_call_in_progress(worker: Worker) -> None:
    pid = worker.call(f"{HERE}:process_id", (), LONG).value
    assert isinstance(pid, int)
    assert os.getpgid(pid) != os.getpgrp()


def test_a_forgotten_worker_ends_its_process() -> None:
    worker = Worker(1)
    pid = worker.call(f"{HERE}:process_id", (), LONG).value
    del worker
    assert isinstance(pid, int) and gone(pid)


def test_a_worker_is_not_disturbed_by_files_where_it_is_started(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(9)", "utf-8")
    monkeypatch.chdir(tmp_path)
    assert worker.call(f"{HERE}:add", (1, 1), LONG) == CallResult(2)
