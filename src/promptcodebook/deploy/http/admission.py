"""Who may ask a server on aiohttp, how often and how much, what an error becomes, and what the
server counts and logs. No count and no log quotes a request, nor an error that could quote it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import math
import os
import socket
import stat
import sys
import time
import traceback
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from aiohttp import web

from promptcodebook.base.paths import read_text
from promptcodebook.base.text import shell
from promptcodebook.calls import Role, Usage
from promptcodebook.config import Budget
from promptcodebook.config.loading import parse_budget
from promptcodebook.deploy.http.completions import Refusal, error_body, parse_body
from promptcodebook.deploy.online.served_log import Arm, new_request_id
from promptcodebook.errors import ConfigError, PcoError, import_extra

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_LEAST_KEY = 8  # Characters of a key, at the least.
_NAME = 12  # Digits of a key's digest that its caller is called by.
HUNG_UP = 499  # The status under which a request is counted whose caller did not wait for it.
_OPEN = ("/healthz", "/health", "/readyz")  # What is answered without a key.
_LINGER_S = 10.0  # How long the rest of a body is read and thrown away that was refused.
_SHORT_BODY = 2**16  # Bytes of a body that there is always room for.
_MOST_HELD = 2**28  # Bytes of all bodies that are being read, beyond the short part of each.
_LONG_BODY = 2**20  # Bytes of a body that is read and written in a thread.
_AT_ONCE = 16  # Connections accepted in one turn of the loop: those too many close in the next.
_QUEUE = 1024  # Connections that wait in the system to be accepted.
_MOST_CONNECTIONS = 10_000
_OTHER_HANDLES = 128  # Neither a connection nor a call to a model: files, what is just closing.
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)  # cuts of the histogram


def is_loopback(host: str) -> bool:
    if host.rstrip(".").casefold() == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False


def require_keys(keys: Iterable[str], host: str, command: str) -> None:
    """Raises ConfigError where anybody on the network could ask without a key, or guess one."""
    keys = [_checked(key, "what is in PCO_SERVE_KEY or --key") for key in keys if key]
    if not keys and not is_loopback(host):
        hint = f"export PCO_SERVE_KEY=$(openssl rand -hex 24); echo $PCO_SERVE_KEY; {command}"
        message = f"{host} can be reached from other machines, and no key is set"
        raise ConfigError(message, hint=hint)


def read_keys(given: str, path: Path | None) -> dict[str, Budget | None]:
    """The keys of the environment, parted by commas, and those of a file, one a line, each with the
    daily budget behind it; # begins a note. Raises ConfigError, which quotes none."""
    known = filter(None, map(str.strip, given.split(",")))
    keys: dict[str, Budget | None] = dict.fromkeys(known)
    if path is None:
        return keys
    try:
        lines = read_text(path).splitlines()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        hint = "write one key per line: openssl rand -hex 24"
        raise ConfigError(f"cannot read the keys in {path}: {reason}", hint=hint) from None
    if mode & stat.S_IWOTH and os.name != "nt":
        message = f"other users can write to {path} and could let anyone in"
        raise ConfigError(message, hint=f"chmod 600 {shell(path)}")
    own = [(number, line.partition("#")[0].split(None, 1)) for number, line in enumerate(lines, 1)]
    if not any(words for _, words in own):
        raise ConfigError(f"{path} contains no key", hint="openssl rand -hex 24")
    for number, (key, *budget) in filter(lambda each: each[1], own):
        where = f"{path}:{number}"
        keys[_checked(key, where)] = daily_budget(budget[0], where) if budget else keys.get(key)
    return keys


def _checked(key: str, where: str) -> str:
    if len(key) < _LEAST_KEY or not key.isascii() or " " in key:
        must = f"it must have at least {_LEAST_KEY} characters and no spaces"
        raise ConfigError(f"{where} is not a key: {must}", hint="openssl rand -hex 24")
    return key


def daily_budget(text: str, where: str) -> Budget:
    """What a key may spend a day. Raises ConfigError, which quotes no key."""
    with suppress(ConfigError):
        budget = parse_budget(text)
        if budget.seconds is None:
            return budget
    hint = "write e.g. 1000calls, 2Mtok, 5usd, or several joined by '+'"
    raise ConfigError(f"{where}: the daily budget cannot be read", hint=hint)


