"""How a model is called: one Request in, one Reply out, through one Protocol. Wrappers compose:
each is an LM around an LM (`Roles(Journaled(Cache(Endpoints(...))))`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, cast, get_args

if TYPE_CHECKING:  # the command's help must not wait for it
    from pydantic import BaseModel

Role = Literal[
    "encoder", "generator", "executor", "critic", "attribution", "updater", "judge", "untrusted"
]
ROLES: tuple[Role, ...] = get_args(Role)


Tree = Mapping[str, Any]  # an object of JSON
Speaker = Literal["system", "user", "assistant", "tool"]
_SPEAKERS: Mapping[object, Speaker] = {
    **{speaker: speaker for speaker in get_args(Speaker)},
    **{"developer": "system", "function": "tool"},
}


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message.

    - `role`: "system", "user", "assistant" or "tool".
    - `content`: its text, or in words what a message that is more than a text holds.
    - `body`: the whole of such a message as OpenAI's wire has it (None: role and text are all)."""

    role: Speaker
    content: str
    body: Tree | None = field(default=None, hash=False)

    @property
    def wire(self) -> Tree:
        return self.body or {"role": self.role, "content": self.content}

    @property
    def media(self) -> list[Tree]:
        """Its parts that are not text: images, audio, files."""
        content = None if self.body is None else self.body.get("content")
        parts = cast("list[Tree]", content if isinstance(content, list) else [])
        return [part for part in parts if part["type"] != "text"]


def read_message(tree: object) -> Message:
    """Read a message of OpenAI's wire; null fields, which Parquet fills in, are left out. Raises
    ValueError when it is no message."""
    try:
        body = rewritten(
            tree, lambda o: {k: v for k, v in o.items() if v is not None or k == "content"}
        )
        role, content, calls = _SPEAKERS[body["role"]], body.get("content"), body.get("tool_calls")
        texts: list[str] = [content] if isinstance(content, str) else []
        parts: Any = [] if texts or (content is None and calls) else content
        text = in_words("\n".join([*texts, *map(shown_part, parts)]), calls)
    except (KeyError, TypeError, AttributeError, RecursionError):
        must = "a chat message must have a role, and content or tool calls"
        raise ValueError(f"{must}, not {str(tree)[:80]}") from None
    return Message(role, text, None if body == {"role": role, "content": text} else body)


def shown_part(part: Tree) -> str:
    """A text as it is, and of an image or another part what it is."""
    kind: str = part["type"]
    shown = kind.removeprefix("input_").removesuffix("_url")
    return part["text"] if kind == "text" else f"[{shown}]"


def in_words(text: str, calls: Any) -> str:
    """A text with its tool calls as name(arguments), where they have OpenAI's shape."""
    try:
        made = [call["function"] for call in calls or ()]
        named = [f"{each['name']}({each['arguments']})" for each in made]
    except (KeyError, TypeError, AttributeError):
        return text
    return "\n".join(filter(None, [text, *named]))


