"""A model with learned weights behind /v1/chat/completions and /v1/embeddings, on FastAPI and
Uvicorn, as the paper's server is (section 4). FastAPI reads bodies and describes them; this file
makes a call the jobs of an engine, bounds how many there are, and cancels those whose caller has
gone. A field that cannot be obeyed is refused. Nothing that is logged quotes a request."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import logging
import math
import secrets
import socket
import struct
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import uvicorn
from annotated_types import MaxLen, MinLen
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from promptcodebook.calls import Reply, Usage
from promptcodebook.deploy.http.admission import (
    HUNG_UP,
    Address,
    BodyReader,
    Callers,
    FairQuota,
    Metrics,
    RequestLimits,
    kind_and_place,
)
from promptcodebook.deploy.http.completions import (
    AnyText,
    ChatCall,
    ChatRequest,
    Completion,
    Error,
    Refusal,
    error_body,
    parse_body,
    to_call,
)
from promptcodebook.deploy.online.served_log import new_request_id
from promptcodebook.errors import RequestRefused
from promptcodebook.models.local.engine import EmbeddingEngine, Engine, Generation, Job, Load

_OPEN = ("/healthz", "/health", "/openapi.json")  # What is answered without a key.
_LONGEST_BODY = 16 * 2**20  # Bytes.
_MOST_HELD = 2**28  # Bytes of all bodies that are being read.
_IGNORED = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("prompt_cache_retention", "parallel_tool_calls", "tool_choice", "function_call"),
    *("reasoning_effort", "verbosity", "prediction"),
}
_NOT_OBEYED = {
    *("tools", "functions", "logit_bias", "audio", "modalities", "web_search_options"),
    *("logprobs", "top_logprobs"),
}
# May be said all the same.
_PLAIN: tuple[object, ...] = (None, False, [], {}, ["text"])

_log = logging.getLogger(__name__)


_FullText = Annotated[AnyText, MinLen(1)]
_Penalty = Annotated[
    float | None, Field(strict=True, ge=-2, le=2, description="a number between -2 and 2")
]


class LocalChatRequest(ChatRequest):
    """The fields of a call within what an engine can obey; all others become `Sampling.extra`."""

    temperature: float | None = Field(
        None, strict=True, ge=0, le=2, description="a number between 0 and 2"
    )
    top_p: float | None = Field(
        None, strict=True, ge=0, le=1, description="a number between 0 and 1"
    )
    presence_penalty: _Penalty = None
    frequency_penalty: _Penalty = None
    stop: _FullText | Annotated[list[_FullText], MaxLen(16)] | None = Field(
        None, description="a string or a list of at most 16 strings, none of them empty"
    )


def to_job(body: LocalChatRequest, call: ChatCall) -> Job:
    """Raises Refusal for a field that no engine can obey."""
    for name, value in call.request.sampling.extra.items():
        if name not in _IGNORED | _NOT_OBEYED:
            raise Refusal(f"unrecognized request argument: {name}", param=name)
        if name in _NOT_OBEYED and value not in _PLAIN:
            raise Refusal(f"{name} is not supported by this server", param=name)
    any_object: Mapping[str, object] | None = {"type": "object"} if call.json_mode else None
    drawing = {"temperature", "top_p", "presence_penalty", "frequency_penalty"}
    return Job(
        messages=call.request.messages,
        max_tokens=call.request.sampling.max_tokens,
        stop=call.stop,
        seed=call.request.sample if call.seeded else secrets.randbits(63),
        schema=any_object if call.request.schema is None else call.request.schema.body,
        **body.model_dump(include=drawing, exclude_none=True),
    )


class EmbeddingsRequest(BaseModel):
    """The body of /v1/embeddings. `base64` = little-endian float32 in place of numbers."""

    input: _FullText | Annotated[list[_FullText], MinLen(1)] = Field(
        description="a string or a list of strings, none of them empty"
    )
    model: Any = None
    dimensions: None = Field(None, description="null: this server does not shorten vectors")
    encoding_format: Literal["float", "base64", ""] | None = Field(
        None, description="float or base64"
    )


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where the server listens and what it allows. `key` '' = none is asked for. `queue` =
    completions admitted at a time, waiting ones too; more get a 429. `body_s` = seconds in which a
    body must arrive. `drain_s` = how long those in flight may still take once the server is to
    stop. `aliases` = further names of the model."""

    host: str = "127.0.0.1"
    port: int = 0
    key: str = ""
    queue: int = 256
    body_s: float = 30.0
    drain_s: int = 10
    aliases: tuple[str, ...] = ()


