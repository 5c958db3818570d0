from __future__ import annotations

import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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


def holding(folder: Path, code: str) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code, str(folder)], text=True, **pipes)


def test_those_who_only_look_do_not_take_each_other_for_the_writer(tmp_path: Path) -> None:
    RunLock(tmp_path).release()
    with ThreadPoolExecutor(4) as pool:
        seen = set(pool.map(lambda _: holder(tmp_path), range(4000)))
    assert seen == {None}


def test_another_process_holds_it_until_it_is_killed(tmp_path: Path) -> None:
    with holding(tmp_path, HOLD) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        assert holder(tmp_path) == other.pid
        with pytest.raises(RunBusy, match=f"process {other.pid}") as caught:
            RunLock(tmp_path)
        assert caught.value.hint.endswith(f"kill -INT {other.pid}")
        other.kill()
    assert holder(tmp_path) is None
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
