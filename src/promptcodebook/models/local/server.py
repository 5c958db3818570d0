"""A model with learned weights behind /v1/chat/completions and /v1/embeddings. `serve.admission`
lets callers in; this file makes a call the jobs of an engine, bounds how many there are, and
cancels those whose caller has gone. A field that cannot be obeyed is refused."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import logging
import math
import secrets
import struct
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from aiohttp import web
from annotated_types import MinLen
from pydantic import BaseModel, ValidationError

from promptcodebook.base.randomness import keyed_int
from promptcodebook.calls import Reply, Usage
from promptcodebook.deploy.http.admission import (
    Address,
    Admission,
    Answers,
    Callers,
    Metrics,
    RequestContext,
    RequestLimits,
    json_response,
    kind_and_place,
    showing,
)
from promptcodebook.deploy.http.completions import (
    AnyText,
    ChatCall,
    Completion,
    Refusal,
    call_of,
    error_body,
    read_number,
)
from promptcodebook.errors import RequestRefused
from promptcodebook.models.local.engine import EmbeddingEngine, Engine, Generation, Job, Load

_MOST_CHOICES = 32
_MOST_STOPS = 16
_PENALTIES = ("presence_penalty", "frequency_penalty")
_IGNORED = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("prompt_cache_retention", "parallel_tool_calls", "tool_choice", "function_call"),
    *("reasoning_effort", "verbosity", "prediction", *_PENALTIES),
}
_NOT_OBEYED = {"tools", "functions", "logit_bias", "audio", "modalities", "web_search_options"}
_PLAIN: tuple[object, ...] = (None, [], {}, ["text"])  # what one of these may hold all the same

_log = logging.getLogger(__name__)


def to_jobs(call: ChatCall) -> tuple[Job, ...]:
    """A job for each choice; the call's own seed draws the first. Raises Refusal."""
    sampling = call.request.sampling
    extra = sampling.extra
    for name in extra.keys() - _IGNORED:
        if name not in _NOT_OBEYED:
            raise Refusal(f"unrecognized request argument: {name}", param=name)
        if extra[name] not in _PLAIN:
            raise Refusal(f"{name} is not supported by this server", param=name)
    if call.choices > _MOST_CHOICES:
        raise Refusal(f"n must be at most {_MOST_CHOICES}", param="n")
    if len(call.stop) > _MOST_STOPS or not all(call.stop):
        raise Refusal(f"stop must be at most {_MOST_STOPS} texts, none of them empty", param="stop")
    any_object: Mapping[str, object] | None = {"type": "object"} if call.json_mode else None
    schema = any_object if call.request.schema is None else call.request.schema.body
    seed = call.request.sample if call.seeded else secrets.randbits(63)
    given = ((name, read_number(extra, name)) for name in _PENALTIES)
    presence, frequency = (_within(*each, -2.0, default=0.0) for each in given)
    return tuple(
        Job(
            messages=call.request.messages,
            temperature=_within("temperature", sampling.temperature),
            top_p=_within("top_p", sampling.top_p, most=1.0),
            max_tokens=sampling.max_tokens,
            stop=call.stop,
            seed=seed if choice == 0 else keyed_int(seed, choice, "choice"),
            frequency_penalty=frequency,
            presence_penalty=presence,
            schema=schema,
            logprobs=call.logprobs,
        )
        for choice in range(call.choices)
    )


def _within(
    name: str, value: float | None, least: float = 0.0, most: float = 2.0, default: float = 1.0
) -> float:
    if value is not None and not least <= value <= most:
        raise Refusal(f"{name} must be between {least:g} and {most:g}", param=name)
    return default if value is None else value


def _to_reply(made: Generation) -> Reply:
    tokens = made.prompt_tokens, made.completion_tokens, made.cached_tokens or 0
    return Reply(made.text, made.finish, Usage(1, *tokens, None))


def _logprobs_tree(made: Generation) -> Mapping[str, object] | None:
    """As a choice's `logprobs`; None where none were asked for."""
    if made.logprobs is None:
        return None

    def entry(token: str, logprob: float) -> dict[str, object]:
        # JSON has no infinity; this wire writes it as -9999.
        written = list(token.encode("utf-8", "replace"))
        return {"token": token, "logprob": max(logprob, -9999.0), "bytes": written}

    content = [
        {**entry(at.token, at.logprob), "top_logprobs": [entry(*each) for each in at.top]}
        for at in made.logprobs
    ]
    return {"content": content, "refusal": None}


async def _stream_all(
    engine: Engine, jobs: Sequence[Job]
) -> AsyncGenerator[tuple[int, str | Generation]]:
    """The pieces of all jobs as they come, each with its job's number."""
    pieces: asyncio.Queue[tuple[int, str | Generation | Exception]] = asyncio.Queue()

    async def follow(index: int, job: Job) -> None:
        try:
            async for piece in engine.stream(job):
                pieces.put_nowait((index, piece))
        except Exception as error:
            pieces.put_nowait((index, error))

    following = [asyncio.ensure_future(follow(index, job)) for index, job in enumerate(jobs)]
    left = len(jobs)
    try:
        while left:
            index, piece = await pieces.get()
            if isinstance(piece, Exception):
                raise piece
            left -= isinstance(piece, Generation)
            yield index, piece
    finally:
        await _end(following)


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