class _JsonRequest(Request):
    """A request whose body was read and parsed within our limits."""

    data: bytes
    tree: Mapping[str, Any]

    async def body(self) -> bytes:
        return self.data

    async def json(self) -> Mapping[str, Any]:
        return self.tree


class _Events(StreamingResponse):
    """Server-sent events. `_Gate` ends them when the caller hangs up, so that no task watches."""

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await self.stream_response(send)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield  # the command that runs us obeys signals


class _Exchange:
    """The messages of one request and its answer. The task that it began in is cancelled when the
    caller hangs up before the end."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.status = 0
        self.ended = self.gone = False
        self._receive, self._send = receive, send
        self._task = asyncio.current_task()
        self._watching: asyncio.Future[None] | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):
            self._watching = asyncio.ensure_future(self._watch())
        return message

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        assert self._task is not None
        self.gone = self._task.cancel()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = new_request_id()
            headers.setdefault("cache-control", "no-store")
        elif not message.get("more_body", False):
            self.close()
            self.ended = True
        await self._send(message)

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()


class _Gate:
    """What is outside of FastAPI: the key, the count, and the end of a call whose caller hangs up
    or whose server stops."""

    def __init__(self, app: FastAPI, callers: Callers, metrics: Metrics) -> None:
        self._app, self._callers, self._metrics = app, callers, metrics
        self._paths = {getattr(route, "path", "") for route in app.routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, exchange = time.perf_counter(), _Exchange(receive, send)
        try:
            if scope["path"] not in _OPEN:
                self._callers.admit(Headers(scope=scope))
            await self._app(scope, exchange.receive, exchange.send)
        except Refusal as refusal:
            await _refuse(refusal)(scope, receive, exchange.send)
        except asyncio.CancelledError:
            if not exchange.gone:  # by Uvicorn, which stops
                await self._say_it_stops(scope, exchange)
        except Exception as error:
            # Starlette has answered, and raises it again. Its message may quote the request.
            _log.error("a call failed: %s", kind_and_place(error))
        finally:
            exchange.close()
            known = scope["path"] if scope["path"] in self._paths else "other"
            path = getattr(scope.get("route"), "path", known)
            status = exchange.status if exchange.ended else HUNG_UP
            self._metrics.answered(path, status, time.perf_counter() - begun)

    async def _say_it_stops(self, scope: Scope, exchange: _Exchange) -> None:
        refusal = _unavailable("the server is stopping")
        if exchange.status:
            body = _event(error_body(refusal))
            await exchange.send({"type": "http.response.body", "body": body})
        else:
            await _refuse(refusal)(scope, exchange.receive, exchange.send)


def _json(
    tree: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """In ASCII: a text may hold half of a surrogate pair, which UTF-8 cannot write."""
    return Response(json.dumps(tree), status, headers, "application/json")


def _refuse(refusal: Refusal) -> Response:
    headers: dict[str, str] = {}
    if refusal.retry_after is not None:
        headers["Retry-After"] = f"{refusal.retry_after:g}"
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return _json(error_body(refusal), refusal.status, headers)


_ANSWERED = (Refusal, RequestValidationError, HTTPException, Exception)


async def _answer_error(request: Request, error: Exception) -> Response:
    headers: Mapping[str, str] = {}
    match error:
        case Refusal():
            refusal = error
        case RequestValidationError():  # a field's description says what it must be
            known = {**LocalChatRequest.model_fields, **EmbeddingsRequest.model_fields}
            field = str(error.errors()[0]["loc"][1])
            refusal = Refusal(f"{field} must be {known[field].description}", param=field)
        case HTTPException(status_code=404):
            refusal = Refusal("there is nothing at this address", status=404, kind="not_found")
        case HTTPException():
            headers = error.headers or {}
            text = f"{request.url.path} accepts {headers['Allow']}"
            refusal = Refusal(text, status=405, kind="method_not_allowed")
        case _:
            refusal = Refusal("the server failed", status=500, kind="server_error")
    response = _refuse(refusal)
    response.headers.update(headers)
    return response


class LocalServer:
    """One engine, and the paths under which it is asked."""

    def __init__(self, terms: ServerOptions) -> None:
        self._terms = terms
        self._engine: Engine | None = None
        self._state = "loading"
        self._admitted = 0
        self._numbers = itertools.count(1)
        self._begun = int(time.time())
        self._typical_s = 1.0
        self._bodies = BodyReader(_LONGEST_BODY, terms.body_s, FairQuota(_MOST_HELD, fair=False))
        self._metrics = Metrics("serving a local model", lambda: self._admitted)
        about = "Tokens in prompts, from the cache and in completions."
        self._tokens = self._metrics.counter("pco_tokens", about, "kind")
        for kind in ("prompt", "cached", "completion"):
            self._tokens.labels(kind)
        gauge, load = self._metrics.gauge, lambda: self._engine.load if self._engine else Load()
        gauge("pco_running", "Completions being generated now.", lambda: load().running)
        gauge("pco_waiting", "Completions waiting for a slot.", lambda: load().waiting)
        self._gate = _Gate(self._application(), Callers((terms.key,)), self._metrics)

    def _application(self) -> FastAPI:
        bodies = self._bodies

        class BoundedRoute(APIRoute):
            """Reads a body itself: FastAPI would read one of any length, for any time."""

            def get_route_handler(self) -> Callable[[Request], Any]:
                handle = super().get_route_handler()
                if self.body_field is None:
                    return handle

                async def read(request: Request) -> Response:
                    asked = _JsonRequest(request.scope, request.receive)
                    async with bodies.read(request.headers, request.stream()) as data:
                        asked.data, asked.tree = data, parse_body(data)
                    return await handle(asked)

                return read

        app = FastAPI(
            title="pco lm serve",
            docs_url=None,  # its pages load scripts from elsewhere
            redoc_url=None,
            redirect_slashes=False,
            telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
            responses={"default": {"model": Error, "description": "What is wrong."}},
            exception_handlers=dict.fromkeys(_ANSWERED, _answer_error),
        )
        app.router.route_class = BoundedRoute
        app.post("/v1/chat/completions")(self._chat)
        app.post("/v1/embeddings")(self._embeddings)
        shown: Mapping[str, Callable[..., Awaitable[Response]]] = {
            "/v1/models": self._models,
            "/v1/models/{name:path}": self._model,
            "/metrics": self._page,
            "/healthz": self._health,
            "/health": self._health,
        }
        for path, page in shown.items():
            app.get(path)(page)
            app.head(path, include_in_schema=False)(page)
        return app

    @asynccontextmanager
    async def serving(
        self, load: Callable[[], Awaitable[Engine]]
    ) -> AsyncGenerator[tuple[Address, asyncio.Future[Engine]]]:
        """Listens while the block runs, with a 503 for all until the engine is loaded. Yields where
        it listens, and the loading: who awaits it sees why it failed. At the end no more calls are
        taken, those in flight may finish, and the engine is closed. Raises OSError when the port is
        taken, MissingExtra without prometheus_client."""
        bound = _bind(self._terms.host, self._terms.port)
        config = uvicorn.Config(
            self._gate,
            http="h11",  # bounds a request's head, at 64 KiB
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=RequestLimits(in_flight=self._terms.queue).connections,
            timeout_keep_alive=20,
            timeout_graceful_shutdown=self._terms.drain_s,
        )
        server = _Server(config)
        running = asyncio.ensure_future(server.serve(sockets=[bound]))
        loading = asyncio.ensure_future(self._load(load))
        try:
            yield Address(*bound.getsockname()[:2]), loading
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            server.should_exit = True
            try:
                await running
                if cancelled := [*server.server_state.tasks]:  # they still answer
                    await asyncio.wait(cancelled)
            finally:
                if self._engine is not None:
                    await self._engine.close()

    async def _load(self, load: Callable[[], Awaitable[Engine]]) -> Engine:
        try:
            self._engine = await load()
        except Exception:
            self._state = "failed"
            raise
        self._state = "ok"
        return self._engine

    def _loaded(self, model: str = "") -> Engine:
        """The engine. Raises Refusal while it is loading, and for another model's name."""
        if (engine := self._engine) is None:
            failed = self._state == "failed"
            raise _unavailable(f"the model {'could not be' if failed else 'is being'} loaded")
        if model and model not in (engine.model, *self._terms.aliases):
            text = f"no model {model!r} here; this server has {engine.model!r}"
            raise Refusal(text, status=404, kind="model_not_found", param="model")
        return engine

    @contextmanager
    def _place(self) -> Generator[None]:
        """Takes room for a completion. Raises Refusal when there is none."""
        if self._admitted >= self._terms.queue:
            wait = math.ceil(min(60.0, max(1.0, self._typical_s)))
            text = f"{self._admitted} completions are running or waiting, and the queue is full"
            raise Refusal(text, status=429, kind="rate_limit_exceeded", retry_after=wait)
        self._admitted += 1
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._admitted -= 1
            self._typical_s += 0.1 * (time.perf_counter() - begun - self._typical_s)

    @contextmanager
    def _working(self) -> Generator[None]:
        """While the engine works: raises what it raises as Refusal."""
        try:
            yield
        except Refusal:
            raise
        except RequestRefused as error:
            raise Refusal(str(error)) from None
        except Exception as error:
            # Its message may quote the request, so only its kind and its place are logged.
            _log.error("a completion failed: %s", kind_and_place(error))
            raise Refusal("the model failed", status=500, kind="server_error") from None

    async def _chat(self, body: LocalChatRequest) -> Response:
        """Make completions of a chat, whole or as a stream of chunks."""
        self._loaded()
        call = to_call(body)
        engine = self._loaded(call.request.model)
        job = to_job(body, call)
        number = f"chatcmpl-{self._begun:x}-{next(self._numbers)}"
        completion = Completion(number, engine.model, int(time.time()))
        if call.stream:
            events = self._events(completion, engine, job, call)
            # Not before the first piece: a job that is refused gets its 400.
            return _Events(_rest(await anext(events), events))
        with self._place(), self._working():
            made = await engine.generate(job)
        return _json(completion.body(self._counted(made)))

    async def _events(
        self, completion: Completion, engine: Engine, job: Job, call: ChatCall
    ) -> AsyncGenerator[bytes]:
        begun = False
        with self._place(), self._working():
            async with aclosing(engine.stream(job)) as pieces:
                async for piece in pieces:
                    if not begun:
                        begun = True
                        yield _event(completion.chunk())
                    if isinstance(piece, str):
                        yield _event(completion.chunk({"content": piece}))
                        continue
                    reply = self._counted(piece)
                    yield _event(completion.chunk({}, piece.finish))
                    if call.stream_usage:
                        yield _event(completion.usage_chunk(reply))
        yield b"data: [DONE]\n\n"

    def _counted(self, made: Generation) -> Reply:
        cached = made.cached_tokens or 0
        usage = Usage(1, made.prompt_tokens, made.completion_tokens, cached, cost=None)
        self._tokens.labels("prompt").inc(usage.prompt_tokens)
        self._tokens.labels("cached").inc(cached)
        self._tokens.labels("completion").inc(usage.completion_tokens)
        return Reply(made.text, made.finish, usage)

    async def _embeddings(self, body: EmbeddingsRequest) -> Response:
        """Make a vector of each text."""
        engine = self._loaded(str(body.model or ""))
        if not isinstance(engine, EmbeddingEngine):
            text = f"{engine.model} offers no embeddings here"
            raise Refusal(text, status=501, kind="not_supported")
        texts = [body.input] if isinstance(body.input, str) else body.input
        with self._place(), self._working():
            found = await engine.embed(texts)
        rows: list[Mapping[str, object]] = []
        for index, each in enumerate(found):
            vector: object = each.vector
            if body.encoding_format == "base64":
                packed = struct.pack(f"<{len(each.vector)}f", *each.vector)
                vector = base64.b64encode(packed).decode()
            rows.append({"object": "embedding", "index": index, "embedding": vector})
        tokens = sum(each.tokens for each in found)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return _json({"object": "list", "data": rows, "model": engine.model, "usage": usage})

    async def _models(self) -> Response:
        """List the one model."""
        return _json({"object": "list", "data": [self._entry()]})

    async def _model(self, name: str) -> Response:
        """Describe the model."""
        return _json(self._entry(name))

    def _entry(self, model: str = "") -> Mapping[str, object]:
        engine = self._loaded(model)
        entry = {"id": engine.model, "object": "model", "created": self._begun}
        return {**entry, "owned_by": "promptcodebook", "context_length": engine.context_length}

    async def _page(self) -> Response:
        """Show the counts, for Prometheus."""
        return Response(self._metrics.page(), media_type="text/plain; version=0.0.4")

    async def _health(self) -> Response:
        """Tell whether the model is loaded."""
        return _json({"status": self._state}, 200 if self._state == "ok" else 503)


def _bind(host: str, port: int) -> socket.socket:
    """A socket that listens, so that a port that is taken is an OSError and no exit of Uvicorn."""
    family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(where, family=family, backlog=1024)


async def _rest(first: bytes, events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """A stream that has begun; an error is its last event."""
    async with aclosing(events):
        yield first
        try:
            async for event in events:
                yield event
        except Refusal as refusal:
            yield _event(error_body(refusal))


def _unavailable(text: str) -> Refusal:
    return Refusal(text, status=503, kind="server_error", retry_after=1)


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"
