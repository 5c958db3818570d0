"""A run's folder: its files, and its lock. There is one writer at a time, and a dead one blocks no
other. Where the file system can lock, the system drops the lock when its process dies. Where it
cannot (some network and cluster file systems), a second file is the lock as long as it exists; one
left behind by a process that is gone is taken over. Either way the file `lock` says who writes.
Lists of runs need this and no more of a run: pydantic and the events are imported elsewhere."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
import sqlite3
import stat
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import quote

from promptcodebook.base.sqlite import on_disk, restrain
from promptcodebook.base.text import shell
from promptcodebook.errors import RunBusy, StoreError

FILE = "run.sqlite"
ATTEMPTS = "in-flight"
# In a run's folder: its tables, the attempts that are on their way, and measured effects.
EFFECTS = "effects"
LOCK = "lock"
_SOFT = "lock.soft"
LOCK_FILES = (LOCK, _SOFT)  # what stays in the folder while a lock may be held
_CANNOT_LOCK = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
_WIDTH = 128
# On Windows no process can read or write the locked first byte.
_TEXT_AT = 1 if os.name == "nt" else 0
_PATIENCE_S = 0.2  # `holder` shares the lock for an instant to see whether it is free: outwait that
_POLL_S = 0.02
# Opens no file through a link, and does not wait for the other end of a pipe.
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def refuse_links(folder: Path) -> None:
    """Raises StoreError where something in a run's folder is neither a plain file nor a folder. A
    folder may be anybody's: what is read or written through a link in it is another file of the
    user's."""
    plain = (stat.S_IFREG, stat.S_IFDIR)
    try:
        with os.scandir(folder) as all_of_it:
            modes = {e: stat.S_IFMT(e.stat(follow_symlinks=False).st_mode) for e in all_of_it}
    except OSError:  # opening a file in it gives the better error
        return
    for entry in (entry for entry, mode in modes.items() if mode not in plain):
        what = "a link" if entry.is_symlink() else "not a plain file"
        message = f"{entry.path} does not belong in a run: it is {what}"
        hint = f"check where it came from; to delete the run: rm -r {shell(folder)}"
        raise StoreError(message, hint=hint)


class RunLock:
    """Held until `release`. RunBusy names who holds it, and what is done under it: `doing`."""

    def __init__(self, folder: Path, doing: str = "") -> None:
        refuse_links(folder)
        until = time.monotonic() + _PATIENCE_S
        with on_disk(folder / LOCK):
            while (release := _take(folder)) is None and time.monotonic() < until:
                time.sleep(_POLL_S)
        if release is None:
            raise _busy(folder, doing or f"the run {folder.name} is being written")
        self._release: Callable[[], object] | None = release
        # Says who we are. That is a courtesy: on a full disk the lock must still be had. Always as
        # wide as before, so that it fits in the block that the file already has.
        text = f"{os.getpid()} {_place()}".encode()[:_WIDTH].ljust(_WIDTH)
        with contextlib.suppress(OSError), _opened(folder, os.O_RDWR) as signed:
            signed.seek(_TEXT_AT)
            signed.write(text)

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


def lock_effects(run: Path) -> RunLock:
    """Held while instincts of the run are measured, in the folder for that. Raises RunBusy or
    StoreError."""
    refuse_links(run)
    return RunLock(run / EFFECTS, f"an instinct of the run {run.name} is being measured")


def holder(folder: Path) -> int | None:
    """Process id of the run's writer, 0 if unknown or of another machine, None if none writes."""
    try:
        pid, place = (None, "") if _is_free(folder) else _read_owner(folder)
        return pid if pid is None or place == _place() else 0
    except OSError:  # there is no lock, or it is not ours to look at
        return None


def _is_free(folder: Path) -> bool:
    """Whether no process writes. Readers share the lock where the system has shared locks: else
    two that ask at once would take each other for the writer."""
    if sys.platform == "win32":
        (folder / LOCK).stat()  # looking makes no lock
        release = _take(folder)
    else:
        import fcntl

        file = os.open(folder / LOCK, os.O_RDONLY | NO_LINK)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _CANNOT_LOCK:
                raise
        finally:
            os.close(file)
        release = _take_soft(folder)
    if release is not None:
        release()
    return release is not None


def _take(folder: Path) -> Callable[[], object] | None:
    """Takes the lock and returns what lets go of it; None while somebody else has it. The file
    stays for good: removing it would let two processes lock two files."""
    from filelock import lock_descriptor  # takes long to import

    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | NO_LINK, 0o600)
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

    lock = SoftFileLock(folder / _SOFT, blocking=False, thread_local=False)
    for _ in range(2):  # the first try removes what a dead process of this machine left
        with contextlib.suppress(Timeout):
            lock.acquire()
            return lock.release
    return None


def _opened(folder: Path, flags: int) -> io.FileIO:
    binary: int = getattr(os, "O_BINARY", 0)
    return io.FileIO(os.open(folder / LOCK, flags | binary | NO_LINK), "r+" if flags else "r")


def _place() -> str:
    """Where a process id means something: this machine, and on Linux the container on it."""
    name = socket.gethostname()
    with contextlib.suppress(OSError):
        name += f"/{os.stat('/proc/self/ns/pid').st_ino}"
    return name


def _read_owner(folder: Path) -> tuple[int, str]:
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
    here = place == _place()
    who = (f"process {pid}" if pid else "another process") + ("" if here else f" on {place}")
    stop = f", or stop it: kill -INT {pid}" if pid and here else ""
    soft = folder / _SOFT
    gone = f" (if it has already ended, delete {soft})" if soft.exists() else ""
    return RunBusy(f"{doing} by {who}", hint=f"wait until it ends{gone}{stop}")


def is_blank(file: Path, *tables: str) -> bool:
    """Whether a database has no table, or no row in one of `tables`: it is not made yet."""
    uri = f"file:{quote(str(file))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
            restrain(db)
            queries = (f"SELECT 1 FROM {table} LIMIT 1" for table in ("sqlite_master", *tables))
            return any(db.execute(query).fetchone() is None for query in queries)
    except sqlite3.Error:  # no database of ours, or one that is damaged
        return False
