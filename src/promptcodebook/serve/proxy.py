"""A policy behind /v1/chat/completions: each request gets its composed prompt and goes upstream.

The proxy reads the model's name and the text that is routed. It puts the prompt before the
messages, sets the model, and passes on everything else as it came.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, cast

from aiohttp import web

from promptcodebook.errors import PcoError
from promptcodebook.serve import description as bodies
from promptcodebook.serve.admission import (
    HUNG_UP,
    Address,
    Admission,
    Metrics,
    Paths,
    Visit,
    json_response,
    showing,
)
from promptcodebook.serve.completions import Refusal, error_body
from promptcodebook.serve.spending import Record, Records, Spending, now
from promptcodebook.serve.upstream import Answer, Upstream
from promptcodebook.serve.versions import Composed, Composing, Live

Messages = Sequence[Mapping[str, Any]]

_log = logging.getLogger(__name__)
_INSTRUCTS = ("system", "developer")
_PREFIX = "pco/"
_HASH = re.compile(r"sha256:[0-9a-f]{12,64}")
_PIECE = 2**16  # Bytes of a body that are handed over at once.


def input_of(messages: Messages, *, whole: bool = False) -> str:
    """x: the text of the last user turn, or of the whole conversation but for its instructions."""
    if not whole:
        spoken = (_text_of(m) for m in reversed(messages) if m["role"] == "user")
        return next(spoken, "")
    turns = [(m["role"], _text_of(m)) for m in messages if m["role"] not in _INSTRUCTS]
    return "\n\n".join(f"{role}: {text}" for role, text in turns if text)


def _text_of(message: Mapping[str, Any]) -> str:
    content: Any = message.get("content")
    if not isinstance(content, list):
        return content or ""
    texts = [part.get("text") for part in cast("list[dict[str, object]]", content)]
    return "\n".join(text for text in texts if isinstance(text, str))


def place_prompt(messages: Messages, prompt: str, *, joined: bool = False) -> Messages:
    """The prompt goes before them; `joined`: into an instruction of the caller's that is first."""
    if not prompt:
        return messages
    first = messages[0]
    if not joined or first["role"] not in _INSTRUCTS:
        return [{"role": "system", "content": prompt}, *messages]
    told, content = prompt, first.get("content")
    if isinstance(content, list):
        told = [{"type": "text", "text": prompt}, *cast("list[object]", content)]
    elif content:
        told = f"{prompt}\n\n{content}"
    return [{**first, "content": told}, *messages[1:]]


class Tracing(Protocol):
    """Spans of requests: `request` of one to the model `name`, which hears its status; `call` of
    what is asked for it, which hears the answer."""

    def request(
        self, name: str, headers: Mapping[str, str]
    ) -> AbstractContextManager[Callable[[int], None]]: ...

    def call(
        self, body: Mapping[str, Any], size: int
    ) -> AbstractContextManager[Callable[[Answer], None]]: ...


