"""A policy behind /v1/chat/completions: each request gets its composed prompt and goes upstream.
The proxy reads the model's name and the text that is routed. It puts the prompt behind the caller's
own instructions, sets the model, and passes on everything else as it came. A request to
/v1/responses goes the same way as a chat completion (responses.py)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from aiohttp import web
from pydantic import BaseModel, Field, InstanceOf

from promptcodebook.calls import Role, Usage
from promptcodebook.deploy.http.admission import (
    HUNG_UP,
    Address,
    Admission,
    Answers,
    Metrics,
    RequestContext,
    json_response,
    showing,
)
from promptcodebook.deploy.http.completions import AnyText, Refusal, apart, describe, read_fields
from promptcodebook.deploy.serve.feedback_endpoint import Online
from promptcodebook.deploy.serve.placement import Placement, RoutedInput
from promptcodebook.deploy.serve.responses import ResponseBuilder, chat_body
from promptcodebook.deploy.serve.spending import Records, RequestRecord, Spending, now
from promptcodebook.deploy.serve.streaming import AnswerRelay, Tracing
from promptcodebook.deploy.serve.upstream import Upstream, UpstreamAnswer
from promptcodebook.deploy.serve.versions import Composed, Composing, Live
from promptcodebook.errors import did_you_mean

_log = logging.getLogger(__name__)
_PREFIX = "pco/"
_Model = Annotated[AnyText | None, Field(description="pco/NAME, or left out")]
_Count = Annotated[
    int | None, Field(strict=True, ge=1, le=128, description="a whole number from 1 to 128")
]
_Length = Annotated[
    int | None, Field(strict=True, ge=1, description="a whole number of at least 1")
]


class _Turn(BaseModel):
    role: AnyText
    content: AnyText | list[InstanceOf[dict[str, Any]]] | None = None


_Messages = Annotated[
    list[_Turn],
    Field(
        min_length=1,
        description="a list of at least one message, each an object with a role, and with a string "
        "or a list of parts as its content",
    ),
]


class RoutedChatRequest(BaseModel):
    """What is read here, the numbers that decide what a call may cost among them."""

    model: _Model = None
    messages: _Messages
    n: _Count = None
    best_of: _Count = None
    max_tokens: _Length = None
    max_completion_tokens: _Length = None


class PromptRequest(BaseModel):
    """A body has one of `input` and `messages`."""

    model: _Model = None
    input: AnyText | None = Field(None, description="a text")
    messages: _Messages | None = None


@dataclass
class Proxy:
    """The paths under which a policy is asked. `name` is without 'pco/', and `names` are further
    ones. `placement` says what is routed and where the prompt goes. `texts`: what requests say is
    recorded too. `online`: what is learned from callers."""

    name: str
    live: Live
    upstream: Upstream
    admission: Admission
    records: Records | None = None
    spending: Spending | None = None
    names: tuple[str, ...] = ()
    placement: Placement = Placement()
    texts: bool = False
    tracing: Tracing | None = None
    online: Online | None = None
    stopping: bool = False

    def __post_init__(self) -> None:
        self._begun = int(time.time())
        metrics = Metrics("serving a policy", lambda: self.admission.in_flight)
        about = "Prompts composed, by calls per answer and by cache use."
        self._prompts = metrics.counter("pco_prompts", about, "mode", "cached")
        about = "Prompts made without a model, by reason."
        self._fallbacks = metrics.counter("pco_fallbacks", about, "part", "reason")
        about = "Calls made for answers, by whether their usage is known."
        self._calls = metrics.counter("pco_calls", about, "role", "known")
        about = "Tokens used by calls made for answers."
        self._tokens = metrics.counter("pco_tokens", about, "role", "kind")
        about, live = "Versions that took effect since the start.", self.live
        metrics.gauge("pco_version_moves", about, lambda: live.moves)
        metrics.gauge("pco_version_failures", "Versions that failed.", lambda: live.failures)
        if self.online is not None:
            self.online.measure(metrics)
        self._metrics = metrics
        self._relay = AnswerRelay(
            self.upstream,
            self.admission,
            self.spending,
            self.tracing,
            texts=self.online is not None and self.online.texts,
        )

    @asynccontextmanager
    async def serving(
        self, host: str = "127.0.0.1", port: int = 0, poll_s: float = 0.25
    ) -> AsyncGenerator[Address]:
        """The server, listening while the block runs. At its end requests in flight may finish, and
        all that it was given is closed. Raises OSError when the port is taken."""
        paths: dict[str, tuple[str, Answers]] = {
            "/v1/chat/completions": ("POST", self._traced(self._chat)),
            "/v1/responses": ("POST", self._traced(self._responses)),
            "/v1/prompt": ("POST", self._prompt),
            "/v1/models": ("GET", showing(self._models)),
            "/v1/models/{name}": ("GET", self._model),
            "/metrics": ("GET", self._page),
            "/healthz": ("GET", showing(lambda: {"status": "ok"})),
            "/readyz": ("GET", self._ready),
        }
        watching = [asyncio.ensure_future(self.live.watch(poll_s))]
        if (online := self.online) is not None:
            paths["/v1/feedback"] = ("POST", partial(online.answer, self.admission))
            watching.append(asyncio.ensure_future(online.watch()))
            watching.append(asyncio.ensure_future(online.judging()))
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
        visit.slices = self.online.slices_of(body) if self.online is not None else ()
        return await self._completed(request, visit, body)

    async def _responses(
        self, request: web.BaseRequest, visit: RequestContext
    ) -> web.StreamResponse:
        given = await self.admission.read(request, visit)
        visit.slices = self.online.slices_of(given) if self.online is not None else ()
        body = await self.admission.apart(visit, lambda: chat_body(given, self.upstream.cap))
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
        read_fields(RoutedChatRequest, body)
        given = self.placement.routed(body, request.headers, visit.caller)
        async with self._composed(request, visit, body, given) as (composing, composed):
            status = HUNG_UP
            try:
                prompt, of_tools = apart(composed.prompt)
                messages = body["messages"]
                asked = {**body, "messages": self.placement.place(messages, prompt)}
                if of_tools and body.get("tools"):
                    asked["tools"] = describe(body["tools"], of_tools)
                response = await self._relay.answer(request, asked, composing.fields, visit, turned)
                status = response.status
                if self.placement.sticky and self.placement.input_of(messages)[0] != given.text:
                    visit.output = ""  # it answers a later turn than the one that is kept
                return response
            except Refusal as refusal:
                status = refusal.status
                raise
            finally:
                self._record(visit, composing, composed, given.text, status)

    def _key(self, request: web.BaseRequest, visit: RequestContext, given: RoutedInput) -> str:
        """Key that assigns a request to the canary or to the current version."""
        split = self.live.canary.split if self.live.canary is not None else ""
        if header := split.partition(":")[2]:
            return request.headers.get(header, visit.id)
        if split == "caller":
            return visit.caller or visit.id
        return self.placement.key(visit.id, given)

    async def _prompt(self, request: web.BaseRequest, visit: RequestContext) -> web.StreamResponse:
        body = await self.admission.read(request, visit)
        text = read_fields(PromptRequest, body).input
        if text is None:
            read_fields(RoutedChatRequest, body)
            given = self.placement.routed(body, request.headers, visit.caller)
        else:
            given = RoutedInput(text)
        async with self._composed(request, visit, body, given) as (composing, composed):
            visit.arm = "prompt"  # no user saw an answer
            self._record(visit, composing, composed, given.text, 200)
            made = {
                "object": "prompt",
                "id": visit.id,
                "model": _PREFIX + self.name,
                "version": composing.version,
                "mode": composing.mode,
                "route": composed.route.indices,
                "fallbacks": composed.fallbacks,
                "cached": bool(composed.cached),
                "prompt": composed.prompt,
            }
            return json_response(made, visit)

    @asynccontextmanager
    async def _composed(
        self,
        request: web.BaseRequest,
        visit: RequestContext,
        body: Mapping[str, Any],
        given: RoutedInput,
    ) -> AsyncGenerator[tuple[Composing, Composed]]:
        """The version that a request gets, kept while the block runs, and its prompt. Raises
        Refusal."""
        key, model = self._key(request, visit, given), body.get("model")
        with (
            self.admission.place(visit),
            self.live.using(self._version(model, visit, key)) as composing,
        ):
            if self.spending is not None:
                self.spending.paying(visit.caller)
            explored = self.online is not None and self.online.explores
            draw = self.placement.key(visit.id, given) if explored else ""
            composed = await composing.compose(
                given.text, given.thread, draw, given.media, visit.caller
            )
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
            visit.spent |= composed.usage
            spent = visit.usage_text
            visit.headers |= {"x-pco-compose-usage": spent, "x-pco-usage": spent}
            try:
                yield composing, composed
            finally:
                self._count(visit.spent)

    def _count(self, spent: Mapping[Role, Usage | None]) -> None:
        for role, usage in spent.items():
            if usage is None:
                self._calls.labels(role, "no").inc()
            elif usage.calls:
                self._calls.labels(role, "yes").inc(usage.calls)
                self._tokens.labels(role, "prompt").inc(usage.prompt_tokens)
                self._tokens.labels(role, "completion").inc(usage.completion_tokens)

    def _version(self, model: object, visit: RequestContext, key: str = "") -> Composing:
        """The version of now, or the canary where there is a `key` that tries it. Raises
        Refusal."""
        live, name = self.live, str(model or "").removeprefix(_PREFIX)
        if name in ("", self.name) or model in self.names:
            if key and live.tried is not None and live.canary and live.canary.tries(key):
                visit.arm = "canary"
                return live.tried
            return live.now
        known = [_PREFIX + self.name, *self.names]
        text = f"no such model here{did_you_mean(name, known)}; there is "
        text += " and ".join(map(repr, known))
        raise Refusal(text, status=404, kind="model_not_found", param="model")

    def _record(
        self,
        visit: RequestContext,
        composing: Composing,
        composed: Composed,
        text: str,
        status: int,
    ) -> None:
        """Keeps what became of a request, for `pco explain` and for feedback."""
        if self.online is not None:
            self.online.served(visit, composing, composed, text, status)
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
        names = (_PREFIX + self.name, *self.names)
        return {"object": "list", "data": list(map(self._entry, names))}

    async def _model(self, request: web.BaseRequest, visit: RequestContext) -> web.StreamResponse:
        name = request.path.removeprefix("/v1/models/")
        self._version(name, visit)
        return json_response(
            self._entry(name if name in self.names else _PREFIX + self.name), visit
        )

    def _entry(self, name: str) -> dict[str, Any]:
        own = {"owned_by": "promptcodebook", "version": self.live.version}
        return {"id": name, "object": "model", "created": self._begun, **own}

    async def _page(self, request: web.BaseRequest, visit: RequestContext) -> web.StreamResponse:
        headers = {**visit.headers, "Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._metrics.page(), headers=headers)

    async def _ready(self, request: web.BaseRequest, visit: RequestContext) -> web.StreamResponse:
        state, status = ("stopping", 503) if self.stopping else ("ok", 200)
        body = {"status": state, "version": self.live.version}
        if self.online is not None:
            kept = (self.online.log, self.records, self.spending)
            body["recording"] = "failed" if any(each and each.fails for each in kept) else "ok"
        if (canary := self.live.canary) is not None:
            body |= {"canary": canary.version, "canary_state": self._canary_state()}
        return json_response(body, visit, status)

    def _canary_state(self) -> str:
        if self.live.tried is None:
            if self.live.untried:
                return "it cannot be served, so today's version answers"
            return "it is being loaded"
        if self.online is None or self.online.judge is None:
            return "not judged here: this server runs without --feedback"
        decision = self.online.judge.decision
        return "not yet judged" if decision is None else decision.why
