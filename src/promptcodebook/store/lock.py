"""One writer per run: an advisory lock that the system drops when its process dies."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from promptcodebook.errors import RunBusy
from promptcodebook.sqlite import store_os_error

__all__ = ["RunLock", "holder"]

_NAME = "lock"
_WIDTH = 20
_PATIENCE_S = 0.2
"""`holder` takes the lock for an instant to see whether it is free: outwait that."""


class RunLock:
    """Held from construction until `release`. Raises RunBusy naming the process that holds it."""

    def __init__(self, folder: Path) -> None:
        try:
            self._file = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise store_os_error(error, folder / _NAME) from error
        until = time.monotonic() + _PATIENCE_S
        while not _try_lock(self._file):
            if time.monotonic() > until:
                pid = _pid(self._file)
                os.close(self._file)
                raise _busy(folder, pid)
            time.sleep(0.02)
        # Saying who we are is a courtesy: on a full disk the lock must still be had. Always as
        # wide as before, so that it fits in the block the file already has.
        with contextlib.suppress(OSError):
            os.pwrite(self._file, f"{os.getpid():<{_WIDTH}}".encode(), 0)

    def release(self) -> None:
        """Lets go. The file stays: removing it would let two processes lock two files."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def holder(folder: Path) -> int | None:
    """Process id of the run's writer, 0 if it did not say, None if nobody writes."""
    try:
        file = os.open(folder / _NAME, os.O_RDWR)
    except OSError:
        return None
    try:
        return None if _try_lock(file) else _pid(file)
    finally:
        os.close(file)


def _try_lock(file: int) -> bool:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pid(file: int) -> int:
    text = os.pread(file, _WIDTH, 0).strip()
    return int(text) if text.isdigit() else 0


def _busy(folder: Path, pid: int) -> RunBusy:
    who = f"process {pid}" if pid else "another process"
    stop = f", or stop it: kill -INT {pid}" if pid else ""
    return RunBusy(
        f"the run {folder.name} is being written by {who}", hint=f"wait until it ends{stop}"
    )