def budgets_of(keys: Mapping[str, Budget | None], for_each: str) -> dict[str, Budget]:
    """What callers may spend a day, by name; without keys all share the one `for_each`."""
    rest = daily_budget(for_each, "serve.daily_budget") if for_each else None
    found = {caller_of(key): own or rest for key, own in keys.items()} or {"": rest}
    return {caller: budget for caller, budget in found.items() if budget is not None}


def caller_of(key: str) -> str:
    """The name of who sends this key: the start of its digest."""
    return _digest(key)[:_NAME]


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class Callers:
    """Who may ask: those with one of the keys, or without any key this machine."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys if key]
        self.several = len(self._digests) > 1

    def admit(self, headers: Mapping[str, str]) -> str:
        """The caller's name, '' where there are no keys. Raises Refusal for a wrong key; without
        keys, for a page of another site (by DNS rebinding, or what browsers let any page send)."""
        if self._digests:
            given = _digest(headers.get("authorization", "").removeprefix("Bearer ").strip())
            # All digests each time, and of one length: the answer's time reveals nothing.
            if any([hmac.compare_digest(given, each) for each in self._digests]):
                return given[:_NAME]
            text = "the key is missing or wrong: Authorization: Bearer KEY"
            raise Refusal(text, status=401, kind="invalid_api_key")
        if not names_this_machine(f"//{headers.get('host', '')}"):
            text = "without a key, this server accepts only requests to localhost"
            raise Refusal(text, status=403, kind="forbidden")
        # A browser sets both itself, whatever a page says; other programs leave them out.
        site, origin = headers.get("sec-fetch-site", ""), headers.get("origin")
        elsewhere = origin is not None and not names_this_machine(origin)
        if elsewhere or site.casefold() == "cross-site":
            text = "another site's page needs a key: start the server with PCO_SERVE_KEY set"
            raise Refusal(text, status=403, kind="forbidden")
        return ""


@lru_cache(maxsize=64)  # callers name the same host again and again
def names_this_machine(url: str) -> bool:
    """Whether the host of an address, such as //localhost:8080, is loopback."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """`rate` = requests a second of one key (0 = any number). Seconds: `head_s` for a request's
    head and an idle connection, `body_s` for a body, `write_s` for a piece of a reply to be taken,
    `drain_s` for requests in flight when the server stops."""

    in_flight: int = 256
    body_mb: float = 16.0
    rate: float = 0.0
    head_s: float = 20.0
    body_s: float = 30.0
    write_s: float = 60.0
    drain_s: float = 10.0

    @property
    def connections(self) -> int:
        """Those to callers for which there are handles, beside two calls to models a place."""
        if sys.platform == "win32":
            return _MOST_CONNECTIONS
        import resource

        handles, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        left = handles - 2 * self.in_flight - _OTHER_HANDLES
        few = handles != resource.RLIM_INFINITY
        return min(_MOST_CONNECTIONS, max(left, handles // 4)) if few else _MOST_CONNECTIONS


class RateLimit:
    """Limits the requests a second of a caller (0 = any number), with a burst of one second's."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._most, self._clock = per_second, max(1.0, per_second), clock
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, caller: str) -> None:
        if self._rate <= 0:
            return
        now = self._clock()
        left, then = self._left.get(caller, (self._most, now))
        left = min(self._most, left + (now - then) * self._rate)
        if left < 1.0:
            wait = math.ceil((1.0 - left) / self._rate)
            raise _busy(f"more than {self._rate:g} requests a second with this key", wait)
        self._left[caller] = left - 1.0, now


def _busy(text: str, wait: int = 1) -> Refusal:
    return Refusal(text, status=429, kind="rate_limit_exceeded", retry_after=wait)


class FairQuota:
    """Room for all who ask. No caller may hold more than three times what stays free (one caller
    gets three quarters at most, two three sevenths each). Not `fair` = one caller may hold all."""

    def __init__(self, most: int, *, fair: bool = True) -> None:
        self.free, self._fair = most, fair
        self._held: dict[str, int] = {}

    def take(self, who: str, amount: int = 1) -> bool:
        held, left = self._held.get(who, 0), self.free - amount
        if left < 0 or (self._fair and held and held + amount > 3 * left):
            return False
        self.free = left
        self._held[who] = held + amount
        return True

    def give_back(self, who: str, amount: int = 1) -> None:
        self.free += amount
        self._held[who] -= amount
        if not self._held[who]:
            del self._held[who]


