"""What of a request's messages is routed, and where the prompt goes between them. Nothing here asks
anybody or keeps anything."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from promptcodebook.calls import Tree, shown_part

Messages = Sequence[Mapping[str, Any]]
_INSTRUCTS = ("system", "developer")


class RoutedInput(NamedTuple):
    """The `text` that is routed, with its images and other parts."""

    text: str
    media: tuple[Tree, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """`conversation`: all turns are the input, not the last one alone. `sticky`: a conversation
    keeps the prompt of its first turn. `first`: where the prompt goes."""

    conversation: bool = False
    sticky: bool = False
    first: bool = False

    def routed(self, messages: Messages) -> RoutedInput:
        if not self.sticky:
            return self.input_of(messages)
        # As it was at its first request: up to the user's first turn with a text.
        turns = (
            n for n, m in enumerate(messages, 1) if m["role"] == "user" and _text_of(m).strip()
        )
        return self.input_of(messages[: next(turns, len(messages))])

    def input_of(self, messages: Messages) -> RoutedInput:
        """x: the last user turn, or the whole conversation but for its instructions. Its text, and
        its images and other parts."""
        if self.conversation:
            turns = [m for m in messages if m["role"] not in _INSTRUCTS]
        else:
            turns = [m for m in messages if m["role"] == "user"][-1:]
        media = tuple(part for turn in turns for part in _parts_of(turn) if part["type"] != "text")
        if not self.conversation:
            return RoutedInput("".join(map(_text_of, turns)), media)
        texts = [(turn["role"], _text_of(turn)) for turn in turns]
        text = "\n\n".join(f"{role}: {text}" for role, text in texts if text)
        return RoutedInput(text, media)

    def key(self, request_id: str, given: RoutedInput) -> str:
        """What draws for a request: its conversation where that is known, else its own id."""
        if not self.sticky:
            return request_id
        return hashlib.sha256(given.text.encode("utf-8", "surrogatepass")).hexdigest()

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


def _parts_of(message: Mapping[str, Any]) -> Sequence[Tree]:
    content = message.get("content")
    parts = cast("list[Tree]", content) if isinstance(content, list) else []
    known = [part for part in parts if isinstance(part.get("type"), str)]
    return [part for part in known if part["type"] != "text" or isinstance(part.get("text"), str)]


def _text_of(message: Mapping[str, Any]) -> str:
    return "\n".join(map(shown_part, _parts_of(message))) or message.get("content") or ""
