"""PAPILLON: a trusted model rewrites, an untrusted one helps, the trusted one answers.

Departure from the GEPA artifact: a call that fails fails the rollout (it scores the bottom of the
range all the same); an empty request is not sent, and its answer is empty as there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from promptcodebook.errors import ConfigError
from promptcodebook.lm.base import Chat, Reply, Schema
from promptcodebook.tasks.pipeline import Said, ask, finished, outside, think
from promptcodebook.types import Example, Message, Output, Role

__all__ = ["Answered", "Papillon", "Wall", "read_answered"]

_CRAFT = (
    "You are given a private user query. Write a request (llm_request) for a powerful external "
    "model that helps to answer the query without letting that model learn anything private: who "
    "the user is, whom or what the query is about, how to reach them. The request stands alone, "
    "since the external model sees nothing else. Do not answer the query yourself."
)
_RESPOND = (
    "Answer the user query. An external model was asked the related request and gave the related "
    "response: take from it what helps, put the private details back where the answer needs them, "
    "and reply with the answer to the user alone."
)


@dataclass(frozen=True, slots=True)
class Answered:
    """What the reward is about: the answer to the user, and the request that went outside."""

    response: str
    request: str

    def as_text(self) -> str:
        """The executor's output: one JSON object, the answer first."""
        return json.dumps({"response": self.response, "request": self.request}, ensure_ascii=False)


def read_answered(text: str) -> Answered:
    """What `as_text` wrote; any other text is an answer for which nothing went outside."""
    try:
        tree: object = json.loads(text)
    except (ValueError, RecursionError):
        return Answered(text, "")
    if not isinstance(tree, dict):
        return Answered(text, "")
    held = cast("dict[str, object]", tree)
    response, request = held.get("response"), held.get("request")
    if not isinstance(response, str) or not isinstance(request, str):
        return Answered(text, "")
    return Answered(response, request)


class Wall:
    """A chat that lets the untrusted role see one message only: the request that was released.

    ConfigError for anything else sent there: another text, a system message, further turns, a
    schema, or any message before a request is released.
    """

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._released: str | None = None

    def release(self, request: str) -> None:
        """Declares the rewritten request, the one text that may pass."""
        self._released = request

    async def __call__(
        self,
        messages: str | Sequence[Message],
        *,
        system: str = "",
        role: Role = "executor",
        schema: Schema | None = None,
        purpose: str = "",
    ) -> Reply:
        alone = messages == self._released and not system and schema is None
        if role == "untrusted" and not alone:
            raise ConfigError(
                "something beside the rewritten request was about to be sent to the untrusted role",
                hint="give the untrusted stage only the request that was released",
            )
        return await self._chat(messages, system=system, role=role, schema=schema, purpose=purpose)


class Papillon:
    """craft (executor) -> outside (untrusted) -> respond (executor); y is an `Answered` as text."""

    stages = ("craft", "respond")
    """The stages that a composed prompt stands before; `outside` has none."""
    roles: tuple[Role, ...] = ("executor", "untrusted")

    async def __call__(self, prompt: str, example: Example, lm: Chat) -> Output:
        wall = Wall(lm)
        query = example.input
        craft = await think(
            wall,
            prompt=prompt,
            stage="craft",
            instruction=_CRAFT,
            fields={"user_query": query},
            outputs=("llm_request",),
        )
        request = _request(craft)
        if not request:
            return finished(Answered("", "").as_text(), [craft])
        wall.release(request)
        helped = await outside(wall, stage="outside", message=request, output="llm_response")
        answer = await ask(
            wall,
            prompt=prompt,
            stage="respond",
            instruction=_RESPOND,
            fields={
                "related_llm_request": request,
                "related_llm_response": helped["llm_response"],
                "user_query": query,
            },
            output="response",
        )
        return finished(Answered(answer["response"], request).as_text(), [craft, helped, answer])


def _request(craft: Said) -> str:
    """The request of a labelled or bare reply.

    A reply with nothing but reasoning has none: thoughts about the private query must not leave.
    """
    request = craft["llm_request"].strip()
    return "" if request == craft["reasoning"].strip() else request
