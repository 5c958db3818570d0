"""Models elsewhere: behind a chat-completions address, or a provider's library that speaks so. The
session follows no redirects, so the key reaches no other host, and reads bodies up to a limit.
Every failure becomes an LMError, and none of them ever quotes the key."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import aiohttp

from promptcodebook.base.incidents import Incident
from promptcodebook.base.text import LENIENT_JSON, parse_json
from promptcodebook.calls import LM, Reply, Request
from promptcodebook.config.providers import providers
from promptcodebook.errors import ConfigError, LMError, RequestRefused, ServerFault, import_part
from promptcodebook.lm import wire
from promptcodebook.lm.limit import PerLoop
from promptcodebook.lm.quirks import FormSearch, KnownForms, Quirks, kind_of, request_body
from promptcodebook.lm.spec import MODELS, Credentials, Spec
from promptcodebook.lm.wire import MOST_BYTES, Malformed, ModelAddress, fault_of

_log = logging.getLogger(__name__)
# Servers close idle connections after 5 s or more; a POST on one just closed is a lost call.
_KEEPALIVE_S = 3.0
_CONNECT_S = 10.0
_MOST_ERROR_BYTES = 64_000

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class OpenReply:
    """A reply that has begun; reading it raises LMError where it breaks off or is too large."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncGenerator[bytes, None]
    close: Callable[[], None] = lambda: None

    async def whole(self) -> bytes:
        async with aclosing(self.pieces) as pieces:
            return b"".join([piece async for piece in pieces])


class Transport(Protocol):
    """Takes chat-completions bodies to a model. An LMError, for what has no status, is about
    `where`. Each loop has its connections: close them in that loop."""

    async def send(
        self, method: str, url: str, where: ModelAddress, data: bytes | None = None
    ) -> tuple[int, bytes, Mapping[str, str]]: ...

    async def open(self, url: str, where: ModelAddress, data: bytes) -> OpenReply: ...

    async def close(self) -> None: ...


def transport_to(
    spec: Spec, access: Credentials, timeout: float, most_bytes: int = MOST_BYTES
) -> Transport:
    """By HTTP, or through the provider's library. Raises MissingExtra where that is missing."""
    if spec.kind != "provider":
        return HttpTransport(spec.base_url, access, timeout, most_bytes)
    made = import_part(MODELS, spec.provider, f"the model {spec.text}", spec.provider)
    return made(spec, access, timeout)


class HttpTransport:
    """Sends with the key in the header."""

    def __init__(
        self, base_url: str, access: Credentials, timeout: float, most_bytes: int = MOST_BYTES
    ) -> None:
        self._proxy = _proxy(base_url)
        self._access = access
        self._timeout = timeout
        self._connect_s = min(_CONNECT_S, timeout)
        self._most_bytes = most_bytes
        self._apart = False  # whether each streamed reply has a connection of its own
        self._sessions: PerLoop[aiohttp.ClientSession] = PerLoop()

    async def close(self) -> None:
        """Closes the session of the loop that runs now."""
        if (session := self._sessions.forget()) is not None:
            await session.close()

    async def send(
        self, method: str, url: str, where: ModelAddress, data: bytes | None = None
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Status, body and headers; of an error's body 64 kB. An LMError is about `where`."""

        async def exchange() -> tuple[int, bytes, Mapping[str, str]]:
            async with await self._begin(method, url, data) as response:
                return response.status, await self._body(response, where), response.headers

        return await self._guarded(where, exchange())

    async def open(self, url: str, where: ModelAddress, data: bytes) -> OpenReply:
        """A POST whose reply is read in pieces; the timeout restarts with every piece."""
        limits = aiohttp.ClientTimeout(sock_connect=self._connect_s, sock_read=self._timeout)
        try:
            begun = await self._guarded(where, self._begin("POST", url, data, limits))
        except LMError as error:
            # llama.cpp's server closes a connection behind each stream, unannounced: the next
            # request on it may have been read, so it fails, and later ones have their own.
            self._apart = self._apart or error.incident is Incident.DROPPED
            raise

        async def pieces() -> AsyncGenerator[bytes, None]:
            left = self._most_bytes
            while piece := await self._guarded(where, begun.content.readany()):
                if (left := left - len(piece)) < 0:
                    raise self._too_large(where)
                yield piece

        def close() -> None:  # hangs up where the reply is not over
            begun.release() if begun.content.at_eof() else begun.close()

        return OpenReply(begun.status, begun.headers, pieces(), close)

    async def _begin(
        self, method: str, url: str, data: bytes | None, limits: aiohttp.ClientTimeout | None = None
    ) -> aiohttp.ClientResponse:
        def open_session() -> aiohttp.ClientSession:
            # Concurrency is the limit's business, not the pool's; no cookies, no netrc.
            return aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
                timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=self._connect_s),
                headers={"Content-Type": "application/json", **self._access.all_headers()},
                cookie_jar=aiohttp.DummyCookieJar(),
            )

        for stale in self._sessions.orphans():  # whose loop has ended without closing it
            await stale.close()
        session = self._sessions.here(open_session)
        # aiohttp warns of more than a mebibyte at once, and writes a stream in pieces.
        return await session.request(
            method,
            url,
            data=BytesIO(data) if data and len(data) > 2**20 else data,
            allow_redirects=False,
            proxy=self._proxy,
            timeout=limits or session.timeout,
            headers={"Connection": "close"} if limits and self._apart else None,
        )

    async def _guarded(self, where: ModelAddress, work: Awaitable[_T]) -> _T:
        """What the work comes to; what breaks on the way becomes an LMError."""
        try:
            return await work
        except aiohttp.ConnectionTimeoutError:
            kind, detail = Incident.REFUSED_CONNECTION, "no connection within the timeout"
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

    def _too_large(self, where: ModelAddress) -> LMError:
        detail = f"it is larger than max_reply_mb, {self._most_bytes / 1e6:g} MB"
        return fault_of(Incident.MALFORMED_BODY, where, detail)

    async def _body(self, response: aiohttp.ClientResponse, where: ModelAddress) -> bytes:
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
                    raise self._too_large(where)
                return b"".join(parts)[:most]
        return b"".join(parts)


