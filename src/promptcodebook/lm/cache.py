"""Replies that are kept, so that the same request is paid for once: the cache and the journal. The
cache keeps replies between runs and never makes one fail. The journal belongs to one run."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import astuple, replace
from pathlib import Path
from typing import Protocol, TypeVar, get_args

from promptcodebook.base import sqlite
from promptcodebook.base.incidents import Incident, Tally
from promptcodebook.base.paths import cache_folder, tighten
from promptcodebook.calls import LM, Ending, Reply, Request, Role, Usage, request_key
from promptcodebook.errors import Interrupted, StoreError
from promptcodebook.lm.limit import StopSignal

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_LAYOUT = sqlite.Layout("reply cache", 1, (Path(__file__).with_suffix(".sql"),))
_FULL = "free some space, or: pco cache clear"
_BYPASS_S = 60.0


class ReplyCache:
    """The file: replies by `request_key`. Processes may share it. Raises StoreError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with sqlite.on_disk(path.parent):
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
        if path.parent == cache_folder():  # any other folder is not ours to close
            tighten(path.parent, 0o700)
        self._packer = sqlite.Packer()  # used by the writer thread alone
        self._damaged: set[bytes] = set()
        self._writer = sqlite.Writer(path, _LAYOUT, full_hint=_FULL)
        try:
            self._reader = sqlite.Reader(path, _LAYOUT)
        except StoreError:
            self._writer.close()
            raise

    def get(self, key: bytes) -> Reply | None:
        """The reply with the usage it had when it was live; None for one that cannot be used."""
        row = self._reader.row("SELECT reply FROM replies WHERE key = ?", (key,))
        try:
            return None if row is None else unpack_reply(row[0])
        except StoreError as error:
            _log.warning("a cached reply is requested again: %s", error)
            self._damaged.add(key)
            return None

    def put(self, key: bytes, reply: Reply) -> None:
        instead = "REPLACE" if key in self._damaged else "IGNORE"
        self._damaged.discard(key)
        self._writer.send(
            lambda db: db.execute(
                f"INSERT OR {instead} INTO replies (key, reply) VALUES (?, ?)",
                (key, pack_reply(reply, self._packer)),
            )
        )

    def flush(self) -> None:
        self._writer.flush()

    def stats(self) -> tuple[int, int]:
        """How many replies it holds, and its bytes on disk."""
        self._writer.flush()
        row = self._reader.row("SELECT COUNT(*) FROM replies")
        sides = (self._path, self._path.with_name(self._path.name + "-wal"))
        size = sum(p.stat().st_size for p in sides if p.exists())
        return int(row[0]) if row else 0, size

    def clear(self) -> int:
        """Forgets every reply and gives the space back; how many there were."""
        count, _ = self.stats()
        self._writer.write_now(lambda db: db.execute("DELETE FROM replies"))
        # VACUUM cannot run inside the writer's transactions, so it has its own connection.
        db = sqlite.connect(self._path, _LAYOUT, write=True)
        try:
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:  # another process is using it: the rows are gone anyway
            _log.info("the cache is empty, but its file has not shrunk yet: %s", error)
        finally:
            db.close()
        return count

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class Cache:
    """An LM that asks `inner` only for what the file does not hold. A hit has source 'cache' and
    the usage it had when it was paid: nothing is paid now. Failures are never stored, nor are
    replies cut at their length cap. A file that cannot be used is reported once and bypassed for a
    minute: its disk may have room again, or another process may let it go.
    `identity` separates what is kept under one model's name: its weights may be replaced."""

    def __init__(
        self,
        inner: LM,
        path: Path,
        tally: Tally,
        identity: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        self._identity = identity
        self._inner = inner
        self._path = path
        self._tally = tally
        self._bypassed_until = 0.0
        self._open_file: ReplyCache | None = None

    async def __call__(self, request: Request) -> Reply:
        key = await self._key(request)
        known = self._use(lambda file: file.get(key))
        if known is not None:
            self._tally(Incident.CACHE_HITS)
            return replace(known, source="cache")
        self._tally(Incident.CACHE_MISSES)
        reply = await self._inner(request)
        self._put(key, reply)
        return reply

    async def keep(self, request: Request, reply: Reply) -> None:
        """Keeps a reply that a journal holds. A kill may have come between the two commits, and
        the journal goes when its work is done. A key that is there keeps its reply."""
        self._put(await self._key(request), reply)

    async def _key(self, request: Request) -> bytes:
        key = request_key(request)
        if self._identity is not None and (mark := await self._identity(request.model)):
            key = hashlib.sha256(key + mark.encode()).digest()
        return key

    def _put(self, key: bytes, reply: Reply) -> None:
        if reply.finish != "length":
            self._use(lambda file: file.put(key, reply))

    @property
    def file(self) -> ReplyCache | None:
        """The file, opened when first needed; None while it is bypassed."""
        if self._open_file is None and time.monotonic() >= self._bypassed_until:
            try:
                self._open_file = ReplyCache(self._path)
            except StoreError as error:
                self._bypass(error)
        return self._open_file

    def close(self) -> None:
        """Keeps what still waits and closes the file; a later call opens it again."""
        file, self._open_file = self._open_file, None
        try:
            if file is not None:
                file.close()
        except StoreError as error:
            _log.warning("replies were not cached: %s", error)

    def _use(self, work: Callable[[ReplyCache], _T]) -> _T | None:
        try:
            return None if self.file is None else work(self.file)
        except StoreError as error:
            self._bypass(error)
            return None

    def _bypass(self, error: StoreError) -> None:
        hint = f" ({error.hint})" if error.hint else ""
        if not self._bypassed_until:
            _log.warning("continuing without the reply cache: %s%s", error, hint)
        self._tally(Incident.CACHE_BYPASSED)
        self._bypassed_until = time.monotonic() + _BYPASS_S
        self.close()


def pack_reply(reply: Reply, packer: sqlite.Packer) -> bytes:
    """The reply with the usage it had when it was live, so that what it cost stays on record."""
    usage, further = astuple(reply.usage), (reply.vector, reply.tool_calls)
    further = further[: 2 if reply.tool_calls else bool(reply.vector)]
    return packer.pack((reply.text, reply.finish, usage, reply.dropped, reply.estimated, *further))


def unpack_reply(blob: bytes) -> Reply:
    """What `pack_reply` was given, source 'live'. Raises StoreError for what cannot be used."""
    try:
        text, finish, usage, dropped, estimated, *further = sqlite.unpack(blob)
        vector, calls = (*further, (), ())[:2]
        if finish not in get_args(Ending):  # earlier versions kept what a server had broken off
            raise ValueError(f"its server cut it off ({finish})")
        reply = Reply(text, finish, Usage(*usage), tuple(dropped), estimated)
        return replace(reply, vector=tuple(map(float, vector)), tool_calls=tuple(calls))
    except (TypeError, ValueError) as error:
        raise StoreError(f"a stored reply cannot be used: {error}") from error


class ReplyLog(Protocol):
    """Replies by `request_key`. `put` returns once one would survive kill -9; keys keep theirs."""

    def get(self, key: bytes) -> Reply | None: ...

    async def put(self, key: bytes, request: Request, reply: Reply) -> None: ...


class Journaled:
    """An LM that asks `inner` only for what `log` does not hold, and logs what it answers. A hit
    has source 'journal' and the usage it had when it was paid. Equal requests in flight share one
    call: followers get source 'journal' too, since the leader has paid. If the leader is cancelled
    a follower takes over; a failure reaches all of them. `models_then` names, by role and spec, the
    spec that a model was asked by when the run began: its earlier replies still count. A `cache`
    below is given what only the log holds."""

    def __init__(
        self,
        inner: LM,
        log: ReplyLog,
        tally: Tally,
        stop: StopSignal | None = None,
        models_then: Mapping[tuple[Role, str], str] | None = None,
        cache: Cache | None = None,
    ) -> None:
        self._inner = inner
        self._log = log
        self._cache = cache
        self._tally = tally
        self._stop = stop or StopSignal()
        self._models_then = models_then or {}
        # Calls in flight end in the reply, if any, and whether it is on disk.
        self._flights: dict[bytes, asyncio.Future[tuple[Reply | None, bool]]] = {}

    async def __call__(self, request: Request) -> Reply:
        self._stop.check(Interrupted)  # else a run whose replies are all known would not end
        then = self._models_then.get((request.role, request.model), request.model)
        key = request_key(replace(request, model=then))
        while True:
            flight = self._flights.get(key)
            if flight is None:
                known = self._log.get(key)
                if known is None:
                    return await self._lead(key, request)
                self._tally(Incident.JOURNAL_HITS)
                if self._cache is not None:
                    await self._cache.keep(request, known)
                return replace(known, source="journal")
            # Shielded: one follower's cancellation must not cancel the others' wait.
            reply, durable = await asyncio.shield(flight)
            if reply is not None:
                self._tally(Incident.SHARED_CALLS)
                if not durable:
                    await self._keep(key, request, reply)
                return replace(reply, source="journal")

    async def _lead(self, key: bytes, request: Request) -> Reply:
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        reply: Reply | None = None
        try:
            reply = await self._inner(request)
            await self._keep(key, request, reply)
        except Exception as error:
            flight.set_exception(error)
            flight.exception()  # there may be no follower to look at it
            raise
        except BaseException:  # cancelled: a follower takes over, or takes the reply
            flight.set_result((reply, False))
            raise
        else:
            flight.set_result((reply, True))
            return reply
        finally:
            del self._flights[key]

    async def _keep(self, key: bytes, request: Request, reply: Reply) -> None:
        try:
            await self._log.put(key, request, reply)
        except StoreError as error:
            self._stop.give(error)  # what is asked for from now on would be lost as well
            raise
