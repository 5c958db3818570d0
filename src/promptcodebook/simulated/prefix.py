"""A model of prefix caching: prompt tokens shared with an earlier prompt count as cached."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from promptcodebook.calls import Message
from promptcodebook.simulated.words import tokens

__all__ = ["PrefixCache"]

_BLOCKS = 200_000
"""Blocks remembered, the least recently seen dropped first."""


class PrefixCache:
    """Remembers prompts block by block. It decides what is reported, never what is replied."""

    def __init__(self, block: int) -> None:
        self._block = max(1, block)
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def cached(self, messages: tuple[Message, ...]) -> int:
        """Tokens of the longest block-aligned prefix seen before; remembers this prompt."""
        stream: list[str] = []
        for message in messages:
            stream.extend((f"<{message.role}>", *tokens(message.content)))
        shared = 0
        chain = b""
        sharing = True
        for start in range(0, len(stream) - self._block + 1, self._block):
            piece = "\x1f".join(stream[start : start + self._block])
            chain = hashlib.blake2b(chain + piece.encode(errors="replace"), digest_size=12).digest()
            if sharing and chain in self._seen:
                shared += self._block
            else:
                sharing = False
            self._seen[chain] = None
            self._seen.move_to_end(chain)
        while len(self._seen) > _BLOCKS:
            self._seen.popitem(last=False)
        return shared
