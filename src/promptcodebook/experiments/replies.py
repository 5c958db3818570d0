"""Replies shared by all runs of an experiment: a greedy one is a fact, and paid for once.

The reply cache of `lm/cache.py` keeps no reply that was cut at its cap, since another run may allow
more. Here the cap is part of the question, and most replies of a small model are cut.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

from promptcodebook.calls import LM, Reply, Request, Usage, request_key
from promptcodebook.lm.cache import ReplyCache
from promptcodebook.sync import LoopThread


class OneLoop:
    """An LM whose calls all run in one loop, whatever loop they come from: the cells of an
    experiment, each in a thread and loop of its own, share its connections and its limit."""

    def __init__(self, inner: LM, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    async def __call__(self, request: Request) -> Reply:
        async def ask() -> Reply:
            return await self._inner(request)

        return await asyncio.wrap_future(self._loop.begin(ask()))


class Replies:
    """An LM that asks `inner` only for what its file does not hold; `paid` is what that took, since
    it was opened.

    What is drawn is held too: its key holds the seed of the draw. A held reply costs a run nothing,
    unless it is asked for through `counted`. Any thread may ask.
    """

    def __init__(self, inner: LM, path: Path) -> None:
        self._inner = inner
        self._file = ReplyCache(path)
        self._counting = threading.Lock()
        self.paid = Usage()
        self.known = 0

    async def counted(self, request: Request) -> Reply:
        """A reply that a budget books as if it had just been paid for: where runs are compared at
        equal calls, what others asked before must not make some of them cheaper."""
        return replace(await self(request), source="live")

    async def __call__(self, request: Request) -> Reply:
        key = request_key(request)
        known = self._file.get(key)
        if known is not None:
            with self._counting:
                self.known += 1
            return replace(known, source="cache")
        reply = await self._inner(request)
        self._file.put(key, reply)
        with self._counting:
            self.paid += reply.usage
        return reply

    def close(self) -> None:
        """Keeps what still waits to be written. DiskFull or StoreError where it cannot be."""
        self._file.close()
