"""A policy behind /v1/chat/completions: each request gets its composed prompt and goes upstream.
The proxy reads the model's name and the text that is routed. It puts the prompt behind the caller's
own instructions, sets the model, and passes on everything else as it came. A request to
/v1/responses goes the same way as a chat completion (responses.py)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, cast

from aiohttp import web

from promptcodebook.calls import Tree, shown_part
from promptcodebook.deploy.http.admission import (
    HUNG_UP,
    Address,
    Admission,
    Answers,
    Metrics,
    Paths,
    RequestContext,
    json_response,
    showing,
)
from promptcodebook.deploy.http.completions import Refusal, apart, describe, error_body
from promptcodebook.deploy.serve import description as bodies
from promptcodebook.deploy.serve.feedback import Online
from promptcodebook.deploy.serve.responses import ResponseBuilder, chat_body
from promptcodebook.deploy.serve.spending import Records, RequestRecord, Spending, now
from promptcodebook.deploy.serve.upstream import Upstream, UpstreamAnswer
from promptcodebook.deploy.serve.versions import Composed, Composing, Live
from promptcodebook.errors import PcoError, did_you_mean
from promptcodebook.lm.wire import told_usage

Messages = Sequence[Mapping[str, Any]]

_log = logging.getLogger(__name__)
_INSTRUCTS = ("system", "developer")
_PREFIX = "pco/"
_HASH = re.compile(r"sha256:[0-9a-f]{12,64}")
_PIECE = 2**16  # Bytes of a body that are handed over at once.


def input_of(messages: Messages, *, whole: bool = False) -> tuple[str, tuple[Tree, ...]]:
    """x: the last user turn, or the whole conversation but for its instructions. Its text, and its
    images and other parts."""
    if whole:
        turns = [m for m in messages if m["role"] not in _INSTRUCTS]
    else:
        turns = [m for m in messages if m["role"] == "user"][-1:]
    media = tuple(part for turn in turns for part in _parts_of(turn) if part["type"] != "text")
    if not whole:
        return "".join(map(_text_of, turns)), media
    said = [(turn["role"], _text_of(turn)) for turn in turns]
    return "\n\n".join(f"{role}: {text}" for role, text in said if text), media


def _parts_of(message: Mapping[str, Any]) -> Sequence[Tree]:
    content = message.get("content")
    parts = cast("list[Tree]", content) if isinstance(content, list) else []
    known = [part for part in parts if isinstance(part.get("type"), str)]
    return [part for part in known if part["type"] != "text" or isinstance(part.get("text"), str)]


def _text_of(message: Mapping[str, Any]) -> str:
    return "\n".join(map(shown_part, _parts_of(message))) or message.get("content") or ""


def first_turn(messages: Messages) -> Messages:
    """The conversation as it was at its first request: up to the user's first turn with a text."""
    turns = (n for n, m in enumerate(messages, 1) if m["role"] == "user" and _text_of(m).strip())
    return messages[: next(turns, len(messages))]


def place_prompt(
    messages: Messages, prompt: str, *, joined: bool = False, first: bool = False
) -> Messages:
    """The prompt goes behind the instructions that the caller begins with: they never change, so a
    model's server keeps them as a prefix. `first`: before them. `joined`: into the one beside it.
    """
    if not prompt:
        return messages
    own = next((n for n, m in enumerate(messages) if m["role"] not in _INSTRUCTS), len(messages))
    if not own:
        return [{"role": "system", "content": prompt}, *messages]
    at = 0 if first else own
    if not joined:
        said = {"role": messages[0]["role"], "content": prompt}
        return [*messages[:at], said, *messages[at:]]
    at = max(0, at - 1)
    content = messages[at].get("content")
    if isinstance(content, list):
        parts, mine = cast("list[object]", content), [{"type": "text", "text": prompt}]
        whole = [*mine, *parts] if first else [*parts, *mine]
    else:
        pair = (prompt, content) if first else (content, prompt)
        whole = "\n\n".join(filter(None, pair))
    return [*messages[:at], {**messages[at], "content": whole}, *messages[at + 1 :]]