_FullText = Annotated[AnyText, MinLen(1)]


class EmbeddingsRequest(BaseModel):
    """The body of /v1/embeddings. `base64` = little-endian float32 in place of numbers."""

    input: _FullText | Annotated[list[_FullText], MinLen(1)]
    model: Any = None
    dimensions: None = None
    encoding_format: Literal["float", "base64", ""] | None = None


_FAULTS = {
    "input": "input must be a text or a list of texts, none of them empty",
    "dimensions": "dimensions is not supported by this server",
    "encoding_format": "encoding_format must be float or base64",
}


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where the server listens and what it allows. `key` '' = none is asked for. `queue` =
    completions admitted at a time, waiting ones too; more get a 429. `drain_s` = how long those in
    flight may still take once the server is to stop. `aliases` = further names of the model."""

    host: str = "127.0.0.1"
    port: int = 0
    key: str = ""
    queue: int = 256
    drain_s: int = 10
    aliases: tuple[str, ...] = ()


class LocalServer:
    """One engine, and the paths under which it is asked."""

    def __init__(self, terms: ServerOptions) -> None:
        # A second more than completions have: those that are cancelled then still answer.
        limits = RequestLimits(in_flight=terms.queue, drain_s=terms.drain_s + 1)
        self._admission = Admission(Callers((terms.key,)), limits)
        self._terms = terms
        self._engine: Engine | None = None
        self._state = "loading"
        self._admitted = 0
        self._under_way: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._numbers = itertools.count(1)
        self._begun = int(time.time())
        self._typical_s = 1.0
        self._metrics = ModelMetrics(
            lambda: self._admitted, lambda: self._engine.load if self._engine else Load()
        )

    @asynccontextmanager
    async def serving(
        self, load: Callable[[], Awaitable[Engine]]
    ) -> AsyncGenerator[tuple[Address, asyncio.Future[Engine]]]:
        """Listens while the block runs, with a 503 for all until the engine is loaded. Yields where
        it listens, and the loading: who awaits it sees why it failed. At the end no more calls are
        taken, those in flight may finish, and the engine is closed. Raises OSError when the port is
        taken, MissingExtra without prometheus_client."""
        paths: Mapping[str, tuple[str, Answers]] = {
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/embeddings": ("POST", self._embeddings),
            "/v1/models": ("GET", showing(lambda: {"object": "list", "data": [self._entry()]})),
            "/v1/models/{name:.+}": ("GET", self._model),
            "/metrics": ("GET", self._page),
            "/healthz": ("GET", self._health),
            "/health": ("GET", self._health),
        }
        host, port = self._terms.host, self._terms.port
        try:
            async with self._admission.listening(paths, self._metrics, host, port) as address:
                loading = asyncio.ensure_future(self._load(load))
                try:
                    yield address, loading
                finally:
                    loading.cancel()
                    await asyncio.gather(loading, return_exceptions=True)
                    asyncio.get_running_loop().call_later(self._terms.drain_s, self._stop)
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

    def _stop(self) -> None:
        self._stopping = True
        for task in self._under_way:
            task.cancel()

    def _loaded(self, model: str = "") -> Engine:
        """The engine. Raises Refusal while it is loading, and for another model's name."""
        if (engine := self._engine) is None:
            failed = self._state == "failed"
            raise _unavailable(f"the model {'could not be' if failed else 'is being'} loaded")
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

    @contextmanager
    def _working(self) -> Generator[None]:
        """While the engine works: raises what it raises, and the end of the server, as Refusal."""
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._stopping:
                raise  # the caller hung up
            raise _unavailable("the server is stopping") from None
        except (Refusal, ConnectionError):
            raise
        except RequestRefused as error:
            raise Refusal(str(error)) from None
        except Exception as error:
            # Its message may quote the request, so only its kind and its place are logged.
            _log.error("a completion failed: %s", kind_and_place(error))
            raise Refusal("the model failed", status=500, kind="server_error") from None
        finally:
            self._under_way.discard(task)

    async def _chat(self, request: web.BaseRequest, visit: RequestContext) -> web.StreamResponse:
        self._loaded()
        call = call_of(await self._admission.read(request, visit))
        engine = self._loaded(call.request.model)
        jobs = to_jobs(call)
        number = f"chatcmpl-{self._begun:x}-{next(self._numbers)}"
        completion = Completion(number, engine.model, int(time.time()))
        with self._places(len(jobs)):
            if call.stream:
                events = self._events(completion, engine, jobs, call)
                return await self._stream(request, visit, events)
            tasks = [asyncio.ensure_future(engine.generate(job)) for job in jobs]
            with self._working():
                try:
                    made = await asyncio.gather(*tasks)
                finally:
                    await _end(tasks)
        self._metrics.generated(*made)
        trees = list(map(_logprobs_tree, made))
        return json_response(completion.body(*map(_to_reply, made), logprobs=trees), visit)

    async def _stream(
        self, request: web.BaseRequest, visit: RequestContext, events: AsyncGenerator[bytes]
    ) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        response = web.StreamResponse(headers={**visit.headers, **headers})
        try:
            with self._working():
                async with aclosing(events):
                    async for event in events:
                        # Not before the first piece: a job that is refused gets its 400.
                        if not response.prepared:
                            await response.prepare(request)
                        await response.write(event)
        except Refusal as refusal:
            if not response.prepared:
                raise
            await response.write(_event(error_body(refusal)))
        return response

    async def _events(
        self, completion: Completion, engine: Engine, jobs: Sequence[Job], call: ChatCall
    ) -> AsyncGenerator[bytes]:
        done: dict[int, Generation] = {}
        begun = False
        async with aclosing(_stream_all(engine, jobs)) as pieces:
            async for index, piece in pieces:
                if not begun:
                    begun = True
                    yield _event(*map(completion.first_chunk, range(len(jobs))))
                if isinstance(piece, str):
                    yield _event(completion.text_chunk(piece, index))
                    continue
                done[index] = piece
                tree = _logprobs_tree(piece)
                yield _event(completion.last_chunk(_to_reply(piece), index, tree))
        made = [done[index] for index in range(len(jobs))]
        self._metrics.generated(*made)
        if call.stream_usage:
            yield _event(completion.usage_chunk(*map(_to_reply, made)))
        yield b"data: [DONE]\n\n"

    async def _embeddings(
        self, request: web.BaseRequest, visit: RequestContext
    ) -> web.StreamResponse:
        self._loaded()
        body = await self._admission.read(request, visit)
        try:
            asked = EmbeddingsRequest.model_validate(body)
        except ValidationError as error:
            param = str(error.errors(include_url=False, include_input=False)[0]["loc"][0])
            raise Refusal(_FAULTS[param], param=param) from None
        engine = self._loaded(str(asked.model or ""))
        if not isinstance(engine, EmbeddingEngine):
            text = f"{engine.model} makes no embeddings here"
            raise Refusal(text, status=501, kind="not_supported")
        texts = [asked.input] if isinstance(asked.input, str) else asked.input
        with self._places(1), self._working():
            found = await engine.embed(texts)
        rows: list[Mapping[str, object]] = []
        for index, each in enumerate(found):
            vector: object = each.vector
            if asked.encoding_format == "base64":
                packed = struct.pack(f"<{len(each.vector)}f", *each.vector)
                vector = base64.b64encode(packed).decode()
            rows.append({"object": "embedding", "index": index, "embedding": vector})
        tokens = sum(each.tokens for each in found)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        tree = {"object": "list", "data": rows, "model": engine.model, "usage": usage}
        return json_response(tree, visit)

    async def _model(self, request: web.BaseRequest, visit: RequestContext) -> web.StreamResponse:
        return json_response(self._entry(request.path.removeprefix("/v1/models/")), visit)

    def _entry(self, model: str = "") -> Mapping[str, object]:
        engine = self._loaded(model)
        entry = {"id": engine.model, "object": "model", "created": self._begun}
        return {**entry, "owned_by": "promptcodebook", "context_length": engine.context_length}

    async def _page(self, request: web.BaseRequest, visit: RequestContext) -> web.StreamResponse:
        headers = {**visit.headers, "Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._metrics.page(), headers=headers)

    async def _health(self, request: web.BaseRequest, visit: RequestContext) -> web.StreamResponse:
        return json_response({"status": self._state}, visit, 200 if self._state == "ok" else 503)


def _unavailable(text: str) -> Refusal:
    return Refusal(text, status=503, kind="server_error", retry_after=1)


def _event(*bodies: Mapping[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies)


class ModelMetrics(Metrics):
    """Those of a local model; `load` is asked when the page is read."""

    def __init__(self, in_flight: Callable[[], int], load: Callable[[], Load]) -> None:
        super().__init__("serving a local model", in_flight)
        about = "Tokens read in prompts, taken from the cache, and written."
        self._tokens = self.counter("pco_tokens", about, "kind")
        self.gauge("pco_running", "Completions that are generated now.", lambda: load().running)
        self.gauge("pco_waiting", "Completions that wait for a place.", lambda: load().waiting)
        for kind in ("prompt", "cached", "completion"):
            self._tokens.labels(kind)

    def generated(self, *choices: Generation) -> None:
        """The choices of one request, which share its prompt."""
        self._tokens.labels("prompt").inc(choices[0].prompt_tokens)
        self._tokens.labels("cached").inc(choices[0].cached_tokens or 0)
        self._tokens.labels("completion").inc(sum(each.completion_tokens for each in choices))
