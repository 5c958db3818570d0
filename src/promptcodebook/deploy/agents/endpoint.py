"""The endpoint of one rollout: OpenAI's wire on the loopback, in front of the rollout's own Chat.
It puts the composed prompt in the place of the agent's own. Every request is a call of the
executor: budget, journal, cache and retries are the run's. What was said is kept as stages."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self, cast

from aiohttp import web

from promptcodebook.base.text import shorten
from promptcodebook.base.units import bytes_text
from promptcodebook.calls import Chat, Message, Reply, in_words, read_message, rewritten
from promptcodebook.deploy.http.completions import (
    ChatRequest,
    Completion,
    Refusal,
    apart,
    describe,
    descriptions,
    error_body,
    parse_body,
    read_fields,
)
from promptcodebook.deploy.serve.responses import ResponseBuilder, chat_body
from promptcodebook.deploy.serve.upstream import UpstreamAnswer
from promptcodebook.errors import ExecutorError, LMError
from promptcodebook.types import Prompt, Stage, Turn

_Tree = dict[str, Any]
MARKER = re.compile(r"\{\{\s*pco(?:\s*:\s*([\w.-]+))?\s*\}\}")
MODEL = "promptcodebook"  # what the endpoint calls its model; a request may name any, or none
# Fields of a request that the run decides, or that are nothing to a model.
_RUNS = {
    *("model", "messages", "temperature", "top_p", "seed", "max_tokens", "max_completion_tokens"),
    *("stream", "stream_options", "n", "user", "store", "metadata", "service_tier"),
    *("verbosity", "reasoning_effort", "prompt_cache_key", "safety_identifier"),
}
_LARGEST, _SHOWN = 64 * 2**20, 300  # bytes of a request; letters of a description to a critic
_MOST_MARKERS = 100  # of a request: each is replaced by a whole prompt
_THUMB = 2**16  # characters of an image that a report shows; of a larger one it says what it is
_DRAWN = re.compile("data:image/(png|jpeg|gif|webp);base64,")


@dataclass(frozen=True)
class PromptPlaces:
    """Where the composed prompt goes: in place of the marker `{{pco}}` or `{{pco:STAGE}}`, else of
    the text `present` of a stage. Only system and developer messages count. And where the example's
    `input` goes: in place of `question`, in what a user says."""

    present: Mapping[str, str] = field(default_factory=dict[str, str])
    question: str = ""
    input: str = ""

    def put(self, messages: Sequence[Message], prompt: Prompt) -> tuple[list[Message], list[str]]:
        """The messages with the prompt, and the stages that have a place in them."""
        turned, stages = list(messages), list[str]()
        shown = [m.content for m in messages if m.role == "system"]
        names = set[str]()
        for mark in (mark for text in shown for mark in MARKER.finditer(text)):
            if (name := mark[1] or "") in names:
                raise Refusal(f"the marker {mark[0]} appears twice in one request: remove one")
            names.add(name)
            if len(names) > _MOST_MARKERS:
                raise Refusal(f"a request may have at most {_MOST_MARKERS} markers")
        for at, message in enumerate(turned):
            if message.role == "system":
                text, found = self._put(message.content, prompt)
                stages += [stage for stage in found if stage not in stages]
                turned[at] = Message("system", text) if found else message
            elif message.role == "user" and self.question in message.content and self.question:
                if message.content.count(self.question) * len(self.input) > _LARGEST:
                    raise Refusal("a message repeats the question too often to replace every copy")
                turned[at] = read_message(rewritten(message.wire, self._ask))
        return turned, stages

    def _ask(self, part: _Tree) -> _Tree:
        texts = {k: v for k, v in part.items() if k in ("content", "text") and isinstance(v, str)}
        return part | {k: v.replace(self.question, self.input) for k, v in texts.items()}

    def _put(self, text: str, prompt: Prompt) -> tuple[str, list[str]]:
        if names := [mark[1] or "" for mark in MARKER.finditer(text)]:
            if unknown := [n for n in names if n and prompt.stages and n not in prompt.stages]:
                known = ", ".join(prompt.stages)
                raise Refusal(f"no prompt is learned for stage {unknown[0]!r}, only for {known}")
            return MARKER.sub(lambda mark: _own(prompt, mark[1] or ""), text), names
        own = {text.strip(): stage for stage, text in self.present.items() if text.strip()}
        found = list[str]()

        def put(at: re.Match[str]) -> str:
            stage = own[at[0]]
            if stage in found:
                return at[0]
            found.append(stage)
            return _own(prompt, stage)

        longest_first = sorted(own, key=len, reverse=True)
        text = re.sub("|".join(map(re.escape, longest_first)), put, text) if own else text
        return text, found


def _own(prompt: Prompt, stage: str) -> str:
    return apart(prompt.of(stage), stage)[0]


@dataclass(eq=False)
class TrainingEndpoint:
    """An address that one rollout alone knows, open while it is entered. `failure` is what ended
    the rollout from here: an unreachable model, a spent budget, or a cap. `over` is set then."""

    prompt: Prompt
    lm: Chat
    places: PromptPlaces
    most_calls: int
    most_tokens: int
    key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    name: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    stages: list[Stage] = field(default_factory=list[Stage])
    # What was said of each tool of the requests so far.
    tools: dict[str, str] = field(default_factory=dict[str, str])
    placed: int = 0
    calls: int = 0
    tokens: int = 0
    truncated: bool = False
    refused: str = ""
    failure: BaseException | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=_LARGEST)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, auto_decompress=False
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/r/{self.name}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix(f"/r/{self.name}/v1/")
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        known = hmac.compare_digest(given.encode(), self.key.encode()) and path != request.path
        if known and request.method == "GET" and path == "models":
            return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        if not known or request.method != "POST" or path not in ("chat/completions", "responses"):
            return _refused(Refusal("not found", status=404))
        if request.headers.get("Content-Encoding", "identity") != "identity":
            return _refused(Refusal("the body must not be compressed", status=415))
        try:
            body = dict(parse_body(await request.read()))
            answer = await (self._chat(body) if path[0] == "c" else self._respond(body))
        except Refusal as refusal:
            self.refused = refusal.message
            return _refused(refusal)
        except web.HTTPRequestEntityTooLarge:
            return _refused(Refusal(f"the request is larger than {_LARGEST >> 20} MiB", status=413))
        if answer.pieces is None:
            return web.Response(body=answer.body, content_type="application/json")
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        async for piece in answer.pieces:
            await stream.write(piece)
        return stream

    async def _respond(self, given: _Tree) -> UpstreamAnswer:
        body = chat_body(given, "max_tokens")
        return ResponseBuilder(given, f"{self.name}{self.calls}").turned(await self._chat(body))

    async def _chat(self, body: _Tree) -> UpstreamAnswer:
        """Asks the run's model. Raises Refusal."""
        # All else is the run's to decide, or goes to the model as it came.
        read = {name: body[name] for name in ("messages", "n", "stream_options") if name in body}
        asked = read_fields(ChatRequest, read)
        choices, options = asked.n or 1, asked.stream_options or {}
        try:
            messages = [read_message(each) for each in asked.messages]
        except ValueError as error:
            raise Refusal(str(error), param="messages") from None
        self._admit(choices)
        messages, stages = self.places.put(messages, self.prompt)
        self.placed += bool(stages)
        extra = {k: v for k, v in body.items() if k not in _RUNS and v is not None}
        if "tools" in extra:
            extra["tools"] = describe(extra["tools"], self._of_tools)
            self.tools |= descriptions(extra["tools"])
        stage = " + ".join(stages) or "agent"
        wire = json.dumps([[m.wire for m in messages], extra], sort_keys=True, default=str)
        digest = hashlib.sha256(wire.encode("utf-8", "surrogatepass")).hexdigest()
        purpose = f"{stage} {digest[:16]}"
        asking = (self._ask(messages, extra, stage, purpose) for _ in range(choices))
        replies = await asyncio.gather(*asking)
        head = Completion(f"chatcmpl-{self.name}-{self.calls}", str(body.get("model") or MODEL))
        tree = head.body(*replies)
        if body.get("stream"):
            pieces = _chunks(tree, usage=bool(options.get("include_usage")))
            return UpstreamAnswer(200, "text/event-stream", {}, pieces=pieces)
        return UpstreamAnswer(200, "application/json", {}, body=json.dumps(tree).encode())

    def _admit(self, choices: int) -> None:
        """Counts the calls of a request before any is made. Raises Refusal beyond a cap."""
        if choices > self.most_calls - self.calls:
            self._end(f"the agent calls its model more than {self.most_calls} times", "most_calls")
        if self.tokens > self.most_tokens:
            self._end(f"the agent's calls exceed {self.most_tokens:,} tokens", "most_tokens")
        if self.failure is not None:
            raise Refusal(f"this rollout is over: {self.failure}", status=429, kind="rollout_over")
        self.calls += choices

    async def _ask(
        self, messages: Sequence[Message], extra: _Tree, stage: str, purpose: str
    ) -> Reply:
        """One reply. What is asked again with the same content is another sample of it, so that a
        resumed run finds each reply, in whatever order its agent asks."""
        try:
            reply = await self.lm(messages, purpose=purpose, extra=extra)
        except LMError as error:
            self.failure = error
            self.over.set()
            raise Refusal(str(error), status=502, kind="upstream_error") from None
        except BaseException as error:  # a budget that is spent, or an end from outside
            self.failure = error
            self.over.set()
            raise Refusal("the run was stopped", status=503, kind="rollout_over") from None
        self.tokens += reply.usage.tokens
        self.truncated = self.truncated or reply.finish == "length"
        news = _news(messages, self.stages)
        heard = [f"{m.role}: {m.content}" for m in news]
        if not self.stages:  # what a critic must know who is to blame a description
            own = [f"tool {n}: {shorten(text, _SHOWN)}" for n, text in self.tools.items()]
            heard = [*own, *heard] if self._of_tools else heard
        text = in_words(reply.text, reply.tool_calls)
        self.stages.append(Stage(stage, "\n".join(heard), text, turns_of(messages, news, reply)))
        return reply

    @cached_property
    def _of_tools(self) -> Mapping[str, str]:
        """What the prompts say of tools."""
        prompts = "\n".join(self.prompt.stages.values() or [self.prompt.text])
        return apart("\n".join(dict.fromkeys(prompts.split("\n"))))[1]

    def _end(self, what: str, cap: str) -> None:
        hint = f"find out why; Agent({cap}=) sets the limit"
        self.failure = self.failure or ExecutorError(what, hint=hint)
        self.over.set()