class Tracing(Protocol):
    """Spans of requests: `request` of one to the model `name`, which hears its status; `call` of
    what is asked for it, which hears the answer."""

    def request(
        self, name: str, headers: Mapping[str, str]
    ) -> AbstractContextManager[Callable[[int], None]]: ...

    def call(
        self, body: Mapping[str, Any], size: int
    ) -> AbstractContextManager[Callable[[UpstreamAnswer], None]]: ...


@dataclass
class Proxy:
    """The paths under which a policy is asked. `name` is without 'pco/', and `names` are further
    ones. `conversation`: all turns are the input, not the last one alone. `sticky`: a conversation
    keeps its prompt; it is known by its first turn ('conversation'), the body's 'user' or a
    'header:NAME'. `joined` and `first`: where the prompt goes. `texts`: what requests say is
    recorded too. `online`: what is learned from callers. `cap` is the model's own field for a
    length."""

    name: str
    live: Live
    upstream: Upstream
    admission: Admission
    records: Records | None = None
    spending: Spending | None = None
    names: tuple[str, ...] = ()
    conversation: bool = False
    sticky: str = ""
    joined: bool = False
    first: bool = False
    texts: bool = False
    tracing: Tracing | None = None
    online: Online | None = None
    cap: str = "max_tokens"
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
        if self.online is not None:
            self.online.measure(metrics)
        self._metrics = metrics

    @asynccontextmanager
    async def serving(
        self, host: str = "127.0.0.1", port: int = 0, poll_s: float = 0.25
    ) -> AsyncGenerator[Address]:
        """The server, listening while the block runs. At its end requests in flight may finish, and
        all that it was given is closed. Raises OSError when the port is taken."""
        paths: Paths = {
            "/v1/chat/completions": ("POST", self._traced(self._chat)),
            "/v1/responses": ("POST", self._traced(self._responses)),
            "/v1/prompt": ("POST", self._prompt),
            "/v1/models": ("GET", showing(self._models)),
            "/v1/models/{name:.+}": ("GET", self._model),
            "/metrics": ("GET", self._page),
            "/healthz": ("GET", showing(lambda: {"status": "ok"})),
            "/readyz": ("GET", self._ready),
            "/openapi.json": ("GET", showing(lambda: bodies.description(self.online is not None))),
        }
        watching = [asyncio.ensure_future(self.live.watch(poll_s))]
        if self.online is not None:
            paths = {**paths, **self.online.paths(self.admission)}
            watching.append(asyncio.ensure_future(self.online.watch()))
            watching.append(asyncio.ensure_future(self.online.judging()))
        try:
            async with self.admission.listening(paths, self._metrics, host, port) as address:
                try:
                    yield address
                finally:
                    self.stopping = True
        finally:
            for task in watching:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await self.live.close()
            await self.upstream.close()
            for kept in (self.records, self.spending, self.online):
                if kept is not None:
                    await asyncio.to_thread(kept.close)

    def _traced(self, answer: Answers) -> Answers:
        tracing = self.tracing
        if tracing is None:
            return answer

        async def traced(request: web.BaseRequest, visit: RequestContext) -> web.StreamResponse:
            with tracing.request(_PREFIX + self.name, request.headers) as ended:
                try:
                    response = await answer(request, visit)
                except Refusal as refusal:
                    ended(refusal.status)
                    raise
                ended(response.status)
                return response

        return traced

    async def _chat(self, request: web.BaseRequest, visit: RequestContext) -> web.StreamResponse:
        body = await self.admission.read(request, visit)
        bodies.check(bodies.ChatRequest, body)
        return await self._completed(request, visit, body)

    async def _responses(
        self, request: web.BaseRequest, visit: RequestContext
    ) -> web.StreamResponse:
        given = await self.admission.read(request, visit)
        body = await self.admission.apart(visit, lambda: chat_body(given, self.cap))
        made = ResponseBuilder(given, visit.id.partition("-")[2])
        return await self._completed(request, visit, body, made.turned)

    async def _completed(
        self,
        request: web.BaseRequest,
        visit: RequestContext,
        body: Mapping[str, Any],
        turned: Callable[[UpstreamAnswer], UpstreamAnswer] = lambda answer: answer,
    ) -> web.StreamResponse:
        """The model's answer to a body of chat completions, `turned` into what the caller reads."""
        text, media, thread = self._routed(request, visit, body)
        key = self._split_key(request, visit, text, thread)
        with (
            self.admission.place(visit),
            self.live.using(await self._version(body.get("model"), visit, key)) as composing,
        ):
            seen = text, media
            composed = await self._composed(composing, seen, visit, thread, body.get("model"))
            status = HUNG_UP
            try:
                prompt, told = apart(composed.prompt)
                given, where = body["messages"], {"joined": self.joined, "first": self.first}
                asked = {**body, "messages": place_prompt(given, prompt, **where)}
                if told and body.get("tools"):
                    asked["tools"] = describe(body["tools"], told)
                response = await self._passed_on(request, asked, visit, turned)
                status = response.status
                if self.sticky and input_of(given, whole=self.conversation)[0] != text:
                    visit.output = ""  # it answers a later turn than the one that is kept
                return response
            except Refusal as refusal:
                status = refusal.status
                raise
            finally:
                self._record(visit, composing, composed, text, status)
                if self.online is not None:
                    self.online.served(visit, composing, composed, text, status)

    def _routed(
        self, request: web.BaseRequest, visit: RequestContext, body: Mapping[str, Any]
    ) -> tuple[str, tuple[Tree, ...], bytes | None]:
        """The text to route with its images, and what its conversation is known by where the
        caller names it."""
        messages: Messages = body["messages"]
        if not self.sticky:
            return *input_of(messages, whole=self.conversation), None
        named: object = body.get("user") if self.sticky == "user" else None
        if header := self.sticky.partition(":")[2]:
            named = request.headers.get(header)
        thread = None
        if isinstance(named, str) and named:
            # With the caller's name in it, so that no two callers share a conversation.
            said = f"{visit.caller} {named}".encode("utf-8", "surrogatepass")
            thread = hashlib.sha256(said).digest()
        return *input_of(first_turn(messages), whole=self.conversation), thread

    def _split_key(
        self, request: web.BaseRequest, visit: RequestContext, text: str, thread: bytes | None
    ) -> str:
        """What decides whether a request gets the canary."""
        split = self.live.canary.split if self.live.canary is not None else ""
        if header := split.partition(":")[2]:
            return request.headers.get(header, visit.id)
        if split == "caller":
            return visit.caller or visit.id
        if thread is None and self.sticky == "conversation":
            thread = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        return visit.id if thread is None else thread.hex()

    async def _passed_on(
        self,
        request: web.BaseRequest,
        asked: Mapping[str, Any],
        visit: RequestContext,
        turned: Callable[[UpstreamAnswer], UpstreamAnswer],
    ) -> web.StreamResponse:
        upstream, spending = self.upstream, self.spending
        body = asked if spending is None else spending.measured(asked)
        data = await self.admission.apart(visit, lambda: upstream.body(body))
        wanted = spending is None or body.get("stream_options") == asked.get("stream_options")
        unread = spending is None and self.tracing is None and self.online is None
        reads = "ignored" if unread else "shown"
        with ExitStack() as calls:
            told = [
                calls.enter_context(each.call(body, len(data)))
                for each in (spending, self.tracing)
                if each is not None
            ]
            answer = await upstream.ask(data, usage=reads if wanted else "hidden")
            response = await self._respond(request, turned(answer), visit)
            for tell in told:
                tell(answer)
            if self.online is not None and (usage := told_usage(answer.usage)):
                visit.tokens = usage.tokens
            if self.online is not None and self.online.texts:
                visit.output = answer.output
            return response

    async def _prompt(self, request: web.BaseRequest, visit: RequestContext) -> web.StreamResponse:
        body = await self.admission.read(request, visit)
        given, media, thread = bodies.check(bodies.PromptRequest, body).input, (), None
        if given is None:
            bodies.check(bodies.ChatRequest, body)
            given, media, thread = self._routed(request, visit, body)
        key = self._split_key(request, visit, given, thread)
        with (
            self.admission.place(visit),
            self.live.using(await self._version(body.get("model"), visit, key)) as composing,
        ):
            seen = given, media
            composed = await self._composed(composing, seen, visit, thread, body.get("model"))
            self._record(visit, composing, composed, given, 200)
            if self.online is not None:
                self.online.served(visit, composing, composed, given, 200)
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

    async def _composed(
        self,
        composing: Composing,
        seen: tuple[str, tuple[Tree, ...]],
        visit: RequestContext,
        thread: bytes | None,
        model: object,
    ) -> Composed:
        text, media = seen
        if self.spending is not None:
            self.spending.paying(visit.caller)
        key = "" if self.online is None else self.online.key(visit, text, thread, model)
        composed = await composing.compose(text, thread, key, media)
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

    async def _version(self, model: object, visit: RequestContext, key: str = "") -> Composing:
        """The version of now by the ref's name, or the canary where there is a `key` that tries it;
        one of both or also one from before by its hash. Refusal."""
        live, name = self.live, str(model or "").removeprefix(_PREFIX)
        hashed = _HASH.fullmatch(name)
        if name in ("", self.name) or model in self.names:
            if key and live.tried is not None and live.canary and live.canary.tries(key):
                visit.arm = "canary"
                return live.tried
            return live.now
        if hashed:
            visit.arm = "named"
            for served in (live.now, live.tried):
                if served is not None and served.version.startswith(name):
                    return served
            try:
                earlier = await live.earlier(name)
            except PcoError as error:
                _log.error("%s cannot be served: %s", name, error)
                said = f"{name} cannot be served now"
                raise Refusal(said, status=503, kind="server_error") from None
            if earlier is not None:
                return earlier
        known = [_PREFIX + self.name, *self.names]
        text = f"no such model here{did_you_mean(name, known)}; there is "
        text += " and ".join(map(repr, known))
        raise Refusal(text, status=404, kind="model_not_found", param="model")

    async def _respond(
        self, request: web.BaseRequest, answer: UpstreamAnswer, visit: RequestContext
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
        self,
        visit: RequestContext,
        composing: Composing,
        composed: Composed,
        text: str,
        status: int,
    ) -> None:
        if self.records is None:
            return
        route = composed.route
        own: dict[str, Any] = {}
        if self.texts:
            own = {"input": text, "analysis": route.analysis, "constraints": route.constraints}
        self.records.put(
            RequestRecord(
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
        names = (_PREFIX + self.name, _PREFIX + version, *self.names)
        listed = [self._entry(name, version) for name in names]
        return bodies.ModelList(data=listed).model_dump()

    async def _model(self, request: web.BaseRequest, visit: RequestContext) -> web.StreamResponse:
        name = request.path.removeprefix("/v1/models/")
        version = (await self._version(name, visit)).version
        if name not in self.names:
            name = _PREFIX + name.removeprefix(_PREFIX)
        return json_response(self._entry(name, version).model_dump(), visit)

    def _entry(self, name: str, version: str) -> bodies.Model:
        return bodies.Model(id=name, created=self._begun, version=version)

    async def _page(self, request: web.BaseRequest, visit: RequestContext) -> web.StreamResponse:
        headers = {**visit.headers, "Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._metrics.page(), headers=headers)

    async def _ready(self, request: web.BaseRequest, visit: RequestContext) -> web.StreamResponse:
        said, status = ("stopping", 503) if self.stopping else ("ok", 200)
        body = {"status": said, "version": self.live.version}
        if self.online is not None:
            body["recording"] = "failed" if self.online.log.fails else "ok"
        if (canary := self.live.canary) is not None:
            body |= {"canary": canary.version, "canary_state": self._canary_state()}
        return json_response(body, visit, status)

    def _canary_state(self) -> str:
        if self.live.tried is None:
            return "it cannot be served, and today's version answers"
        if self.online is None or self.online.judge is None:
            return "not judged here: no feedback without --feedback"
        decision = self.online.judge.decision
        return "not yet judged" if decision is None else decision.why


async def _cut(body: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), _PIECE):
        yield body[start : start + _PIECE]
