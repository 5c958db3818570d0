"""The journal: each reply is on disk before its chain continues, so nothing is paid for twice.

A resumed run replays its journal and not the cache, which may be cleared, shared or off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from promptcodebook.calls import LM, Reply, Request, Role, request_key
from promptcodebook.errors import StoreError
from promptcodebook.incidents import Incident, Tally
from promptcodebook.lm.limit import StopSignal


class ReplyLog(Protocol):
    """Replies by `request_key`. `put` returns once the reply would survive kill -9; a key that is
    there already keeps its reply, and is paid for once."""

    def get(self, key: bytes) -> Reply | None: ...

    async def put(self, key: bytes, request: Request, reply: Reply) -> None: ...


@dataclass(frozen=True, slots=True)
class _Landed:
    """How a shared call ended; `durable` is False when its leader was cancelled while storing."""

    reply: Reply | None
    durable: bool = True


class Journaled:
    """An LM that asks `inner` only for what `log` does not hold, and logs what it answers.

    A hit has source 'journal' and the usage it had when it was paid. Equal requests in flight at
    the same moment share one call: followers get source 'journal' too, since the leader has paid;
    if the leader is cancelled a follower takes over; a failure reaches all of them. Counts
    JOURNAL_HITS and SHARED_CALLS.

    `models_then` names, by role and spec, the spec that a model was asked by when the run began: it
    is served elsewhere now, and its replies of then are still its replies.
    """

    def __init__(
        self,
        inner: LM,
        log: ReplyLog,
        tally: Tally,
        stop: StopSignal | None = None,
        models_then: Mapping[tuple[Role, str], str] | None = None,
    ) -> None:
        self._inner = inner
        self._log = log
        self._tally = tally
        self._stop = stop or StopSignal()
        self._models_then = models_then or {}
        self._flights: dict[bytes, asyncio.Future[_Landed]] = {}

    async def __call__(self, request: Request) -> Reply:
        then = self._models_then.get((request.role, request.model), request.model)
        key = request_key(replace(request, model=then))
        while True:
            flight = self._flights.get(key)
            if flight is None:
                known = self._log.get(key)
                if known is not None:
                    self._tally(Incident.JOURNAL_HITS)
                    return _from_journal(known)
                return await self._lead(key, request)
            # Shielded: one follower's cancellation must not cancel the others' wait.
            landed = await asyncio.shield(flight)
            if landed.reply is not None:
                self._tally(Incident.SHARED_CALLS)
                if not landed.durable:
                    await self._keep(key, request, landed.reply)
                return _from_journal(landed.reply)

    async def _lead(self, key: bytes, request: Request) -> Reply:
        flight: asyncio.Future[_Landed] = asyncio.get_running_loop().create_future()
        self._flights[key] = flight
        reply: Reply | None = None
        try:
            reply = await self._inner(request)
            await self._keep(key, request, reply)
        except Exception as error:
            flight.set_exception(error)
            flight.exception()  # there may be no follower to look at it
            raise
        except BaseException:  # cancelled: a follower takes over, or takes the reply
            flight.set_result(_Landed(reply, durable=False))
            raise
        else:
            flight.set_result(_Landed(reply))
            return reply
        finally:
            del self._flights[key]

    async def _keep(self, key: bytes, request: Request, reply: Reply) -> None:
        try:
            await self._log.put(key, request, reply)
        except StoreError as error:
            self._stop.give(error)  # what is asked for from now on would be lost as well
            raise


def _from_journal(reply: Reply) -> Reply:
    return replace(reply, source="journal")
