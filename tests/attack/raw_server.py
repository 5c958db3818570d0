"""A server that says whatever bytes an attack wants, on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any

Attack = Callable[[bytes], AsyncIterator[bytes]]
"""From the request's head to the pieces to send; after the last one the connection is closed."""


def completion(text: object, **choice: object) -> bytes:
    """The JSON of a chat completion."""
    said = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop", **choice}
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    return json.dumps({"choices": [said], "usage": usage}).encode()


def http(body: bytes, *headers: str, status: str = "200 OK", length: int | None = -1) -> bytes:
    """A whole response; `length` None leaves Content-Length out, another one lies."""
    size = [] if length is None else [f"Content-Length: {len(body) if length < 0 else length}"]
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", *size, *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def at_once(*pieces: bytes) -> Attack:
    """Sends the pieces and hangs up."""

    async def attack(head: bytes) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return attack


def for_ever(first: bytes, piece: bytes, pause: float = 0.0) -> Attack:
    """Sends `first` and then the same piece again and again, as long as anybody listens."""

    async def attack(head: bytes) -> AsyncIterator[bytes]:
        yield first
        while True:
            yield piece
            await asyncio.sleep(pause)

    return attack


def silent(first: bytes) -> Attack:
    """Sends `first` and then nothing, without hanging up."""

    async def attack(head: bytes) -> AsyncIterator[bytes]:
        yield first
        await asyncio.sleep(3600)

    return attack


class RawServer:
    """Answers every request with `attack`; counts requests."""

    def __init__(self, attack: Attack) -> None:
        self.attack = attack
        self.requests = 0
        self.bodies: list[dict[str, Any]] = []
        self.spec = ""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> RawServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.spec = f"http://127.0.0.1:{port}/v1#m"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            )
            self.bodies.append(json.loads(await reader.readexactly(size)))
            self.requests += 1
            async for piece in self.attack(head):
                writer.write(piece)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError, StopIteration):
            pass
        finally:
            writer.close()