def _proxy(base_url: str) -> str | None:
    """The environment's proxy for this address; never for this very machine."""
    # urllib.request is slow to import and needed only where there is an endpoint.
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(base_url)
    if parts.hostname in ("localhost", "127.0.0.1", "::1") or proxy_bypass(parts.netloc):
        return None
    return getproxies().get(parts.scheme)


_NO_SUCH_PLACE, _NO_SUCH_FORM = (404, 405, 501), (400, 415, 422)
_MOST_MODELS = 2000
_LONGEST_NAME = 200
_AHEAD_S = 1.0  # what a refusal takes at most, as a rule; a reply may take minutes
_QUICK_BYTES = 200_000  # longer bodies are parsed in a thread, so that other calls continue


class Endpoint:
    """An LM elsewhere. Raises the LMErrors of errors.py. It retries nothing but a request that may
    be refused for one of its optional fields: in other forms of it (`lm/quirks.py`), of which it
    keeps what was accepted. `around` is put around every single request, refused ones included."""

    def __init__(
        self,
        spec: Spec,
        access: Credentials,
        timeout: float = 120.0,
        most_bytes: int = MOST_BYTES,
        private: bool = False,
        around: Callable[[LM], LM] = lambda lm: lm,
        forms: dict[str, KnownForms] | None = None,
    ) -> None:
        self._around = around
        names = access.names or spec.key_names
        at = spec.base_url or spec.text
        self._where = ModelAddress(at, spec.model, access.key, names, private, spec.text)
        fresh = KnownForms(Quirks.of_provider(spec.provider))
        self._known = fresh if forms is None else forms.setdefault(spec.text, fresh)
        self._learning = PerLoop[asyncio.Lock]()
        self._tried = set[Hashable]()
        self._firsts = PerLoop[dict[Hashable, asyncio.Event]]()
        self._listed_as = providers()["providers"].get(spec.provider, {}).get("listed_as", "")
        self._transport = transport_to(spec, access, timeout, most_bytes)

    @property
    def model(self) -> str:
        """The model's name at the endpoint; '' until an unnamed one was asked for."""
        return self._where.model

    async def __call__(self, request: Request) -> Reply:
        await self.named_model()
        if (kind := kind_of(request)) in self._tried:
            return await self._ask(request)
        # One call of each kind goes ahead: what it is refused need not be refused to all of them.
        firsts = self._firsts.here(dict[Hashable, asyncio.Event])
        ahead = [firsts[kind]] if kind in firsts else list(firsts.values())
        own = firsts.setdefault(kind, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(_AHEAD_S):
                for each in ahead:
                    await each.wait()
        try:
            return await self._ask(request)
        finally:
            self._tried.add(kind)
            own.set()

    async def _ask(self, request: Request) -> Reply:
        while True:
            search = FormSearch(before := self._known.quirks)
            try:
                return await self._around(partial(self._send, search))(request)
            except LMError as error:
                if not search.words:
                    raise
                refusal = error
            async with self._learning.here(asyncio.Lock):
                # Where another call has learned something meanwhile, that may be enough.
                if self._known.quirks is before or self._known.knows(search):
                    return await self._search(request, search, refusal)

    async def _search(self, request: Request, search: FormSearch, refusal: LMError) -> Reply:
        """The reply to another form of what was refused, and that form from now on."""
        while self._known.another(search):
            named = bool(search.named)
            try:
                reply = await self._around(partial(self._send, search))(request)
            except LMError as error:
                if not search.words:
                    raise
                # Without a field that nothing named, a server may object to just that.
                refusal = error if named else refusal
            else:
                self._known.keep(search)
                return reply
        if not request.embeds:  # that error has a hint of its own
            search.explain(refusal, self._where)
        raise refusal

    async def named_model(self) -> str:
        """The model that the spec names, else the only one of the endpoint. Raises ConfigError
        where it serves none or several."""
        if not self._where.model:
            known = await self.models()
            if len(known) != 1:
                listed = ", ".join(known[:12]) or "none"
                message = f"{self._where.base_url} serves {len(known)} models; the spec names none"
                raise ConfigError(message, hint=f"add #MODEL to the spec; models: {listed}")
            self._where = replace(self._where, model=known[0])
        return self._where.model

    async def _send(self, search: FormSearch, request: Request) -> Reply:
        """One request, in the search's form, which takes note where that may be refused."""
        search.words = ""
        body, dropped = request_body(request, self._where.model, search.quirks)
        begun = time.perf_counter()
        where = "embeddings" if request.embeds else "chat/completions"
        # ASCII escapes: half of a surrogate pair is legal in a string and not in UTF-8.
        data = json.dumps(body, separators=(",", ":")).encode("ascii")
        url = f"{self._where.base_url}/{where}"
        status, answer, headers = await self._transport.send("POST", url, self._where, data)
        if status == 200:
            try:
                reply = await self._read(answer, request, time.perf_counter() - begun)
                return replace(reply, dropped=tuple(dropped)) if dropped else reply
            except Malformed as misfit:
                error = wire.read_misfit(answer, str(misfit))
                status = error.status or status
        else:
            error = wire.read_error_body(answer)
        refusal = await self._refusal(status, error, request)
        wait = wire.read_retry_after(headers)
        refusal.retry_after = wait or refusal.retry_after
        if type(refusal) in (RequestRefused, ServerFault):
            search.refused(body, status, error)
        raise refusal

    async def _read(self, data: bytes, request: Request, seconds: float) -> Reply:
        """Raises Malformed."""
        read = partial(wire.read_reply, data, request, seconds)
        reply = read() if len(data) <= _QUICK_BYTES else await asyncio.to_thread(read)
        # A server that echoes what it was sent must not bring the key into journal and report.
        return wire.scrubbed(reply, self._where.scrub)

    async def _refusal(self, status: int, body: wire.ErrorBody, request: Request) -> LMError:
        names_model = "model" in body.all.lower()
        if request.embeds and status in _NO_SUCH_PLACE and not names_model:
            what = f"{self._where.base_url} offers no embeddings (HTTP {status})"
            return wire.no_embeddings(what, replace(request, model=self._where.model))
        if body.code == "model_not_found" or (status == 404 and names_model):
            try:
                known = await self.models()
            except LMError:
                known = ()
            error: LMError = wire.missing_model(self._where, known)
        else:
            error = wire.refusal_of(status, body, self._where)
            images = request.embeds and bool(request.messages[0].media)
            if images and status in _NO_SUCH_FORM and isinstance(error, RequestRefused):
                error.hint = wire.no_embeddings("", request).hint
        error.role = request.role
        return error

    async def models(self) -> tuple[str, ...]:
        """What GET /models lists. Raises LMError where there is no such list."""
        url = f"{self._where.base_url}/models"
        status, answer, _ = await self._transport.send("GET", url, self._where)
        if status != 200:
            raise wire.refusal_of(status, wire.read_error_body(answer), self._where)
        try:
            listed = parse_json(answer, LENIENT_JSON)["data"]
            # Errors quote them: they are cut, and do not hold our key.
            names = (self._where.scrub(str(each["id"])) for each in listed[:_MOST_MODELS])
            return tuple(name.removeprefix(self._listed_as)[:_LONGEST_NAME] for name in names)
        except (ValueError, KeyError, TypeError):
            raise fault_of(Incident.MALFORMED_BODY, self._where) from None

    async def count_tokens(self, text: str) -> int | None:
        """The text's length by the model's own tokenizer; None where the server offers none."""
        url = f"{self._where.base_url.removesuffix('/v1')}/tokenize"
        # One server reads `prompt` and answers with a count, another `content` and all tokens.
        body = {"model": self._where.model, "prompt": text, "content": text}
        data = json.dumps(body).encode("ascii")
        try:
            status, answer, _ = await self._transport.send("POST", url, self._where, data)
            tree = parse_json(answer, LENIENT_JSON)
            count = tree["count"] if "count" in tree else len(tree["tokens"])
        except (LMError, ValueError, KeyError, TypeError):
            return None
        return count if status == 200 and isinstance(count, int) else None

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
