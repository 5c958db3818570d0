from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from promptcodebook.errors import RunBusy
from promptcodebook.store.lock import RunLock, holder

HOLD = """
import sys, pathlib
from promptcodebook.store.lock import RunLock
RunLock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_names_its_holder_and_can_be_taken_again(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    lock = RunLock(tmp_path)
    assert holder(tmp_path) == os.getpid()
    with pytest.raises(RunBusy, match=f"process {os.getpid()}"):
        RunLock(tmp_path)
    lock.release()
    lock.release()
    assert holder(tmp_path) is None
    RunLock(tmp_path).release()


def test_another_process_holds_it_until_it_is_killed(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        assert holder(tmp_path) == other.pid
        with pytest.raises(RunBusy, match=f"process {other.pid}") as caught:
            RunLock(tmp_path)
        assert caught.value.hint.endswith(f"kill -INT {other.pid}")
        other.kill()
    RunLock(tmp_path).release()


def test_the_lock_can_be_had_where_not_a_byte_can_be_written(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        lock = RunLock(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert holder(tmp_path) == 0
    with pytest.raises(RunBusy, match="another process"):
        RunLock(tmp_path)
    lock.release()
