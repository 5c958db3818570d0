"""The client's side of the chat-completions wire: a Request as a body, a body as a Reply.

Also: which fields an endpoint refuses (`Quirks`), token estimates, and schemas of typed replies.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, cast

from pydantic import BaseModel

from promptcodebook.calls import Reply, Request, Schema, Usage

# What an endpoint may refuse without the call losing its meaning.
DROPPABLE = ("top_p", "temperature", "seed", "response_format")
MOST_BYTES = 8_000_000
"""What the body of a reply may have by default; no chat completion comes near it."""
TOKENIZER = "estimate: UTF-8 bytes / 4"
"""The name printed wherever a count comes from `estimate_tokens`."""
_SEED_BITS = 0x7FFFFFFF
# What a chat template puts around a message, about.
_PER_MESSAGE = 4
# No call has more tokens; a larger count would not fit into a store either.
_MOST_TOKENS = 10**9
_DECIMALS = 6
"""Of the numbers of an embedding that are kept."""
_REFUSING = re.compile(
    r"unsupported|not supported|not support|unknown|unrecogni[sz]ed|not (?:permitted|allowed)"
    r"|unexpected|extra (?:inputs|fields)|deprecated|only the default|invalid (?:schema|parameter)"
    r"|not (?:implemented|available|recogni[sz]ed)|cannot (?:both )?be (?:set|used|specified)",
    re.IGNORECASE,
)
_ALIASES = {
    "response_format": (
        *("response_format", "json_schema", "json schema", "structured output"),
        *("uniqueitems", "grammar"),
    )
}


class Malformed(ValueError):
    """A 200 whose body is not a chat completion."""


@dataclass(slots=True)
class Quirks:
    """What one endpoint turned out to refuse; learned from its own 400s and kept.

    `distinct`: whether a schema may say that items are; not every engine that enforces schemas can.
    """

    dropped: set[str] = field(default_factory=set[str])
    cap: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    distinct: bool = True

    def learn(self, sent: Mapping[str, object], message: str, param: str) -> str | None:
        """Takes note of the field that a refusal names; returns it, None when it names none."""
        # 'temperature must be below 2' names a field too, but refuses its value: that is an error.
        if not _REFUSING.search(message):
            return None
        if "max_tokens" in sent and _names("max_tokens", message, param):
            self.cap = "max_completion_tokens"
            return "max_tokens"
        named = [n for n in DROPPABLE if n in sent and _names(n, message, param)]
        # The server's own pointer counts for more than a field its message happens to mention.
        for name in sorted(named, key=lambda n: n != param):
            if name == "response_format" and "uniqueItems" in str(sent[name]):
                self.distinct = False
                return "uniqueItems"
            self.dropped.add(name)
            return name
        return None


def _names(name: str, message: str, param: str) -> bool:
    words = _ALIASES.get(name, (name,))
    low = message.lower()
    return param in words or any(re.search(rf"\b{re.escape(w)}\b", low) for w in words)


def request_body(request: Request, model: str, quirks: Quirks) -> tuple[dict[str, Any], list[str]]:
    """The body to send, and the names of the fields that this endpoint makes us leave out."""
    if request.embeds:
        text = request.messages[0].content
        return {"model": model, "input": text, "encoding_format": "float"}, []
    sampling = request.sampling
    drawn = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        quirks.cap: sampling.max_tokens,
    }
    fields: dict[str, Any] = {name: value for name, value in drawn.items() if value is not None}
    if request.schema is not None:
        schema = request.schema.body if quirks.distinct else _without_distinct(request.schema.body)
        named: dict[str, Any] = {"name": request.schema.name, "schema": schema}
        # 'strict' is refused by those who know it unless every object is closed and fully required.
        if is_strict(schema):
            named["strict"] = True
        fields["response_format"] = {"type": "json_schema", "json_schema": named}
    if sampling.temperature != 0:
        fields["seed"] = request.sample & _SEED_BITS
    fields.update(sampling.extra)
    dropped = [name for name in DROPPABLE if name in quirks.dropped and name in fields]
    for name in dropped:
        del fields[name]
    fields["model"] = model
    fields["messages"] = [{"role": m.role, "content": m.content} for m in request.messages]
    return fields, dropped


def _without_distinct(schema: object) -> Any:
    return _rewritten(schema, lambda t: {k: v for k, v in t.items() if k != "uniqueItems"})


def _rewritten(node: object, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """The tree with every object of it changed, inner ones first."""
    if isinstance(node, list):
        return [_rewritten(each, change) for each in cast("list[object]", node)]
    if not isinstance(node, Mapping):
        return node
    tree = cast("Mapping[str, object]", node)
    return change({key: _rewritten(value, change) for key, value in tree.items()})


def read_reply(data: bytes, request: Request, seconds: float) -> Reply:
    """The reply in a 200's body; raises Malformed. `seconds` is the call's latency."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        raise Malformed("it is not JSON") from None
    read = read_embedding if request.embeds else read_tree
    return read(tree, request, seconds)