def rewritten(node: object, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """The tree with every object of it changed, inner ones first."""
    if isinstance(node, list):
        return [rewritten(each, change) for each in cast("list[object]", node)]
    if not isinstance(node, Mapping):
        return node
    tree = cast("Mapping[str, object]", node)
    return change({key: rewritten(value, change) for key, value in tree.items()})


@dataclass(frozen=True, slots=True)
class Usage:
    """What calls cost; two of them add up.

    - `calls`: how many.
    - `prompt_tokens`, `completion_tokens`: as the server reports them.
    - `cached_prompt_tokens`: those of the prompt tokens that the server had cached.
    - `cost`: US dollars; None = unknown price.
    - `latency_s`: seconds, all calls together."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0
    cost: float | None = 0.0
    latency_s: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        return self._with(other, 1)

    def __sub__(self, earlier: Usage) -> Usage:
        """What was spent since `earlier`."""
        return self._with(earlier, -1)

    def _with(self, other: Usage, sign: Literal[1, -1]) -> Usage:
        cost = None
        if self.cost is not None and other.cost is not None:
            cost = self.cost + sign * other.cost
        return Usage(
            self.calls + sign * other.calls,
            self.prompt_tokens + sign * other.prompt_tokens,
            self.completion_tokens + sign * other.completion_tokens,
            self.cached_prompt_tokens + sign * other.cached_prompt_tokens,
            cost,
            self.latency_s + sign * other.latency_s,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What a budget allows in all; None = no limit."""

    calls: int | None = None
    tokens: int | None = None
    usd: float | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a reply is drawn; None leaves the choice to the server. `extra` = further body fields."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    extra: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True)
class Schema:
    """A named JSON schema the reply must satisfy (sent as `response_format`)."""

    name: str
    body: Mapping[str, object]

    @cached_property
    def size(self) -> int:
        """Bytes of the body as JSON."""
        return len(json.dumps(self.body))

    @cached_property
    def wire(self) -> Tree:
        """It as `response_format`. 'strict' is refused by those who know it unless every object is
        closed and fully required."""
        strict = {"strict": True} if is_strict(self.body) else {}
        named = {"name": self.name, "schema": self.body, **strict}
        return {"type": "json_schema", "json_schema": named}


def is_model(shape: object) -> TypeGuard[type[BaseModel]]:
    """Whether it is a pydantic model."""
    return isinstance(shape, type) and hasattr(shape, "model_json_schema")


@cache
def schema_of(shape: type[BaseModel]) -> Schema:
    """The shape's schema: its bounds and descriptions kept, titles dropped, no further fields."""

    def lean(node: dict[str, Any]) -> dict[str, Any]:
        if isinstance(node.get("title"), str):  # else it is a property of that name
            del node["title"]
        if "properties" in node:
            node.setdefault("additionalProperties", False)
        return node

    body = rewritten(shape.model_json_schema(), lean)
    # A docstring is for us; the fields' descriptions are for the model.
    body.pop("description", None)
    return Schema(shape.__name__.strip("_"), body)


def is_strict(node: object) -> bool:
    """Whether 'strict' may be asked for: every object closed, every property required."""
    if isinstance(node, list):
        return all(is_strict(each) for each in cast("list[object]", node))
    if not isinstance(node, dict):
        return True
    tree = cast("dict[str, Any]", node)
    if tree.get("type") == "object" or "properties" in tree:
        names, required = set(tree.get("properties", {})), set(tree.get("required", []))
        if tree.get("additionalProperties") is not False or names != required:
            return False
    return all(is_strict(each) for each in tree.values())


@dataclass(frozen=True, slots=True)
class Request:
    """One call.

    - `role`: which role asks, such as "executor".
    - `messages`: the chat, the oldest first.
    - `schema`: the JSON Schema that the reply must follow (None).
    - `sample`: the keyed sample seed: same request + same sample = same reply (0).
    - `greedy`: whether it is asked at temperature 0, where the role has a temperature (False).
    - `model`, `sampling`: a full spec, and how to draw; `Roles` fills both in where they are empty.
    - `embeds`: whether the reply is the message's vector (False)."""

    role: Role
    messages: tuple[Message, ...]
    schema: Schema | None = None
    sample: int = 0
    greedy: bool = False
    model: str = ""
    sampling: Sampling = Sampling()
    embeds: bool = False


Ending = Literal["stop", "length", "content_filter"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back, and what it cost when it was made: only a 'live' one costs now.

    - `text`: the reply's text.
    - `finish`: why it ended: 'stop', 'length' where it was cut, or 'content_filter'.
    - `usage`: one call's tokens, US dollars and seconds.
    - `dropped`: names of fields that the endpoint refused (none).
    - `estimated`: whether the token counts are ours (False).
    - `source`: 'live', or where it was kept: 'journal' or 'cache'.
    - `vector`: the embedding, where one was asked for (none).
    - `tool_calls`: as on OpenAI's wire (none).
    - `cache_written`: prompt tokens put into the server's cache (0)."""

    text: str
    finish: Ending = "stop"
    usage: Usage = Usage()
    dropped: tuple[str, ...] = ()
    estimated: bool = False
    source: Literal["live", "journal", "cache"] = "live"
    vector: tuple[float, ...] = ()
    tool_calls: tuple[Tree, ...] = ()
    cache_written: int = 0


class LM(Protocol):
    """A language model: called with a Request, it returns a Reply. Raises LMError when there is no
    usable reply, and Stop when it may not ask."""

    async def __call__(self, request: Request) -> Reply: ...


class Chat(Protocol):
    """The LM as an executor sees it: bound to role, example and sample, metered and budgeted.

    - `messages`: the user's text, or a whole chat.
    - `system`: the system prompt before them ('').
    - `role`: who asks ("executor").
    - `schema`: the JSON Schema that the reply must follow (None).
    - `purpose`: tells calls with the same messages apart, such as a stage's name ('').
    - `extra`: further fields of the request's body, such as tools (None).

    Returns the Reply. Raises what an LM raises."""

    async def __call__(
        self,
        messages: str | Sequence[Message],
        *,
        system: str = "",
        role: Role = "executor",
        schema: Schema | type[BaseModel] | None = None,
        purpose: str = "",
        extra: Tree | None = None,
    ) -> Reply: ...


def _digested(fields: dict[str, Any]) -> dict[str, Any]:
    """With a data URL by its digest, which takes a seventh of the time."""
    data = {k: v for k, v in fields.items() if isinstance(v, str) and v.startswith("data:")}
    digests = {k: hashlib.sha256(v.encode("utf-8", "surrogatepass")) for k, v in data.items()}
    return {**fields, **{k: f"data:{digest.hexdigest()}" for k, digest in digests.items()}}


def request_key(request: Request) -> bytes:
    """32-byte SHA-256 over all that decides a reply: model, messages, sampling, schema, sample."""
    sampling, turns = request.sampling, request.messages
    parts = [
        request.model,
        [(m.role, m.content, *([rewritten(m.body, _digested)] if m.body else [])) for m in turns],
        [sampling.temperature, sampling.top_p, sampling.max_tokens, dict(sampling.extra)],
        None if request.schema is None else [request.schema.name, request.schema.body],
        request.sample,
        *(["embedding"] if request.embeds else []),
    ]
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
