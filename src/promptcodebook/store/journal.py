"""Replies and books of work that is no run: a batch, a shard of one, measured effects, and what
would be lost with its process (an evaluation without a cache)."""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from promptcodebook.calls import Role, Usage
from promptcodebook.errors import StoreError
from promptcodebook.lm.journal import ReplyLog
from promptcodebook.lm.ledger import AttemptLog, Ledger
from promptcodebook.lm.stack import Supplies
from promptcodebook.paths import make_private_folder, unfinished_folder
from promptcodebook.sqlite import Layout, Reader, Write, Writer, store_os_error
from promptcodebook.store.attempts import AttemptFile
from promptcodebook.store.lock import RunLock
from promptcodebook.store.tables import BOOKS, RunReplies, SessionClock, read_book

_log = logging.getLogger(__name__)
_UNFINISHED = Layout(what="journal of unfinished work", version=1, script=BOOKS)


class Journal:
    """A file whose layout holds `tables.BOOKS`, and the attempts in flight beside it, in a folder
    that has no other. Made by `open`; who writes must hold the folder's lock."""

    def __init__(self, path: Path, layout: Layout, writer: Writer, clock: SessionClock) -> None:
        self._writer = writer
        self._clock = clock
        self.reader = Reader(path, layout)
        self._attempts = AttemptFile(path.parent, writer)
        self.ledger = Ledger(self.paid(), self.lost(), self._attempts)

    @classmethod
    def open(cls, path: Path, layout: Layout, again: str) -> Journal:
        """Made where there is none; `again` is what to type when a full disk has room once more.
        StoreError."""
        clock = SessionClock(time.monotonic)
        hint = f"free space on the disk of {path.parent}, then {again}"
        writer = Writer(path, layout, full_hint=hint, each_batch=clock.beat, reserve=True)
        try:
            writer.write_now(clock.begin)
            return cls(path, layout, writer, clock)
        except BaseException:
            writer.close()
            raise

    @property
    def replies(self) -> RunReplies:
        """Every reply, on disk before its chain goes on."""
        return RunReplies(self.reader, self._writer)

    @property
    def attempt_log(self) -> AttemptLog:
        """Where attempts are kept from before they leave until they are booked."""
        return self._attempts

    def supplies(self) -> Supplies:
        """What a stack needs to journal here and to know what was spent."""
        return Supplies(log=self.replies, ledger=self.ledger, elapsed=lambda: self._clock.elapsed_s)

    def paid(self) -> dict[Role, Usage]:
        """What all sessions paid, by role."""
        self._writer.flush()
        return read_book(self.reader, "usage")

    def lost(self) -> dict[Role, Usage]:
        """The most that attempts lost to failures can have cost, by role."""
        self._writer.flush()
        return read_book(self.reader, "lost")

    @property
    def elapsed_s(self) -> float:
        """Seconds of all sessions."""
        return self._clock.elapsed_s

    def write_now(self, work: Write) -> None:
        """Commits the work, all of it or nothing. DiskFull, StoreError."""
        self._writer.write_now(work)

    def close(self) -> None:
        """Commits what waits."""
        self.reader.close()
        try:
            self._writer.close()
        finally:
            self._attempts.close()


@contextmanager
def until_done(*question: object) -> Generator[Supplies]:
    """Supplies of one budget for work that is no run. What it pays for is in a journal beside the
    reply cache where no cache keeps it: the same question finds it again after a kill. The journal
    goes when the block ends well. Where it cannot be written, a warning says so."""
    asked = repr((str(Path.cwd()), question)).encode("utf-8", "surrogatepass")
    folder = unfinished_folder() / hashlib.sha256(asked).hexdigest()[:32]
    opened: list[tuple[RunLock, Journal]] = []

    def spare() -> ReplyLog | None:
        try:
            if not opened:
                opened.append(_open(folder))
            return opened[0][1].replies
        except StoreError as error:
            _log.warning("a kill would lose what this pays for: %s", error)
            return None

    done = False
    try:
        yield replace(Supplies.of_one_budget(), spare=spare)
        done = True
    finally:
        for lock, journal in opened:
            done = done or journal.reader.row("SELECT 1 FROM journal") is None
            journal.close()
            if done:
                shutil.rmtree(folder, ignore_errors=True)
            lock.release()


def _open(folder: Path) -> tuple[RunLock, Journal]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        make_private_folder(folder.parent)
        make_private_folder(folder)
    except OSError as error:
        raise store_os_error(error, folder) from error
    lock = RunLock(folder, "the same is being done")
    try:
        journal = Journal.open(folder / "journal.sqlite", _UNFINISHED, "type it again")
    except BaseException:
        lock.release()
        raise
    return lock, journal