def _news(messages: Sequence[Message], before: Sequence[Stage]) -> Sequence[Message]:
    """What the agent adds to what it said before: all after its last turn of an assistant."""
    last = max((at for at, m in enumerate(messages) if m.role == "assistant"), default=-1)
    later = messages[last + 1 :] if before else messages
    return [m for m in later if m.role != "system"]


def turns_of(
    messages: Sequence[Message], news: Sequence[Message], reply: Reply
) -> tuple[Turn, ...]:
    """The news and the reply as people are shown them; () where their shape is unknown."""
    answer = Message("assistant", "", {"content": reply.text, "tool_calls": reply.tool_calls})
    try:
        calls = [call for m in messages for call in m.wire.get("tool_calls") or ()]
        tools = {call.get("id"): call["function"]["name"] for call in calls}
        turns = [turn for m in (*news, answer) for turn in _turns(m.role, m.wire, tools)]
    except (TypeError, KeyError, AttributeError):
        return ()
    return tuple(turn for turn in turns if turn.text or turn.name)


def _turns(role: str, wire: Mapping[str, Any], tools: Mapping[Any, str]) -> Iterator[Turn]:
    content, tool = wire.get("content") or (), tools.get(wire.get("tool_call_id"), "")
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        if part["type"] == "text":
            yield Turn("tool result" if role == "tool" else role, part["text"], tool)
        else:
            inner = part[part["type"]]
            data: str = inner if isinstance(inner, str) else max(inner.values(), key=len)
            yield _media(part["type"].removeprefix("input_").removesuffix("_url"), data)
    for call in wire.get("tool_calls") or ():
        yield Turn("tool call", call["function"]["arguments"], call["function"]["name"])