class BodyReader:
    """Reads bodies of at most `most` bytes, each within `wait_s` seconds. Beyond its short part a
    body takes its length from `room` while it is read and worked on."""

    def __init__(self, most: int, wait_s: float, room: FairQuota) -> None:
        self._most, self._wait_s, self._room = most, wait_s, room

    @asynccontextmanager
    async def read(
        self,
        headers: Mapping[str, str],
        pieces: AsyncIterable[bytes],
        caller: str = "",
        *,
        waits: bool = True,
    ) -> AsyncGenerator[bytes]:
        """The body; not `waits` = it is there already. Raises Refusal."""
        kind = headers.get("content-type", "").partition(";")[0].strip()
        if kind.casefold() != "application/json":  # which no page may send without asking first
            raise Refusal("the body must be sent as Content-Type: application/json", status=415)
        if headers.get("content-encoding", "identity") != "identity":
            raise Refusal("the body must not be compressed", status=415)
        too_long = Refusal(f"the body is larger than {self._most / 2**20:g} MiB", status=413)
        if int(headers.get("content-length", "0")) > self._most:
            raise too_long
        data, held = bytearray(), 0
        try:
            try:
                async with asyncio.timeout(self._wait_s if waits else None):
                    async for piece in pieces:
                        data += piece
                        if len(data) > self._most:
                            raise too_long
                        more = max(0, len(data) - _SHORT_BODY) - held
                        if more and not self._room.take(caller, more):
                            raise _busy("too many large bodies are being received")
                        held += more
            except TimeoutError:
                text = f"the body did not arrive within {self._wait_s:g} s"
                raise Refusal(text, status=408) from None
            yield bytes(data)
        finally:
            if held:
                self._room.give_back(caller, held)


@dataclass(slots=True)
class RequestContext:
    """A request on its way: what is known of it so far. `size` is its body's length in bytes,
    `spent` what its calls took, by role (None = unknown), `output` what the model said where that
    is kept; `arm` says why it has its version; `slices` are named by its metadata."""

    id: str = field(default_factory=new_request_id)
    headers: dict[str, str] = field(default_factory=lambda: {})
    caller: str = ""
    size: int = 0
    spent: dict[Role, Usage | None] = field(default_factory=lambda: {})
    output: str = ""
    arm: Arm = ""
    slices: tuple[str, ...] = ()
    begun: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.headers["x-request-id"] = self.id

    @property
    def usage_text(self) -> str:
        """What all its calls took by now, as a header says it."""
        known = [usage for usage in self.spent.values() if usage is not None]
        if len(known) < len(self.spent):
            return "unknown"
        total = sum(known, Usage())
        tokens = f"prompt_tokens={total.prompt_tokens}, completion_tokens={total.completion_tokens}"
        return f"calls={total.calls}, {tokens}"


