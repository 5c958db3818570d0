"""One HTTP response as the ASGI events it is sent in, and a request whose caller may hang up.

Of the web framework only the request's `receive` and `headers` are used.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from promptcodebook.serve.completions import Refusal, error_body, require_json

_LONGEST_BODY = 16 * 2**20
"""Bytes."""

_T = TypeVar("_T")

Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class HungUp(Exception):
    """Nobody waits for the answer any more."""


class Response:
    """One response as it is sent; `status` 0 = nothing has been sent yet."""

    def __init__(self, send: Send) -> None:
        self.status = 0
        self._send = send
        self._is_stream = False

    async def json(
        self, body: Mapping[str, object], status: int = 200, retry_after: float | None = None
    ) -> None:
        await self.begin("application/json", status, retry_after)
        await self.end(json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"))

    async def refuse(self, refusal: Refusal) -> None:
        """An error body; in the midst of a stream, an event with it and the end."""
        if not self.status:
            await self.json(error_body(refusal), refusal.status, refusal.retry_after)
        elif self._is_stream:
            await self.end(_event(error_body(refusal)))

    async def begin(self, kind: str, status: int = 200, retry_after: float | None = None) -> None:
        headers = {"content-type": kind, "cache-control": "no-store"}
        if retry_after is not None:
            headers["retry-after"] = f"{retry_after:g}"
        if status == 401:
            headers["www-authenticate"] = "Bearer"
        self.status, self._is_stream = status, kind == "text/event-stream"
        pairs = [(name.encode(), text.encode()) for name, text in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def events(self, *bodies: Mapping[str, Any]) -> None:
        data = b"".join(map(_event, bodies))
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": False})


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


async def read_body(request: Any) -> bytes:
    """The whole body. Raises Refusal when it is too long or not said to be JSON, HungUp when it
    breaks off."""
    require_json(request.headers.get("content-type", ""))
    too_long = Refusal("the body is longer than 16 MiB", status=413)
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > _LONGEST_BODY:
        raise too_long
    parts: list[bytes] = []
    length = 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise HungUp
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if length > _LONGEST_BODY:
            raise too_long
        more = message.get("more_body", False)
    return b"".join(parts)


async def while_wanted(request: Any, work: Coroutine[Any, Any, _T]) -> _T:
    """What the work comes to. It is cancelled, and HungUp raised, when the caller hangs up."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HungUp
        return working.result()
    finally:
        left = [task for task in (working, gone) if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)


async def _gone(request: Any) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
