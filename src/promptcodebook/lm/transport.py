"""One pooled HTTP session to one endpoint, opened in the loop that first uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from promptcodebook.lm.key import Key
from promptcodebook.lm.per_loop import PerLoop
from promptcodebook.lm.refusal import Address, broken

__all__ = ["Answered", "Transport"]

# Servers close idle connections after 5 s or more; a POST on one just closed is a lost call.
_KEEPALIVE_S = 3.0
_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class Answered:
    """An HTTP response, read whole."""

    status: int
    data: bytes
    headers: Mapping[str, str]


class Transport:
    """Sends with the key in the header; what breaks on the way becomes an LMError.

    Close it in the loop that used it; a new loop opens a new session.
    """

    def __init__(
        self, base_url: str, key: Key | None, timeout: float, headers: Mapping[str, str]
    ) -> None:
        self._proxy = _proxy(base_url)
        self._key = key
        self._timeout = timeout
        self._headers = dict(headers)
        self._sessions: PerLoop[aiohttp.ClientSession] = PerLoop()

    async def close(self) -> None:
        """Closes the session of the loop that runs now."""
        session = self._sessions.forget()
        if session is not None:
            await session.close()

    async def send(
        self, method: str, url: str, where: Address, data: bytes | None = None
    ) -> Answered:
        """One exchange; the url is at `where`, which is who an LMError is about."""
        for stale in self._sessions.orphans():
            # Its loop has ended without closing it.
            await stale.close()
        session = self._sessions.here(self._open)
        try:
            async with session.request(
                method, url, data=data, allow_redirects=False, proxy=self._proxy
            ) as response:
                return Answered(response.status, await response.read(), response.headers)
        except aiohttp.ConnectionTimeoutError:
            kind, detail = "refused_connection", "no connection within its time"
        except TimeoutError:
            kind, detail = "timeout", f"after {self._timeout:g} s"
        except aiohttp.ClientConnectorError as error:
            kind, detail = "refused_connection", error.strerror or type(error).__name__
        except aiohttp.InvalidURL:
            kind, detail = "refused_connection", "the address is malformed"
        except (aiohttp.ClientError, OSError) as error:
            kind, detail = "dropped", type(error).__name__
        # Raised out here so that the library's error, which knows our headers, is not its context.
        raise broken(kind, where, detail)

    def _open(self) -> aiohttp.ClientSession:
        headers = {"Content-Type": "application/json", **self._headers}
        if self._key is not None:
            headers[self._key.header] = self._key.sent()
        # Concurrency is the limit's business, not the pool's; no cookies, no netrc.
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(
                total=self._timeout, sock_connect=min(_CONNECT_S, self._timeout)
            ),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )


def _proxy(base_url: str) -> str | None:
    """The environment's proxy for this address; never for this very machine."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(base_url)
    host = parts.hostname or ""
    if host in ("localhost", "127.0.0.1", "::1"):
        return None
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