def _media(kind: str, data: str) -> Turn:
    """An image as it is where it is small, else what it is: kind, size, and the start of its
    digest. What lies elsewhere is its address."""
    if not data.startswith("data:") and kind != "audio":
        return Turn(kind, data)
    head, _, coded = data.rpartition(",")
    digest = hashlib.sha256(data.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    size = bytes_text(len(coded) * 3 // 4)
    name = f"{head.removeprefix('data:').partition(';')[0]} {size}, sha256 {digest}".lstrip()
    return Turn(kind, data if _DRAWN.match(data) and len(data) <= _THUMB else "", name)


async def _chunks(tree: _Tree, *, usage: bool) -> AsyncGenerator[bytes, None]:
    """The completion as a stream: each choice whole, then why it ends."""
    head = {**tree, "object": "chat.completion.chunk", "usage": None}
    for choice in cast("list[_Tree]", tree["choices"]):
        delta = dict(choice["message"])
        if calls := delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
        for part, finish in ((delta, None), ({}, choice["finish_reason"])):
            chunk = {"index": choice["index"], "delta": part, "finish_reason": finish}
            yield _event({**head, "choices": [chunk]})
    if usage:
        yield _event({**head, "choices": [], "usage": tree["usage"]})
    yield b"data: [DONE]\n\n"


def _event(tree: _Tree) -> bytes:
    return b"data: " + json.dumps(tree).encode() + b"\n\n"


def _refused(refusal: Refusal) -> web.Response:
    # Clients of OpenAI's read the header: what failed here fails again.
    headers = {"x-should-retry": "false"}
    return web.json_response(error_body(refusal), status=refusal.status, headers=headers)


def dry(reply: str, heard: list[str]) -> Chat:
    """A Chat that answers every request with this text and keeps what it heard, for free."""

    async def answer(messages: Sequence[Message], **_: object) -> Reply:
        heard.extend(message.content for message in messages)
        return Reply(reply)

    return cast("Chat", answer)
