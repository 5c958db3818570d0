"""The default executor: y = M(p, x) in one call."""

from __future__ import annotations

from promptcodebook.lm.base import Chat
from promptcodebook.types import Example, Output

__all__ = ["single_call"]


async def single_call(prompt: str, example: Example, lm: Chat) -> Output:
    """p as system prompt, x (or its chat messages) as the conversation; says when y was cut."""
    reply = await lm(example.messages or example.input, system=prompt, purpose="execute")
    return Output(reply.text, truncated=reply.finish == "length")
