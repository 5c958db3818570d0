from __future__ import annotations

import errno
import fcntl
import os
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
    with holding(tmp_path, hold) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        assert holder(tmp_path) == other.pid
        with pytest.raises(RunBusy, match=f"process {other.pid}"):
            RunLock(tmp_path)
        with pytest.raises(subprocess.TimeoutExpired):  # whoever asks for it does it no harm
            other.wait(0.2)
        other.kill()
    assert (tmp_path / "lock.soft").exists()
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
def test_a_lock_left_behind_is_taken_over_though_the_library_cannot(tmp_path: Path) -> None:
    RunLock(tmp_path).release()
    signed = (tmp_path / "lock").read_text("ascii")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    # Nobody at the library's 'elsewhere' can be looked for from here.
    (tmp_path / "lock.soft").write_text(f"{gone.pid}\nelsewhere\n", "ascii")
    (tmp_path / "lock").write_text(signed.replace(str(os.getpid()), str(gone.pid)), "ascii")
    lock = RunLock(tmp_path)
    assert holder(tmp_path) == os.getpid()
    lock.release()


@pytest.mark.usefixtures("no_locks")
def test_a_process_on_another_machine_is_not_taken_for_gone(tmp_path: Path) -> None:
    (tmp_path / "lock.soft").write_text("4242424\nelsewhere\n", "ascii")
    (tmp_path / "lock").write_text("4242424 elsewhere/1", "ascii")
    with pytest.raises(RunBusy, match="process 4242424 on elsewhere/1") as caught:
        RunLock(tmp_path)
    assert "kill" not in caught.value.hint
    assert holder(tmp_path) == 4242424
