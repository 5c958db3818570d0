"""The retriever as an executor awaits it: off the event loop, batched, memoised."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from promptcodebook.tasks.retrieval.retriever import Retriever

__all__ = ["Search"]

_Key = tuple[str, int]
_Ranked = tuple[int, ...]
_KEPT = 65_536
"""(query, k) pairs remembered, the oldest forgotten first; an entry is k page numbers."""


def _no_askers() -> dict[_Key, asyncio.Future[_Ranked]]:
    return {}


@dataclass(slots=True)
class _Lane:
    """What one event loop waits for: the queries not yet taken, and those being searched."""

    waiting: dict[_Key, asyncio.Future[_Ranked]] = field(default_factory=_no_askers)
    running: dict[_Key, asyncio.Future[_Ranked]] = field(default_factory=_no_askers)
    task: asyncio.Task[None] | None = None


class Search:
    """`await search(query, k)`: all that is asked while one batch runs makes the next batch.

    `batches` and `asked` count what reached the retriever, for tests and reports.
    """

    def __init__(self, retriever: Retriever, *, kept: int = _KEPT) -> None:
        self.retriever = retriever
        self.batches = 0
        self.asked = 0
        self._kept = kept
        self._memo: dict[_Key, _Ranked] = {}
        self._lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lane] = WeakKeyDictionary()

    async def __call__(self, query: str, k: int) -> list[str]:
        """`Retriever.search`, without stopping the event loop."""
        key = (query, k)
        ranked = self._memo.get(key)
        if ranked is None:
            # Shielded: one asker that is cancelled must not take the reply from the others.
            ranked = await asyncio.shield(self._future(key))
        return self.retriever.passages(ranked)

    def _future(self, key: _Key) -> asyncio.Future[_Ranked]:
        loop = asyncio.get_running_loop()
        lane = self._lanes.setdefault(loop, _Lane())
        future = lane.waiting.get(key) or lane.running.get(key)
        if future is None:
            future = lane.waiting[key] = loop.create_future()
            if lane.task is None:
                lane.task = loop.create_task(self._drain(lane))
        return future

    async def _drain(self, lane: _Lane) -> None:
        try:
            while lane.waiting:
                lane.running, lane.waiting = lane.waiting, {}
                await self._batch(lane.running)
                lane.running = {}
        finally:
            lane.task = None

    async def _batch(self, futures: dict[_Key, asyncio.Future[_Ranked]]) -> None:
        keys = list(futures)
        try:
            found = await asyncio.to_thread(self._rank, keys)
        except Exception as error:
            for future in futures.values():
                future.set_exception(error)
                future.exception()  # marked as seen: its askers may all be gone
            return
        self.batches += 1
        self.asked += len(keys)
        for key, ranked in found.items():
            self._memo[key] = ranked
            if not futures[key].done():
                futures[key].set_result(ranked)
        while len(self._memo) > self._kept:
            del self._memo[next(iter(self._memo))]

    def _rank(self, keys: list[_Key]) -> dict[_Key, _Ranked]:
        found: dict[_Key, _Ranked] = {}
        for k in sorted({k for _, k in keys}):
            queries = [query for query, wanted in keys if wanted == k]
            ranked = self.retriever.rank(queries, k)
            found.update({(q, k): r for q, r in zip(queries, ranked, strict=True)})
        return found
