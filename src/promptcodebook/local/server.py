"""A model with learned weights behind /v1/chat/completions, on FastAPI and Uvicorn.

The wire is that of `serve.completions`. This file decides who may ask, how many at a time, and what
becomes of a call whose caller has gone. It never logs the text of a request, nor an error that
could quote it. Of the web framework only the request's `receive` and `headers` are used.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import math
import socket
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from promptcodebook.errors import RequestRefused, import_extra
from promptcodebook.local.engine import Embedder, Engine, Generation, Job, Load
from promptcodebook.local.jobs import (
    embeddings_body,
    generate_all,
    logprobs_tree,
    read_embeddings,
    stream_all,
    to_jobs,
    to_reply,
)
from promptcodebook.serve.admission import Callers, require_keys
from promptcodebook.serve.completions import (
    Completion,
    Refusal,
    error_body,
    read_call,
    require_json,
)
from promptcodebook.serve.metrics import Metrics, kind_and_place
from promptcodebook.serve.server import Address

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


_HUNG_UP = 499
"""The status under which a call is counted whose caller did not wait for it."""

_OPEN = ("/healthz", "/health")
"""What is answered without a key."""
_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """Where the server listens and what it allows.

    `key` '' = none is asked for. `queue` = completions admitted at a time, whether they are
    generated or wait; a call beyond them gets a 429. `drain_s` = how long those in flight may still
    take once the server is to stop. `aliases` = further names of the model.
    """

    host: str = "127.0.0.1"
    port: int = 0
    key: str = ""
    queue: int = 256
    drain_s: int = 10
    aliases: tuple[str, ...] = ()


def check_terms(terms: Terms, model: str) -> None:
    """Raises ConfigError where anybody on the network could ask without a key."""
    require_keys((terms.key,), terms.host, f"pco lm serve {model}")


@asynccontextmanager
async def serving_locally(
    load: Callable[[], Awaitable[Engine]], terms: Terms
) -> AsyncGenerator[tuple[Address, asyncio.Future[Engine]], None]:
    """The server, listening while the block runs, with a 503 for all until the engine is loaded.

    Yields where it listens, and the loading: who awaits it sees why it failed. At the end no more
    calls are taken, those in flight may finish, and the engine is closed. Raises OSError when the
    port is taken, MissingExtra without FastAPI and Uvicorn.
    """
    uvicorn: Any = import_extra("uvicorn", "serving a local model", "serve")
    local = LocalServer(terms)
    bound = _bind(terms)
    config = uvicorn.Config(
        local.application(),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=terms.drain_s,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # who runs us decides what ends us
    running = asyncio.ensure_future(server.serve(sockets=[bound]))
    loading = asyncio.ensure_future(local.load(load))
    try:
        yield Address(*cast("tuple[str, int]", bound.getsockname()[:2])), loading
    finally:
        server.should_exit = True
        loading.cancel()
        try:
            await asyncio.gather(running, loading, return_exceptions=True)
        finally:
            await local.close()


def _bind(terms: Terms) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in terms.host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((terms.host, terms.port))
        bound.listen(1024)
    except OSError:
        bound.close()
        raise
    return bound


class _Answer(Protocol):
    """What a path does with a request. Raises Refusal."""

    async def __call__(self, request: Any, response: Response) -> None: ...


class LocalServer:
    """One engine, and the paths under which it is asked."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._callers = Callers((terms.key,))
        self._engine: Engine | None = None
        self._failed = False
        self._admitted = 0
        self._numbers = itertools.count(1)
        self._begun = int(time.time())
        self._typical_s = 1.0
        self._metrics = ModelMetrics(lambda: self._admitted, self._load)

    def application(self) -> Any:
        """The ASGI application. Raises MissingExtra."""
        fastapi: Any = import_extra("fastapi", "serving a local model", "serve")
        # Its pages of documentation are loaded from elsewhere, and its traces are sent there.
        quiet = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
        app = fastapi.FastAPI(title="pco lm serve", openapi_url=None, telemetry=quiet)
        paths: Mapping[str, tuple[str, _Answer]] = {
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/embeddings": ("POST", self._embeddings),
            "/v1/models": ("GET", self._models),
            "/v1/models/{name:path}": ("GET", self._model),
            "/metrics": ("GET", self._page),
            "/healthz": ("GET", self._health),
            "/health": ("GET", self._health),
        }
        for path, (method, answer) in paths.items():
            app.add_route(path, self._guarded(path, answer), methods=[method])
        app.add_route("/{rest:path}", self._guarded("other", _nothing), methods=_METHODS)
        return app

    async def load(self, load: Callable[[], Awaitable[Engine]]) -> Engine:
        try:
            self._engine = await load()
        except Exception:
            self._failed = True
            raise
        return self._engine

    async def close(self) -> None:
        """Gives the engine back."""
        if self._engine is not None:
            await self._engine.close()

    def _load(self) -> Load:
        return Load() if self._engine is None else self._engine.load

    def _guarded(self, path: str, answer: _Answer) -> Callable[[Any], Awaitable[Any]]:
        """An endpoint: who may ask, what is counted, and the errors that its answer ends in."""

        async def endpoint(request: Any) -> Any:
            async def respond(_scope: object, _receive: object, send: Send) -> None:
                response, begun = Response(send), time.perf_counter()
                try:
                    if path not in _OPEN:
                        self._callers.admit(request.headers)
                    await answer(request, response)
                except HungUp:
                    response.status = _HUNG_UP
                except Refusal as refusal:
                    await response.refuse(refusal)
                except RequestRefused as error:
                    await response.refuse(Refusal(str(error)))
                except asyncio.CancelledError:
                    # The server stops and can wait no longer. Nothing is above that wants to know.
                    await response.refuse(_unavailable("the server is stopping"))
                except Exception as error:
                    # Its message may quote the request, so only its kind and its place are logged.
                    _log.error("a call to %s failed: %s", path, kind_and_place(error))
                    failed = Refusal("the model failed", status=500, kind="server_error")
                    await response.refuse(failed)
                finally:
                    seconds = time.perf_counter() - begun
                    self._metrics.answered(path, response.status or _HUNG_UP, seconds)

            return respond

        return endpoint

    def _loaded(self, model: str | None = None) -> Engine:
        """The engine. Raises Refusal while it is loading, and for another model's name."""
        engine = self._engine
        if engine is None:
            text = "the model could not be loaded" if self._failed else "the model is being loaded"
            raise _unavailable(text)
        if model and model not in (engine.model, *self._terms.aliases):
            text = f"no model {model!r} here; there is {engine.model!r}"
            raise Refusal(text, status=404, kind="model_not_found", param="model")
        return engine

    @contextmanager
    def _places(self, count: int) -> Generator[None]:
        """Takes room for `count` completions. Raises Refusal when there is none."""
        if count > self._terms.queue:
            raise Refusal(f"n must be at most {self._terms.queue}", param="n")
        if self._admitted + count > self._terms.queue:
            wait = math.ceil(min(60.0, max(1.0, self._typical_s)))
            text = f"{self._admitted} completions are under way, and more may not wait"
            raise Refusal(text, status=429, kind="rate_limit_exceeded", retry_after=wait)
        self._admitted += count
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._admitted -= count
            self._typical_s += 0.1 * (time.perf_counter() - begun - self._typical_s)

    async def _chat(self, request: Any, response: Response) -> None:
        self._loaded()
        call = read_call(await read_body(request))
        engine = self._loaded(call.request.model)
        jobs = to_jobs(call)
        number = f"chatcmpl-{self._begun:x}-{next(self._numbers)}"
        completion = Completion(number, engine.model, int(time.time()))
        with self._places(len(jobs)):
            if call.stream:
                sending = self._stream(response, completion, engine, jobs, call.stream_usage)
                await while_wanted(request, sending)
                return
            made = await while_wanted(request, generate_all(engine, jobs))
        self._metrics.generated(*made)
        trees = [logprobs_tree(each) for each in made]
        await response.json(completion.body(*map(to_reply, made), logprobs=trees))

    async def _stream(
        self,
        response: Response,
        completion: Completion,
        engine: Engine,
        jobs: Sequence[Job],
        with_usage: bool,
    ) -> None:
        done: dict[int, Generation] = {}
        async with aclosing(stream_all(engine, jobs)) as pieces:
            async for index, piece in pieces:
                if not response.status:
                    # Not before there is a first piece: a job that is refused gets its 400.
                    await response.begin("text/event-stream")
                    await response.events(*(completion.first_chunk(i) for i in range(len(jobs))))
                if isinstance(piece, str):
                    await response.events(completion.text_chunk(piece, index))
                    continue
                done[index] = piece
                tree = logprobs_tree(piece)
                await response.events(completion.last_chunk(to_reply(piece), index, tree))
        made = [done[index] for index in sorted(done)]
        self._metrics.generated(*made)
        if with_usage:
            await response.events(completion.usage_chunk(*map(to_reply, made)))
        await response.end(b"data: [DONE]\n\n")

    async def _embeddings(self, request: Any, response: Response) -> None:
        self._loaded()
        call = read_embeddings(await read_body(request))
        engine = self._loaded(call.model)
        if not isinstance(engine, Embedder):
            text = f"{engine.model} makes no embeddings here"
            raise Refusal(text, status=501, kind="not_supported")
        with self._places(1):
            found = await while_wanted(request, engine.embed(call.texts))
        await response.json(embeddings_body(found, engine.model, as_base64=call.base64))

    async def _models(self, request: Any, response: Response) -> None:
        await response.json({"object": "list", "data": [self._entry(self._loaded())]})

    async def _model(self, request: Any, response: Response) -> None:
        await response.json(self._entry(self._loaded(request.path_params["name"])))

    def _entry(self, engine: Engine) -> Mapping[str, object]:
        model = {"id": engine.model, "object": "model", "created": self._begun}
        return {**model, "owned_by": "promptcodebook", "context_length": engine.context_length}

    async def _page(self, request: Any, response: Response) -> None:
        await response.begin("text/plain; version=0.0.4; charset=utf-8")
        await response.end(self._metrics.page())

    async def _health(self, request: Any, response: Response) -> None:
        state = "loading" if self._engine is None else "ok"
        health = {"status": "failed" if self._failed else state}
        await response.json(health, 200 if state == "ok" else 503)


def _unavailable(text: str) -> Refusal:
    return Refusal(text, status=503, kind="server_error", retry_after=1)


async def _nothing(request: Any, response: Response) -> None:
    text = f"nothing at {request.method} {request.url.path}"
    raise Refusal(text, status=404, kind="not_found")


class ModelMetrics(Metrics):
    """Those of a local model; `load` is asked when the page is read."""

    def __init__(self, in_flight: Callable[[], int], load: Callable[[], Load]) -> None:
        super().__init__("serving a local model", in_flight)
        about = "Tokens read in prompts, taken from the cache, and written."
        self._tokens = self._counter("pco_tokens", about, "kind")
        self._gauge("pco_running", "Completions that are generated now.", lambda: load().running)
        self._gauge("pco_waiting", "Completions that wait for a place.", lambda: load().waiting)
        for kind in ("prompt", "cached", "completion"):
            self._tokens.labels(kind)

    def generated(self, *choices: Generation) -> None:
        """The choices of one request, which share its prompt."""
        self._tokens.labels("prompt").inc(choices[0].prompt_tokens)
        self._tokens.labels("cached").inc(choices[0].cached_tokens or 0)
        self._tokens.labels("completion").inc(sum(each.completion_tokens for each in choices))
