"""One pooled HTTP session to one address: it reads a reply whole or in pieces.

It follows no redirects, so the key reaches no other host. It reads bodies up to a limit, counted
after decompression. Every failure becomes an LMError, and none of them ever quotes the key.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import aiohttp

from promptcodebook.calls import Request
from promptcodebook.errors import (
    AuthRefused,
    CallTimeout,
    EndpointDown,
    LMError,
    ModelNotFound,
    NoCredit,
    RateLimited,
    RequestRefused,
    ServerFault,
    did_you_mean,
)
from promptcodebook.incidents import Incident
from promptcodebook.lm.limit import PerLoop
from promptcodebook.lm.spec import ApiKey
from promptcodebook.lm.wire import MOST_BYTES

_QUOTED = 300
# It came too late or too early, or met another one: said of this moment, not of the request.
_PASSING = (408, 409, 425)
# What servers call an account that is empty or closed, most of them in a 429.
_NO_CREDIT = (
    "insufficient_quota",
    "insufficient_balance",
    "insufficient_credits",
    "billing_hard_limit_reached",
    "billing_not_active",
    "credit_balance_too_low",
)
_NO_CREDIT_SAID = ("insufficient balance", "credit balance is too low", "insufficient credits")
_LOOK = "look at the server's own log"
_FAULTS: Mapping[Incident, tuple[type[LMError], str, str]] = {
    Incident.REFUSED_CONNECTION: (
        EndpointDown,
        "nothing answers at {at}",
        "start the server, or correct its address: {doctor}",
    ),
    Incident.TIMEOUT: (
        CallTimeout,
        "{at} did not answer in time",
        "raise timeout in pco.toml, or lower concurrency",
    ),
    Incident.DROPPED: (ServerFault, "{at} broke the connection in the middle of a call", _LOOK),
    Incident.MALFORMED_BODY: (ServerFault, "{at} sent a body that is not a chat completion", _LOOK),
}


@dataclass(frozen=True, slots=True)
class ModelAddress:
    """What errors are about: the endpoint, the model asked for, the key if one was sent.

    `private` = what is sent there is real people's, and servers like to quote what they refuse.
    """

    base_url: str
    model: str
    key: ApiKey | None = None
    key_names: tuple[str, ...] = ()
    private: bool = False

    @property
    def doctor(self) -> str:
        return f"pco doctor --lm {self.base_url}" + (f"#{self.model}" if self.model else "")

    def clean(self, text: str) -> str:
        """A server's words, short and without our key; none where they may quote private data."""
        if self.private:
            return f"withheld, since the data are private: {len(text)} characters" if text else ""
        flat = " ".join(text.split())
        scrubbed = self.key.scrub(flat) if self.key is not None else flat
        return scrubbed if len(scrubbed) <= _QUOTED else scrubbed[:_QUOTED] + "…"


def refusal_of(status: int, body: ErrorBody, where: ModelAddress, wait: float = 0.0) -> LMError:
    """The error for an HTTP status that is not 200; `wait` = the Retry-After in seconds."""
    quote = where.clean(body.message)
    quoted = f": {quote}" if quote else ""
    what = f"{where.base_url} answered {status}{quoted}"
    kind: type[LMError] = RequestRefused
    if _is_empty(status, body):
        kind, what = NoCredit, f"the account at {where.base_url} has no credit left{quoted}"
        other = f", or put another key into {where.key.name}" if where.key is not None else ""
        hint = f"top up the account{other}; then continue from here"
    elif status in (429, 503):
        kind, hint = RateLimited, "lower concurrency in pco.toml, or wait"
    elif status >= 500 or status in _PASSING:
        kind, hint = ServerFault, _LOOK
    elif status in (401, 403):
        kind, hint = AuthRefused, _key_hint(where)
    elif 300 <= status < 400:
        what = f"{where.base_url} redirects elsewhere; the key is not sent there"
        hint = "name the final address in --lm"
    elif status == 413:
        hint = "the request is too large for this server"
    elif status in (404, 405):
        hint = f"does the address end where the API begins (often /v1)? {where.doctor}"
    else:
        hint = f"{where.doctor} shows what this endpoint accepts"
    error = kind(what, hint=hint, model=where.model)
    error.retry_after = wait
    if kind is RateLimited and status == 503:
        error.incident = Incident.UNAVAILABLE
    elif kind is ServerFault:
        error.lost = status >= 500
    return error


def _is_empty(status: int, body: ErrorBody) -> bool:
    if status == 402 or any(code in (body.code, body.kind) for code in _NO_CREDIT):
        return True
    low = body.message.lower()
    return status in (400, 403, 429) and any(said in low for said in _NO_CREDIT_SAID)