# What a path does with a request. Raises Refusal.
Answers = Callable[[web.BaseRequest, RequestContext], Awaitable[web.StreamResponse]]
# A method and what answers, by path. A path with a name in braces has all that begins so.
Paths = Mapping[str, tuple[str, Answers]]


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @property
    def base_url(self) -> str:
        """Ends in /v1, as clients want it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/v1"


class _Connections(web.Server):
    """An address has its share of connections; beyond it its longest idle one is closed."""

    def __init__(self, most: int, answer: Any, **settings: Any) -> None:
        super().__init__(answer, handler_cancellation=True, access_log=None, **settings)
        self._shares = FairQuota(most)
        self._peers: dict[web.RequestHandler, str] = {}
        self._idle: dict[web.RequestHandler, None] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        peer = str((transport.get_extra_info("peername") or ("",))[0])
        if not self._shares.take(peer):
            # An idle connection gives way: one of the same address, or any for a new one.
            own = (each for each in self._idle if self._peers[each] == peer)
            other = None if peer in self._peers.values() else next(iter(self._idle), None)
            if oldest := next(own, other):
                idle = oldest.transport
                self._forget(oldest)
                if idle is not None:
                    idle.abort()
            if oldest is None or not self._shares.take(peer):
                transport.abort()
                return
        self._peers[handler] = peer
        self._idle[handler] = None

    def connection_lost(self, handler: web.RequestHandler, exc: Any = None) -> None:
        super().connection_lost(handler, exc)
        self._forget(handler)

    def _forget(self, handler: web.RequestHandler) -> None:
        self._idle.pop(handler, None)
        if (peer := self._peers.pop(handler, None)) is not None:
            self._shares.give_back(peer)

    @contextmanager
    def busy(self, handler: web.RequestHandler) -> Generator[None]:
        """The connection is kept while the block runs; it is the youngest idle one afterwards."""
        self._idle.pop(handler, None)
        try:
            yield
        finally:
            if handler in self._peers:
                self._idle[handler] = None


class Metrics:
    """Counts since the start; `what` is what needs the library. Raises MissingExtra."""

    def __init__(self, what: str, in_flight: Callable[[], int]) -> None:
        self._library: Any = import_extra("prometheus_client", what, "serve")
        self._registry: Any = self._library.CollectorRegistry()
        self._requests = self.counter("pco_requests", "Requests answered.", "path", "status")
        self._seconds: Any = self._library.Histogram(
            "pco_request_seconds",
            "Time from a request's arrival to its reply's last byte.",
            ["path"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.gauge("pco_in_flight", "Completions admitted and not yet answered.", in_flight)

    def counter(self, name: str, about: str, *labels: str) -> Any:
        return self._library.Counter(name, about, labels, registry=self._registry)

    def gauge(self, name: str, about: str, value: Callable[[], float]) -> None:
        self._library.Gauge(name, about, registry=self._registry).set_function(value)

    def answered(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def page(self) -> bytes:
        return self._library.generate_latest(self._registry)


class Admission:
    """Lets requests in, a bounded number at a time."""

    def __init__(self, callers: Callers, limits: RequestLimits) -> None:
        self.limits, self._callers = limits, callers
        self._rate = RateLimit(limits.rate)
        self._places = FairQuota(limits.in_flight, fair=callers.several)
        most = int(limits.body_mb * 2**20)
        at_least = most * (4 if callers.several else 1)
        held = max(at_least, min(limits.in_flight * most, _MOST_HELD))
        self._bodies = BodyReader(most, limits.body_s, FairQuota(held, fair=callers.several))
        self._one_long = asyncio.Lock()

    @property
    def in_flight(self) -> int:
        return self.limits.in_flight - self._places.free

    @asynccontextmanager
    async def listening(
        self, paths: Paths, metrics: Metrics | None, host: str, port: int
    ) -> AsyncGenerator[Address]:
        """The address while the block runs; requests in flight may finish. Raises OSError for a
        port that is taken."""

        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            path = request.path
            if path not in paths:
                named = (p for p in paths if "{" in p and path.startswith(p.partition("{")[0]))
                path = next(named, "other")
            visit, status = RequestContext(), HUNG_UP
            try:
                with connections.busy(request.protocol):
                    response = await self._answered(request, visit, path, paths.get(path))
                    status = response.status
                    return response
            finally:
                if metrics is not None:
                    metrics.answered(path, status, time.perf_counter() - visit.begun)

        quiet = logging.getLogger(f"{__name__}.http")
        quiet.disabled = True  # what it says of a malformed request quotes it
        connections = _Connections(
            self.limits.connections,
            answer,
            logger=quiet,
            keepalive_timeout=self.limits.head_s,
            auto_decompress=False,
            lingering_time=_LINGER_S,
        )
        loop = asyncio.get_running_loop()
        server = await loop.create_server(connections, host, port, backlog=_AT_ONCE)
        try:
            for each in server.sockets:
                # The loop accepts as many at once as may wait; more may, and a few are accepted.
                queue = socket.socket(each.family, each.type, each.proto, each.fileno())
                queue.listen(_QUEUE)
                queue.detach()
            yield Address(*server.sockets[0].getsockname()[:2])
        finally:
            server.close()
            await asyncio.sleep(0)  # what was accepted just now begins
            connections.pre_shutdown()
            await connections.shutdown(self.limits.drain_s)

    async def _answered(
        self,
        request: web.BaseRequest,
        visit: RequestContext,
        path: str,
        found: tuple[str, Answers] | None,
    ) -> web.StreamResponse:
        try:
            if path not in _OPEN:
                visit.caller = self._callers.admit(request.headers)
                self._rate.take(visit.caller)
            if found is None:
                raise Refusal("there is nothing at this address", status=404, kind="not_found")
            method, answer = found
            allowed = ("GET", "HEAD") if method == "GET" else (method,)
            if request.method not in allowed:
                visit.headers["Allow"] = ", ".join(allowed)
                raise Refusal(f"{path} takes {method}", status=405, kind="method_not_allowed")
            return await answer(request, visit)
        except Refusal as error:
            refusal = error
        except ConnectionError:
            raise  # the caller is gone
        except Exception as error:
            # Its message may quote the request; the log names its kind and its place.
            _log.error("a call to %s failed: %s", path, kind_and_place(error))
            refusal = Refusal("the server failed", status=500, kind="server_error")
        if refusal.retry_after is not None:
            visit.headers["Retry-After"] = f"{refusal.retry_after:g}"
        if refusal.status == 401:
            visit.headers["WWW-Authenticate"] = "Bearer"
        return json_response(error_body(refusal), visit, refusal.status)

    async def read(self, request: web.BaseRequest, visit: RequestContext) -> Mapping[str, Any]:
        """The body's object. Raises Refusal."""

        async def pieces() -> AsyncGenerator[bytes]:
            if request.headers.get("expect", "").casefold() == "100-continue":
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                request.writer.output_size = 0  # no part of the answer
            while piece := await request.content.readany():
                yield piece

        # A short body comes with its head, and needs no timer.
        waits, caller = not request.content.is_eof(), visit.caller
        async with self._bodies.read(request.headers, pieces(), caller, waits=waits) as data:
            visit.size = len(data)
            return await self.apart(visit, lambda: parse_body(data))

    async def apart(self, visit: RequestContext, work: Callable[[], _T]) -> _T:
        """The work of a long body, in a thread: one at a time, then a pause of twice its time, as
        a thread that reads or writes JSON lets no other run."""
        if visit.size < _LONG_BODY:
            return work()
        await self._one_long.acquire()
        begun = time.perf_counter()
        try:
            return await asyncio.to_thread(work)
        finally:
            rest = 2 * (time.perf_counter() - begun)
            asyncio.get_running_loop().call_later(rest, self._one_long.release)

    @contextmanager
    def place(self, visit: RequestContext) -> Generator[None]:
        """Room for a completion. Raises Refusal when there is none, or none for this caller."""
        if not self._places.take(visit.caller):
            others = "; remaining places are reserved for other keys" if self._places.free else ""
            message = f"{self.in_flight} completions are under way, and no more can wait{others}"
            raise _busy(message)
        try:
            yield
        finally:
            self._places.give_back(visit.caller)