def read_tree(tree: Any, request: Request, seconds: float) -> Reply:
    """The reply in a parsed body; raises Malformed."""
    try:
        choice = tree["choices"][0]
        message: dict[str, Any] = choice["message"]
        content, reason, said = (
            message.get("content"),
            choice.get("finish_reason"),
            tree.get("usage"),
        )
    except (KeyError, IndexError, TypeError, AttributeError):
        raise Malformed("it holds no choices[0].message") from None
    text = _text(content)
    asides = (message.get(name) for name in ("reasoning_content", "reasoning"))
    # What the model wrote aside, and was paid for, where the server shows it.
    aside = next((each for each in asides if isinstance(each, str)), "")
    usage = told_usage(said, seconds)
    counted = usage or count_usage(request, text + aside, seconds)
    finish = "length" if reason == "length" else "stop" if reason in ("stop", None) else "other"
    return Reply(text, finish, counted, estimated=usage is None)


def read_embedding(tree: Any, request: Request, seconds: float) -> Reply:
    """The vector in a parsed body of /embeddings; raises Malformed."""
    try:
        numbers = tree["data"][0]["embedding"]
        vector = tuple(round(float(each), _DECIMALS) for each in numbers)
        said = tree.get("usage")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
        raise Malformed("it holds no data[0].embedding of numbers") from None
    if not vector or not all(map(math.isfinite, vector)):
        raise Malformed("its embedding is empty or not finite")
    if isinstance(said, dict):
        # Nothing is written, and some servers leave that out.
        said = {"completion_tokens": 0, **cast("dict[str, Any]", said)}
    usage = told_usage(said, seconds)
    counted = usage or count_usage(request, "", seconds)
    return Reply("", usage=counted, estimated=usage is None, vector=vector)


def _text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        # Some servers answer in parts, as requests may be written.
        parts = cast("list[object]", content)
        texts = [cast("dict[str, Any]", p).get("text") for p in parts if isinstance(p, dict)]
        return "".join(each for each in texts if isinstance(each, str))
    raise Malformed("message.content is not text")


def told_usage(tree: object, seconds: float = 0.0) -> Usage | None:
    """What a reply says that the call took; None where it says nothing usable."""
    if not isinstance(tree, dict):
        return None
    fields = cast("dict[str, Any]", tree)
    prompt = _count(fields.get("prompt_tokens"))
    completion = _count(fields.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    details = fields.get("prompt_tokens_details")
    cached = (
        cast("dict[str, Any]", details).get("cached_tokens") if isinstance(details, dict) else 0
    )
    return Usage(1, prompt, completion, _count(cached) or 0, None, seconds)


def _count(value: object) -> int | None:
    """A number of tokens; None for what cannot be one."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _MOST_TOKENS else None


def byte_size(text: str) -> int:
    """Bytes of the text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def estimate_tokens(text: str) -> int:
    """UTF-8 bytes / 4, rounded up: within a third of common tokenizers on English prose."""
    return -(-byte_size(text) // 4)


def count_usage(request: Request, text: str, seconds: float) -> Usage:
    """Our own count of a call, where the server's cannot be had; `text` is all that was written.

    Bytes / 3: a budget rests on it, so it is to err upwards where `estimate_tokens` may not.
    """
    prompt = sum(_PER_MESSAGE + -(-byte_size(m.content) // 3) for m in request.messages)
    return Usage(1, prompt, -(-byte_size(text) // 3), 0, None, seconds)


@cache
def schema_of(shape: type[BaseModel]) -> Schema:
    """The shape's schema: its bounds and descriptions kept, titles dropped, no further fields."""
    body = _rewritten(shape.model_json_schema(), _lean)
    # A docstring is for us; the fields' descriptions are for the model.
    body.pop("description", None)
    return Schema(shape.__name__.strip("_"), body)


def _lean(node: dict[str, Any]) -> dict[str, Any]:
    if isinstance(node.get("title"), str):  # else it is a property of that name
        del node["title"]
    if "properties" in node:
        node.setdefault("additionalProperties", False)
    return node


def is_strict(node: object) -> bool:
    """Whether 'strict' may be asked for: every object closed, every property required."""
    if isinstance(node, list):
        return all(is_strict(each) for each in cast("list[object]", node))
    if not isinstance(node, dict):
        return True
    tree = cast("dict[str, object]", node)
    if tree.get("type") == "object" or "properties" in tree:
        names = set(cast("dict[str, object]", tree.get("properties", {})))
        required = set(cast("list[str]", tree.get("required", [])))
        if tree.get("additionalProperties") is not False or names != required:
            return False
    return all(is_strict(each) for each in tree.values())
