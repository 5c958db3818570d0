"""What of a request's messages is routed, and where the prompt goes between them. Nothing here asks
anybody or keeps anything."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from promptcodebook.calls import Tree, shown_part

Messages = Sequence[Mapping[str, Any]]
_INSTRUCTS = ("system", "developer")


@dataclass(frozen=True, slots=True)
class RoutedInput:
    """The `text` that is routed, with its images and other parts. `thread` is what the caller names
    its conversation by, None where it names none."""

    text: str
    media: tuple[Tree, ...] = ()
    thread: bytes | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """`conversation`: all turns are the input, not the last one alone. `sticky`: a conversation
    keeps its prompt; it is known by its first turn ('conversation'), the body's 'user' or a
    'header:NAME'. `first`: where the prompt goes."""

    conversation: bool = False
    sticky: str = ""
    first: bool = False

    def routed(
        self, body: Mapping[str, Any], headers: Mapping[str, str], caller: str
    ) -> RoutedInput:
        messages: Messages = body["messages"]
        if not self.sticky:
            return RoutedInput(*self.input_of(messages))
        named: object = body.get("user") if self.sticky == "user" else None
        if header := self.sticky.partition(":")[2]:
            named = headers.get(header)
        thread = None
        if isinstance(named, str) and named:
            # With the caller's name in it, so that no two callers share a conversation.
            thread = _digest(f"{caller} {named}")
        # As it was at its first request: up to the user's first turn with a text.
        turns = (
            n for n, m in enumerate(messages, 1) if m["role"] == "user" and _text_of(m).strip()
        )
        return RoutedInput(*self.input_of(messages[: next(turns, len(messages))]), thread)

    def input_of(self, messages: Messages) -> tuple[str, tuple[Tree, ...]]:
        """x: the last user turn, or the whole conversation but for its instructions. Its text, and
        its images and other parts."""
        if self.conversation:
            turns = [m for m in messages if m["role"] not in _INSTRUCTS]
        else:
            turns = [m for m in messages if m["role"] == "user"][-1:]
        media = tuple(part for turn in turns for part in _parts_of(turn) if part["type"] != "text")
        if not self.conversation:
            return "".join(map(_text_of, turns)), media
        texts = [(turn["role"], _text_of(turn)) for turn in turns]
        return "\n\n".join(f"{role}: {text}" for role, text in texts if text), media

    def key(self, request_id: str, given: RoutedInput) -> str:
        """What draws for a request: its conversation where that is known, else its own id."""
        thread = given.thread
        if thread is None and self.sticky == "conversation":
            thread = _digest(given.text)
        return request_id if thread is None else thread.hex()

    def place(self, messages: Messages, prompt: str) -> Messages:
        """The prompt goes behind the instructions that the caller begins with: they never change,
        so a model's server keeps them as a prefix. `first`: before them."""
        if not prompt:
            return messages
        own = next(
            (n for n, m in enumerate(messages) if m["role"] not in _INSTRUCTS), len(messages)
        )
        if not own:
            return [{"role": "system", "content": prompt}, *messages]
        at = 0 if self.first else own
        placed = {"role": messages[0]["role"], "content": prompt}
        return [*messages[:at], placed, *messages[at:]]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _parts_of(message: Mapping[str, Any]) -> Sequence[Tree]:
    content = message.get("content")
    parts = cast("list[Tree]", content) if isinstance(content, list) else []
    known = [part for part in parts if isinstance(part.get("type"), str)]
    return [part for part in known if part["type"] != "text" or isinstance(part.get("text"), str)]


def _text_of(message: Mapping[str, Any]) -> str:
    return "\n".join(map(shown_part, _parts_of(message))) or message.get("content") or ""