def _key_hint(where: ModelAddress) -> str:
    if where.key is not None:
        return f"the key in {where.key.name} was refused: set another one"
    if not where.key_names:
        return "set the variable in which this provider's key is looked for"
    return f"no key was sent: export {' or '.join(where.key_names)}=..."


def no_embeddings(what: str, request: Request) -> RequestRefused:
    """The error where embeddings were asked for and there are none; says what to set instead."""
    return RequestRefused(
        what,
        hint="router.features = 'words', or name a model that does in roles.encoder.model",
        role=request.role,
        model=request.model,
    )


def missing_model(where: ModelAddress, known: Sequence[str]) -> ModelNotFound:
    """The error for a model that the endpoint does not know; lists what it does know."""
    name = where.model or "(none named)"
    listed = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    return ModelNotFound(
        f"{where.base_url} does not know the model {name!r}{did_you_mean(name, known)}",
        hint=f"name one that it lists: {listed}" if listed else where.doctor,
        model=where.model,
    )


def fault_of(incident: Incident, where: ModelAddress, detail: str = "") -> LMError:
    """The error for a call without a usable HTTP answer.

    `incident` is REFUSED_CONNECTION, TIMEOUT, DROPPED or MALFORMED_BODY.
    """
    kind, what, hint = _FAULTS[incident]
    about = f" ({replace(where, private=False).clean(detail)})" if detail else ""  # our words
    what = what.replace("{at}", where.base_url) + about
    error = kind(what, hint=hint.replace("{doctor}", where.doctor), model=where.model)
    error.incident = incident
    return error


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """An error body's message, the parameter it points at, its code and type ('' = none)."""

    message: str = ""
    param: str = ""
    code: str = ""
    kind: str = ""

    @property
    def all(self) -> str:
        return f"{self.message} {self.code}"


def read_error_body(data: bytes) -> ErrorBody:
    """The error in a body, in any of the shapes that servers use; else the body as text."""
    text = data[:20_000].decode("utf-8", "replace")
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return ErrorBody(text)
    if not isinstance(tree, dict):
        return ErrorBody(text)
    fields = cast("dict[str, Any]", tree)
    error = fields.get("error", fields)
    if not isinstance(error, dict):
        return ErrorBody(str(error))
    inner = cast("dict[str, Any]", error)
    message = inner.get("message") or _detail(inner.get("detail")) or text
    param, code, kind = (str(inner.get(name) or "") for name in ("param", "code", "type"))
    return ErrorBody(str(message), param, code, kind)


def _detail(detail: object) -> str:
    if not isinstance(detail, list):
        return str(detail) if detail else ""
    faults: list[str] = []
    for each in cast("list[object]", detail):
        if isinstance(each, dict):
            fault = cast("dict[str, Any]", each)
            loc = fault.get("loc", [])
            parts = cast("list[object]", loc) if isinstance(loc, list) else [loc]
            where = ".".join(str(part) for part in parts)
            faults.append(f"{where}: {fault.get('msg', '')}")
    return "; ".join(faults)


def read_retry_after(value: str | None, now: float | None = None) -> float:
    """Seconds from a Retry-After header, which is a number or a date; 0 = none or unreadable."""
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
            # '-0000' and no zone at all mean UTC, not the zone of this machine.
            at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
            seconds = at.timestamp() - (time.time() if now is None else now)
        except (ValueError, TypeError, OverflowError, IndexError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


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
    """Sends with the key in the header. Each loop has its session: close it in that loop."""

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
        """One exchange; an LMError is about `where`."""

        async def exchange() -> HttpResponse:
            async with await self._begin(method, url, data) as response:
                return HttpResponse(response.status, await self._body(response), response.headers)

        return await self._guarded(where, exchange())

    async def open(self, url: str, where: ModelAddress, data: bytes) -> OpenReply:
        """A POST whose reply is read in pieces; the timeout restarts with every piece."""
        limits = aiohttp.ClientTimeout(sock_connect=self._connect_s, sock_read=self._timeout)
        begun = await self._guarded(where, self._begin("POST", url, data, limits))
        return OpenReply(begun, partial(self._guarded, where), self._most_bytes)

    async def _begin(
        self, method: str, url: str, data: bytes | None, limits: aiohttp.ClientTimeout | None = None
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
        """The body, counted while it arrives; nothing beyond its limit is read."""
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
    """A reply that has begun: read its body whole or in pieces, and `close` it.

    Raises the LMErrors of a reply that breaks off or is too large.
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

        async def next_piece() -> bytes:
            piece = await self._response.content.readany()
            self._left -= len(piece)
            if self._left < 0:
                raise _TooLarge
            return piece

        while piece := await self._guarded(next_piece()):
            yield piece

    async def whole(self) -> bytes:
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
