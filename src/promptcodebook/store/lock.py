"""The lock of a run's folder: one writer at a time, and a dead one keeps nobody out.

Where the file system can lock, the system drops the lock when its process dies. Where it cannot
(some network and cluster file systems), a second file is the lock as long as it exists; one left
behind by a process that is gone is taken over. Either way the file `lock` says who writes.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
import stat
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from promptcodebook.errors import RunBusy, StoreError
from promptcodebook.sqlite import store_os_error

if TYPE_CHECKING:
    from filelock import SoftFileLock

_NAME = "lock"
_SOFT_NAME = "lock.soft"
LOCK_FILES = (_NAME, _SOFT_NAME)
"""What stays in the folder while a lock may be held."""
_CANNOT_LOCK = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
_WIDTH = 128
# Windows lets nobody read or write the locked first byte.
_TEXT_AT = 1 if os.name == "nt" else 0
_PATIENCE_S = 0.2
"""`holder` shares the lock for an instant to see whether it is free: outwait that."""
_POLL_S = 0.02
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Opens no file through a link, and waits for nobody at the other end of a pipe."""


def refuse_links(folder: Path) -> None:
    """StoreError where something in a run's folder is neither a plain file nor a folder. A folder
    may be anybody's: what is read or written through a link in it is another file of the user's."""
    try:
        with os.scandir(folder) as entries:
            plain = (stat.S_IFREG, stat.S_IFDIR)
            odd = [
                e
                for e in entries
                if stat.S_IFMT(e.stat(follow_symlinks=False).st_mode) not in plain
            ]
    except OSError:  # whoever opens a file in it says it better
        return
    if odd:
        what = "a link" if odd[0].is_symlink() else "no plain file"
        raise StoreError(
            f"{odd[0].path} is {what}, which no run holds",
            hint=f"look where it came from; to delete the run: rm -r {folder}",
        )


class RunLock:
    """Held from construction until `release`. Raises RunBusy naming the process that holds it, and
    what is done under it: `doing`, or the run is written."""

    def __init__(self, folder: Path, doing: str = "") -> None:
        refuse_links(folder)
        try:
            release = _wait_for(folder)
        except OSError as error:
            raise store_os_error(error, folder / _NAME) from error
        if release is None:
            raise _busy(folder, doing or f"the run {folder.name} is being written")
        self._release: Callable[[], object] | None = release
        _sign(folder)

    def release(self) -> None:
        """Lets go. Safe to call twice."""
        release, self._release = self._release, None
        if release is not None:
            release()


def holder(folder: Path) -> int | None:
    """Process id of the run's writer, 0 if it did not say, None if nobody writes."""
    try:
        return None if _is_free(folder) else _read_owner(folder)[0]
    except OSError:  # there is no lock, or it is not ours to look at
        return None


def _is_free(folder: Path) -> bool:
    """Whether nobody writes. Who looks shares the lock with others who look, where the system has
    shared ones: else two who ask at once would take each other for the writer."""
    if sys.platform == "win32":
        (folder / _NAME).stat()  # looking makes no lock
        return _let_go(_take(folder))
    import fcntl

    file = os.open(folder / _NAME, os.O_RDONLY | NO_LINK)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _CANNOT_LOCK:
            raise
        return _let_go(_take_soft(folder))
    finally:
        os.close(file)
    return True


def _let_go(release: Callable[[], object] | None) -> bool:
    """Whether there was something to let go of."""
    if release is None:
        return False
    release()
    return True


def _wait_for(folder: Path) -> Callable[[], object] | None:
    until = time.monotonic() + _PATIENCE_S
    while (release := _take(folder)) is None and time.monotonic() < until:
        time.sleep(_POLL_S)
    return release


def _take(folder: Path) -> Callable[[], object] | None:
    """Takes the lock and returns what lets go of it; None while somebody else has it.

    The file stays for good: removing it would let two processes lock two files.
    """
    from filelock import lock_descriptor  # takes long to import

    file = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | NO_LINK, 0o600)
    try:
        if lock_descriptor(file, blocking=False):
            return partial(os.close, file)
    except OSError as error:
        os.close(file)
        if error.errno not in _CANNOT_LOCK:
            raise
        return _take_soft(folder)
    os.close(file)
    return None


def _take_soft(folder: Path) -> Callable[[], object] | None:
    from filelock import SoftFileLock, Timeout

    lock = SoftFileLock(folder / _SOFT_NAME, blocking=False, thread_local=False)
    for _ in range(2):
        try:
            lock.acquire()
            return lock.release
        except Timeout:
            if not _is_left_behind(lock, folder):
                return None
            lock.break_lock()
    return None


def _is_left_behind(lock: SoftFileLock, folder: Path) -> bool:
    """Whether a process of this machine left the lock and is gone.

    The library takes such a lock over by itself, but only where two names can be swapped, which
    file systems without locks often cannot do either.
    """
    pid, place = _read_owner(folder)
    if os.name == "nt" or not pid or pid != lock.pid or place != _place():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it lives, and is somebody else's
        return False
    return False


def _sign(folder: Path) -> None:
    """Says who we are. That is a courtesy: on a full disk the lock must still be had.

    Always as wide as before, so that it fits in the block that the file already has.
    """
    text = f"{os.getpid()} {_place()}".encode()[:_WIDTH].ljust(_WIDTH)
    with contextlib.suppress(OSError), _opened(folder, os.O_RDWR) as file:
        file.seek(_TEXT_AT)
        file.write(text)


def _opened(folder: Path, flags: int) -> io.FileIO:
    binary: int = getattr(os, "O_BINARY", 0)
    return io.FileIO(os.open(folder / _NAME, flags | binary | NO_LINK), "r+" if flags else "r")


def _place() -> str:
    """Where a process id means something: this machine, and on Linux the container on it."""
    name = socket.gethostname()
    with contextlib.suppress(OSError):
        name += f"/{os.stat('/proc/self/ns/pid').st_ino}"
    return name


def _read_owner(folder: Path) -> tuple[int, str]:
    """Process id and place of who signed last; (0, '') where nobody could."""
    try:
        with _opened(folder, os.O_RDONLY) as file:
            file.seek(_TEXT_AT)
            text = file.read(_WIDTH).decode("utf-8", "replace")
    except OSError:
        return 0, ""
    pid, _, place = text.strip().partition(" ")
    return (int(pid), place.strip()) if pid.isdecimal() else (0, "")


def _busy(folder: Path, doing: str) -> RunBusy:
    pid, place = _read_owner(folder)
    here = place in ("", _place())  # 0.1 did not say where
    who = (f"process {pid}" if pid else "another process") + ("" if here else f" on {place}")
    stop = f", or stop it: kill -INT {pid}" if pid and here else ""
    soft = folder / _SOFT_NAME
    gone = f" (if it is gone already, delete {soft})" if soft.exists() else ""
    return RunBusy(f"{doing} by {who}", hint=f"wait until it ends{gone}{stop}")