def json_response(
    body: Mapping[str, Any], visit: RequestContext, status: int = 200
) -> web.Response:
    data = json.dumps(body).encode("ascii")
    headers = {**visit.headers, "Cache-Control": "no-store"}
    return web.Response(body=data, status=status, content_type="application/json", headers=headers)


def showing(page: Callable[[], Mapping[str, Any]]) -> Answers:
    async def show(request: web.BaseRequest, visit: RequestContext) -> web.StreamResponse:
        return json_response(page(), visit)

    return show


class LogThrottle(logging.Filter):
    """Lets a line a second of each kind into a log: no caller can fill a disk."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        # The text before its values are filled in; asyncio puts those on further lines.
        kind, now = (record.name, str(record.msg).partition("\n")[0]), self._clock()
        then, left_out = self._seen.get(kind, (now - 1.0, 0))
        if now - then < 1.0:
            self._seen[kind] = then, left_out + 1
            return False
        self._seen[kind] = now, 0
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} more like it)", ()
        return True


def kind_and_place(error: Exception) -> str:
    """An error without its message, which may quote anything."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return type(error).__name__ + place


def without_quotes(error: Exception) -> str:
    """The message of an error of ours; of another one, whose message may quote anything, its kind
    and place."""
    return str(error) if isinstance(error, PcoError) else kind_and_place(error)
