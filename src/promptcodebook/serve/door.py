"""The way into a server on aiohttp: who may ask, what is too much, and what an error becomes.

aiohttp's parser bounds lines, fields and headers of a request. The text of a request is never
logged, nor is an error that could quote it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from promptcodebook.serve.callers import Callers, RateLimit
from promptcodebook.serve.completions import Refusal, error_body, parse_body, require_json
from promptcodebook.serve.metrics import Metrics, kind_and_place
from promptcodebook.serve.records import new_request_id

__all__ = ["HUNG_UP", "Answers", "Door", "Limits", "Visit", "json_response"]

_log = logging.getLogger(__name__)
HUNG_UP = 499
"""The status under which a request is counted whose caller did not wait for it."""
_OPEN = ("/healthz", "/readyz", "/openapi.json")
"""What is answered without a key."""
_LINGER_S = 10.0
"""How long the rest of a body is read and thrown away that was refused."""

_SHORT_BODY = 2**16
"""Bytes of a body that there is always room for: who sends a long one keeps no short one out."""
_MOST_HELD = 2**28
"""Bytes of bodies beyond that which are not all there yet, together; what is read whole has one of
the places or is dropped."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server allows. Seconds: `head_s` for a request's head, and for a connection that is
    idle, `body_s` for a body, `write_s` for a piece of a reply to be taken, `drain_s` for requests
    in flight when the server is to stop. `rate` = requests a second of one key (0 = any number)."""

    in_flight: int = 256
    body_mb: float = 16.0
    rate: float = 0.0
    head_s: float = 20.0
    body_s: float = 30.0
    write_s: float = 60.0
    drain_s: float = 10.0


@dataclass(slots=True)
class Visit:
    """A request on its way: what is known of it so far."""

    id: str = field(default_factory=new_request_id)
    headers: dict[str, str] = field(default_factory=lambda: {})
    status: int = 0

    def __post_init__(self) -> None:
        self.headers["x-request-id"] = self.id


Answers = Callable[[web.Request, Visit], Awaitable[web.StreamResponse]]
"""What a path does with a request. Raises Refusal."""


class Door:
    """Lets requests in, a bounded number at a time."""

    def __init__(self, callers: Callers, limits: Limits) -> None:
        self.in_flight = 0
        self.limits = limits
        self._callers = callers
        self._rate = RateLimit(limits.rate)
        self._most_bytes = int(limits.body_mb * 2**20)
        self._held = 0
        places = min(limits.in_flight * self._most_bytes, _MOST_HELD)
        self._most_held = max(self._most_bytes, places)

    def runner(self, paths: Mapping[str, tuple[str, Answers]], metrics: Metrics) -> web.AppRunner:
        """The application, ready to be listened for."""
        application = web.Application()
        for path, (method, answer) in paths.items():
            guarded = self._guarded(path, method, answer, metrics)
            application.router.add_route("*", path, guarded)
        other = self._guarded("other", "", _nothing, metrics)
        application.router.add_route("*", "/{rest:.*}", other)
        quiet = logging.getLogger(f"{__name__}.http")
        quiet.disabled = True  # what it says of a malformed request quotes it
        return web.AppRunner(
            application,
            access_log=None,
            logger=quiet,
            handle_signals=False,
            handler_cancellation=True,
            keepalive_timeout=self.limits.head_s,
            shutdown_timeout=self.limits.drain_s,
            auto_decompress=False,
            lingering_time=_LINGER_S,
        )

    def _guarded(
        self, path: str, method: str, answer: Answers, metrics: Metrics
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """An endpoint: who may ask, what is counted, and the errors that its answer ends in."""

        async def endpoint(request: web.Request) -> web.StreamResponse:
            visit, begun, status = Visit(), time.perf_counter(), HUNG_UP
            try:
                response = await self._answered(request, visit, path, method, answer)
                status = response.status
                return response
            finally:
                metrics.answered(path, status, time.perf_counter() - begun)

        return endpoint

    async def _answered(
        self, request: web.Request, visit: Visit, path: str, method: str, answer: Answers
    ) -> web.StreamResponse:
        try:
            if path not in _OPEN:
                self._rate.take(self._callers.admit(request.headers))
            if method and request.method not in (method, _head_of(method)):
                raise _not_allowed(path, visit, method)
            return await answer(request, visit)
        except Refusal as refusal:
            return _refuse(refusal, visit)
        except ConnectionError:
            raise  # the caller is gone
        except Exception as error:
            # Its message may quote the request; what is told is its kind and its place.
            _log.error("a call to %s failed: %s", path, kind_and_place(error))
            return _refuse(Refusal("the server failed", status=500, kind="server_error"), visit)

    def _too_long(self) -> Refusal:
        text = f"the body is longer than {self._most_bytes / 2**20:g} MiB"
        return Refusal(text, status=413)

    async def read(self, request: web.Request) -> Mapping[str, Any]:
        """The body's object. Raises Refusal."""
        require_json(request.headers.get("content-type", ""))
        if (request.content_length or 0) > self._most_bytes:
            raise self._too_long()
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Refusal("the body must not be compressed", status=415)
        try:
            # A short body comes with its head, and needs no timer.
            wait_s = None if request.content.is_eof() else self.limits.body_s
            async with asyncio.timeout(wait_s):
                data = await self._body(request)
        except TimeoutError:
            text = f"the body did not come within {self.limits.body_s:g} s"
            raise Refusal(text, status=408) from None
        return parse_body(data)

    async def _body(self, request: web.Request) -> bytes:
        """All of a body. Raises Refusal when it is too long, or when there is no room for it."""
        parts: list[bytes] = []
        length = held = 0
        try:
            while piece := await request.content.readany():
                parts.append(piece)
                length += len(piece)
                if length > self._most_bytes:
                    raise self._too_long()
                more = max(0, length - _SHORT_BODY) - held
                if self._held + more > self._most_held:
                    text = "too many long bodies are under way"
                    raise Refusal(text, status=429, kind="rate_limit_exceeded", retry_after=1)
                self._held += more
                held += more
        finally:
            self._held -= held
        return b"".join(parts)

    @contextmanager
    def place(self) -> Generator[None]:
        """Room for a completion. Raises Refusal when there is none."""
        if self.in_flight >= self.limits.in_flight:
            text = f"{self.in_flight} completions are under way, and more may not wait"
            raise Refusal(text, status=429, kind="rate_limit_exceeded", retry_after=1)
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1


def _head_of(method: str) -> str:
    return "HEAD" if method == "GET" else method


def _not_allowed(path: str, visit: Visit, allowed: str) -> Refusal:
    visit.headers["Allow"] = "GET, HEAD" if allowed == "GET" else allowed
    return Refusal(f"{path} takes {allowed}", status=405, kind="method_not_allowed")


async def _nothing(request: web.Request, visit: Visit) -> web.StreamResponse:
    raise Refusal("nothing is at this address", status=404, kind="not_found")


def _refuse(refusal: Refusal, visit: Visit) -> web.Response:
    if refusal.retry_after is not None:
        visit.headers["Retry-After"] = f"{refusal.retry_after:g}"
    if refusal.status == 401:
        visit.headers["WWW-Authenticate"] = "Bearer"
    return json_response(error_body(refusal), visit, refusal.status)


def json_response(body: Mapping[str, Any], visit: Visit, status: int = 200) -> web.Response:
    data = json.dumps(body).encode("ascii")
    headers = {**visit.headers, "Cache-Control": "no-store"}
    return web.Response(body=data, status=status, content_type="application/json", headers=headers)
