"""Replies and books of work that is no run: a batch, a shard of one, measured effects."""

from __future__ import annotations

import time
from pathlib import Path

from promptcodebook.calls import Role, Usage
from promptcodebook.lm.ledger import AttemptLog, Ledger
from promptcodebook.lm.stack import Supplies
from promptcodebook.sqlite import Layout, Reader, Write, Writer
from promptcodebook.store.attempts import AttemptFile
from promptcodebook.store.tables import RunReplies, SessionClock, read_book

__all__ = ["Journal"]


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
        writer = Writer(path, layout, full_hint=hint, each_batch=clock.beat)
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
