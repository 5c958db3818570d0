"""One pooled HTTP session to one address: a reply read whole, or as it comes.

Redirects are not followed: the key goes nowhere else. Bodies are read up to a limit, counted after
decompression. What breaks on the way is one of the LMErrors.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp

from promptcodebook.incidents import Incident
from promptcodebook.lm.limit import PerLoop
from promptcodebook.lm.refusal import ModelAddress, fault_of
from promptcodebook.lm.spec import ApiKey
from promptcodebook.lm.wire import MOST_BYTES

# Servers close idle connections after 5 s or more; a POST on one just closed is a lost call.
_KEEPALIVE_S = 3.0
_CONNECT_S = 10.0
_MOST_ERROR_BYTES = 64_000

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response, read whole; of an error no more than its first 64 kB."""

    status: int
    data: bytes
    headers: Mapping[str, str]


class Transport:
    """Sends with the key in the header; what breaks on the way becomes an LMError.

    Close it in the loop that used it; a new loop opens a new session.
    """

    def __init__(
        self,
        base_url: str,
        key: ApiKey | None,
        timeout: float,
        headers: Mapping[str, str],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._proxy = _proxy(base_url)
        self._key = key
        self._timeout = timeout
        self._connect_s = min(_CONNECT_S, timeout)
        self._headers = dict(headers)
        self._most_bytes = most_bytes
        self._sessions: PerLoop[aiohttp.ClientSession] = PerLoop()

    async def close(self) -> None:
        """Closes the session of the loop that runs now."""
        session = self._sessions.forget()
        if session is not None:
            await session.close()

    async def send(
        self, method: str, url: str, where: ModelAddress, data: bytes | None = None
    ) -> HttpResponse:
        """One exchange; the url is at `where`, which is who an LMError is about."""
        return await self._guarded(where, self._exchange(method, url, data))

    async def open(self, url: str, where: ModelAddress, data: bytes) -> OpenReply:
        """A POST whose reply is read as it comes: its time runs anew with every piece."""
        limits = aiohttp.ClientTimeout(sock_connect=self._connect_s, sock_read=self._timeout)
        begun = await self._guarded(where, self._begin("POST", url, data, limits))
        return OpenReply(begun, partial(self._guarded, where), self._most_bytes)

    async def _exchange(self, method: str, url: str, data: bytes | None) -> HttpResponse:
        async with await self._begin(method, url, data) as response:
            return HttpResponse(response.status, await self._body(response), response.headers)

    async def _begin(
        self,
        method: str,
        url: str,
        data: bytes | None,
        limits: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        for stale in self._sessions.orphans():
            # Its loop has ended without closing it.
            await stale.close()
        session = self._sessions.here(self._open)
        return await session.request(
            method,
            url,
            data=data,
            allow_redirects=False,
            proxy=self._proxy,
            timeout=limits or session.timeout,
        )

    async def _guarded(self, where: ModelAddress, work: Awaitable[_T]) -> _T:
        """What the work comes to; what breaks on the way becomes an LMError."""
        try:
            return await work
        except _TooLarge:
            kind = Incident.MALFORMED_BODY
            detail = f"it is larger than max_reply_mb, {self._most_bytes / 1e6:g} MB"
        except aiohttp.ConnectionTimeoutError:
            kind, detail = Incident.REFUSED_CONNECTION, "no connection within its time"
        except TimeoutError:
            kind, detail = Incident.TIMEOUT, f"after {self._timeout:g} s"
        except aiohttp.ClientConnectorError as error:
            kind, detail = Incident.REFUSED_CONNECTION, error.strerror or type(error).__name__
        except aiohttp.InvalidURL:
            kind, detail = Incident.REFUSED_CONNECTION, "the address is malformed"
        except (aiohttp.ClientError, OSError) as error:
            kind, detail = Incident.DROPPED, type(error).__name__
        # Raised out here so that the library's error, which knows our headers, is not its context.
        raise fault_of(kind, where, detail)

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        """The body, counted while it comes in; what lies beyond its limit is never read."""
        whole = response.status == 200
        most = self._most_bytes if whole else _MOST_ERROR_BYTES
        parts: list[bytes] = []
        async for chunk in response.content.iter_any():
            parts.append(chunk)
            most -= len(chunk)
            if most < 0:
                response.close()
                if whole:
                    raise _TooLarge
                return b"".join(parts)[:most]
        return b"".join(parts)

    def _open(self) -> aiohttp.ClientSession:
        headers = {"Content-Type": "application/json", **self._headers}
        if self._key is not None:
            headers.update(self._key.headers())
        # Concurrency is the limit's business, not the pool's; no cookies, no netrc.
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=self._connect_s),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )


class OpenReply:
    """A reply that has begun: its status and headers, and its body for as long as it comes.

    Read it whole or in pieces, and `close` it. Raises the LMErrors of a reply that breaks off or is
    too large.
    """

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        guarded: Callable[[Awaitable[bytes]], Awaitable[bytes]],
        most_bytes: int,
    ) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._guarded = guarded
        self._left = most_bytes

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes."""
        while piece := await self._guarded(self._next()):
            yield piece

    async def _next(self) -> bytes:
        piece = await self._response.content.readany()
        self._left -= len(piece)
        if self._left < 0:
            raise _TooLarge
        return piece

    async def whole(self) -> bytes:
        """The rest of the body."""
        async with aclosing(self.pieces()) as pieces:
            return b"".join([piece async for piece in pieces])

    def close(self) -> None:
        """Gives the connection back, or hangs up where the reply is not over."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


class _TooLarge(Exception):
    """More bytes came than a reply may have."""


def _proxy(base_url: str) -> str | None:
    """The environment's proxy for this address; never for this very machine."""
    # urllib.request is slow to import and needed only where there is an endpoint.
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(base_url)
    host = parts.hostname or ""
    if host in ("localhost", "127.0.0.1", "::1"):
        return None
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
