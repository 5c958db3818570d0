"""The run's journal on disk: what `lm.journal.Journaled` asks and tells."""

from __future__ import annotations

import sqlite3

from promptcodebook.lm.base import Reply, Request
from promptcodebook.lm.packed import pack_reply, unpack_reply
from promptcodebook.sqlite import Packer, Reader, Writer
from promptcodebook.store.tables import add_usage

__all__ = ["RunReplies"]


class RunReplies:
    """A `ReplyLog`: the row of a paid reply and its usage are one transaction."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader = reader
        self._writer = writer
        self._packer = Packer()  # used by the writer thread alone

    def get(self, key: bytes) -> Reply | None:
        """The reply with the usage it had when it was paid, or None."""
        row = self._reader.row("SELECT reply FROM journal WHERE key = ?", (key,))
        return None if row is None else unpack_reply(row[0])

    async def put(self, key: bytes, request: Request, reply: Reply) -> None:
        """Returns once the reply is committed. A key that is there already keeps its reply; only
        a new row that is live (neither from a cache nor from here) adds to what was paid."""

        def work(db: sqlite3.Connection) -> None:
            added = db.execute(
                "INSERT OR IGNORE INTO journal (key, role, reply) VALUES (?, ?, ?)",
                (key, request.role, pack_reply(reply, self._packer)),
            ).rowcount
            if added and reply.source == "live":
                add_usage(db, request.role, reply.usage)

        await self._writer.write(work)