@dataclass
class Proxy:
    """The paths under which a policy is asked; `name` is without 'pco/'. `conversation` = all turns
    are the input, not the last one alone; `joined` = the prompt goes into the caller's own first
    instruction; `texts` = what requests say is recorded too."""

    name: str
    live: Live
    upstream: Upstream
    admission: Admission
    records: Records | None = None
    spending: Spending | None = None
    conversation: bool = False
    joined: bool = False
    texts: bool = False
    tracing: Tracing | None = None
    stopping: bool = False

    def __post_init__(self) -> None:
        self._begun = int(time.time())
        metrics = Metrics("serving a policy", lambda: self.admission.in_flight)
        about = "Prompts composed, by calls an answer and cache."
        self._prompts = metrics.counter("pco_prompts", about, "mode", "cached")
        about = "Prompts without a model's part, and why."
        self._fallbacks = metrics.counter("pco_fallbacks", about, "part", "reason")
        about, live = "Versions taken up since the start.", self.live
        metrics.gauge("pco_version_moves", about, lambda: live.moves)
        metrics.gauge("pco_version_failures", "Versions that failed.", lambda: live.failures)
        self._metrics = metrics

    @asynccontextmanager
    async def serving(
        self, host: str = "127.0.0.1", port: int = 0, poll_s: float = 0.25
    ) -> AsyncGenerator[Address]:
        """The server, listening while the block runs. At its end requests in flight may finish, and
        all that it was given is closed. Raises OSError when the port is taken."""
        paths: Paths = {
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/prompt": ("POST", self._prompt),
            "/v1/models": ("GET", showing(self._models)),
            "/v1/models/{name:.+}": ("GET", self._model),
            "/metrics": ("GET", self._page),
            "/healthz": ("GET", showing(lambda: {"status": "ok"})),
            "/readyz": ("GET", self._ready),
            "/openapi.json": ("GET", showing(bodies.description)),
        }
        watching = asyncio.ensure_future(self.live.watch(poll_s))
        try:
            async with self.admission.listening(paths, self._metrics, host, port) as address:
                try:
                    yield address
                finally:
                    self.stopping = True
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            await self.live.close()
            await self.upstream.close()
            for kept in (self.records, self.spending):
                if kept is not None:
                    await asyncio.to_thread(kept.close)

    async def _chat(self, request: web.BaseRequest, visit: Visit) -> web.StreamResponse:
        if self.tracing is None:
            return await self._answered(request, visit)
        with self.tracing.request(_PREFIX + self.name, request.headers) as ended:
            try:
                response = await self._answered(request, visit)
            except Refusal as refusal:
                ended(refusal.status)
                raise
            ended(response.status)
            return response

    async def _answered(self, request: web.BaseRequest, visit: Visit) -> web.StreamResponse:
        body = await self.admission.read(request, visit)
        bodies.check(bodies.ChatRequest, body)
        messages: Messages = body["messages"]
        with (
            self.admission.place(visit),
            self.live.using(await self._version(body.get("model"))) as composing,
        ):
            text = input_of(messages, whole=self.conversation)
            composed = await self._composed(composing, text, visit)
            status = HUNG_UP
            try:
                sent = place_prompt(messages, composed.prompt, joined=self.joined)
                response = await self._passed_on(request, {**body, "messages": sent}, visit)
                status = response.status
                return response
            except Refusal as refusal:
                status = refusal.status
                raise
            finally:
                self._record(visit, composing, composed, text, status)

    async def _passed_on(
        self, request: web.BaseRequest, asked: Mapping[str, Any], visit: Visit
    ) -> web.StreamResponse:
        upstream, spending = self.upstream, self.spending
        body = asked if spending is None else spending.measured(asked)
        data = await self.admission.apart(visit, lambda: upstream.body(body))
        wanted = spending is None or body.get("stream_options") == asked.get("stream_options")
        reads = "ignored" if spending is None and self.tracing is None else "shown"
        with ExitStack() as calls:
            told = [
                calls.enter_context(each.call(body, len(data)))
                for each in (spending, self.tracing)
                if each is not None
            ]
            answer = await upstream.ask(data, usage=reads if wanted else "hidden")
            response = await self._respond(request, answer, visit)
            for tell in told:
                tell(answer)
            return response

    async def _prompt(self, request: web.BaseRequest, visit: Visit) -> web.StreamResponse:
        body = await self.admission.read(request, visit)
        given = bodies.check(bodies.PromptRequest, body).input
        if given is None:
            bodies.check(bodies.ChatRequest, body)
            given = input_of(body["messages"], whole=self.conversation)
        with (
            self.admission.place(visit),
            self.live.using(await self._version(body.get("model"))) as composing,
        ):
            composed = await self._composed(composing, given, visit)
            self._record(visit, composing, composed, given, 200)
            made = bodies.Prompt(
                id=visit.id,
                model=_PREFIX + self.name,
                version=composing.version,
                mode=composing.mode,
                route=composed.route.indices,
                fallbacks=composed.fallbacks,
                cached=bool(composed.cached),
                prompt=composed.prompt,
            )
            return json_response(made.model_dump(), visit)

    async def _composed(self, composing: Composing, text: str, visit: Visit) -> Composed:
        if self.spending is not None:
            self.spending.paying(visit.caller)
        composed = await composing.compose(text)
        self._prompts.labels(composing.mode, composed.cached or "no").inc()
        for fallback in composed.fallbacks:
            self._fallbacks.labels(*fallback.split(":")).inc()
        visit.headers |= {
            "x-pco-version": composing.version,
            "x-pco-route": ",".join(map(str, composed.route.indices)),
            "x-pco-mode": composing.mode,
            "x-pco-cache": composed.cached or "no",
        }
        if composed.fallbacks:
            visit.headers["x-pco-fallback"] = ",".join(composed.fallbacks)
        return composed

    async def _version(self, model: object) -> Composing:
        """The version of now by the ref's name, or also one from before by its hash. Refusal."""
        live, name = self.live, str(model or "").removeprefix(_PREFIX)
        hashed = _HASH.fullmatch(name)
        if name in ("", self.name) or (hashed and live.version.startswith(name)):
            return live.now
        if hashed:
            try:
                earlier = await live.earlier(name)
            except PcoError as error:
                _log.error("%s cannot be served: %s", name, error)
                said = f"{name} cannot be served now"
                raise Refusal(said, status=503, kind="server_error") from None
            if earlier is not None:
                return earlier
        text = f"no such model here; there is {_PREFIX + self.name!r}"
        raise Refusal(text, status=404, kind="model_not_found", param="model")

    async def _respond(
        self, request: web.BaseRequest, answer: Answer, visit: Visit
    ) -> web.StreamResponse:
        headers = {**answer.headers, **visit.headers, "Content-Type": answer.kind}
        if answer.pieces is None and len(answer.body) <= _PIECE:
            return web.Response(body=answer.body, status=answer.status, headers=headers)
        response = web.StreamResponse(status=answer.status, headers=headers)
        if answer.pieces is None:
            response.content_length = len(answer.body)
        else:
            response.headers["Cache-Control"] = "no-store"
        try:
            await response.prepare(request)
            async with aclosing(answer.pieces or _cut(answer.body)) as pieces:
                try:
                    async for piece in pieces:
                        await self._write(request, response, piece)
                except Refusal as refusal:
                    said = json.dumps(error_body(refusal)).encode()
                    await self._write(request, response, b"\n\ndata: " + said + b"\n\n")
        finally:
            answer.close()
        await response.write_eof()
        return response

    async def _write(
        self, request: web.BaseRequest, response: web.StreamResponse, piece: bytes
    ) -> None:
        """Hands a piece to the caller; hangs up on one who does not take it in time."""
        try:
            async with asyncio.timeout(self.admission.limits.write_s):
                await response.write(piece)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError from None

    def _record(
        self, visit: Visit, composing: Composing, composed: Composed, text: str, status: int
    ) -> None:
        if self.records is None:
            return
        route = composed.route
        own: dict[str, Any] = {}
        if self.texts:
            own = {"input": text, "analysis": route.analysis, "constraints": route.constraints}
        self.records.put(
            Record(
                id=visit.id,
                time=now(),
                model=_PREFIX + self.name,
                version=composing.version,
                mode=composing.mode,
                route=route.indices,
                instincts=tuple(composing.policy.codebook[k].text for k in route.indices),
                prompt=composed.prompt,
                fallbacks=composed.fallbacks,
                cached=composed.cached,
                status=status,
                **own,
            )
        )

    def _models(self) -> dict[str, Any]:
        version = self.live.version
        named = [self._entry(name, version) for name in (self.name, version)]
        return bodies.ModelList(data=named).model_dump()

    async def _model(self, request: web.BaseRequest, visit: Visit) -> web.StreamResponse:
        name = request.path.removeprefix("/v1/models/")
        version = (await self._version(name)).version
        entry = self._entry(name.removeprefix(_PREFIX), version)
        return json_response(entry.model_dump(), visit)

    def _entry(self, name: str, version: str) -> bodies.Model:
        return bodies.Model(id=_PREFIX + name, created=self._begun, version=version)

    async def _page(self, request: web.BaseRequest, visit: Visit) -> web.StreamResponse:
        headers = {**visit.headers, "Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._metrics.page(), headers=headers)

    async def _ready(self, request: web.BaseRequest, visit: Visit) -> web.StreamResponse:
        said, status = ("stopping", 503) if self.stopping else ("ok", 200)
        return json_response({"status": said, "version": self.live.version}, visit, status)


async def _cut(body: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), _PIECE):
        yield body[start : start + _PIECE]
