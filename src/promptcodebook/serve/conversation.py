"""What a conversation asks for, and where a composed prompt stands in it.

Messages are a caller's own trees: what is not read here goes on as it came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from promptcodebook.serve.completions import Refusal

Messages = Sequence[Mapping[str, Any]]

_INSTRUCTS = ("system", "developer")


def read_messages(body: Mapping[str, Any]) -> Messages:
    """The messages of a body. Raises Refusal where they are none."""
    listed = body.get("messages")
    if not isinstance(listed, list) or not listed:
        raise Refusal("messages must be a list of at least one message", param="messages")
    for each in cast("list[object]", listed):
        if not isinstance(each, dict) or not isinstance(cast("Any", each).get("role"), str):
            raise Refusal("each message must be an object with a role", param="messages")
        _text_of(cast("dict[str, Any]", each))
    return cast("list[Mapping[str, Any]]", listed)


def input_of(messages: Messages, *, whole: bool = False) -> str:
    """x: the text of the last user turn, or of the whole conversation but for its instructions."""
    if not whole:
        spoken = (_text_of(m) for m in reversed(messages) if m["role"] == "user")
        return next(spoken, "")
    turns = [(m["role"], _text_of(m)) for m in messages if m["role"] not in _INSTRUCTS]
    return "\n\n".join(f"{role}: {text}" for role, text in turns if text)


def _text_of(message: Mapping[str, Any]) -> str:
    """The text of a message; images and other parts have none. Raises Refusal."""
    content: object = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        parts = cast("list[object]", content)
        trees = [cast("dict[str, object]", part) for part in parts if isinstance(part, dict)]
        if len(trees) == len(parts):
            texts = [tree.get("text") for tree in trees]
            return "\n".join(text for text in texts if isinstance(text, str))
    raise Refusal("message content must be text or a list of parts", param="messages")


def place_prompt(messages: Messages, prompt: str, *, joined: bool = False) -> Messages:
    """The messages with the prompt before them; `joined`: within the caller's own first
    instruction, if that is how the conversation begins."""
    if not prompt:
        return messages
    first = messages[0]
    if not joined or first["role"] not in _INSTRUCTS:
        return [{"role": "system", "content": prompt}, *messages]
    content = first.get("content")
    if isinstance(content, list):
        parts = cast("list[object]", content)
        told: object = [{"type": "text", "text": prompt}, *parts]
    else:
        told = f"{prompt}\n\n{content}" if content else prompt
    return [{**first, "content": told}, *messages[1:]]
