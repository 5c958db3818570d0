"""PAPILLON: a trusted model rewrites, an untrusted one helps, the trusted one answers.

Departure from the GEPA artifact: a call that fails fails the rollout (it scores the bottom of the
range all the same); an empty request is not sent, and its answer is empty as there.
"""

from __future__ import annotations

from collections.abc import Sequence

from promptcodebook.calls import Chat, Message, Reply, Role, Schema
from promptcodebook.errors import ConfigError
from promptcodebook.tasks.program import ModuleReply, ask, make_output, outside, think
from promptcodebook.types import Example, Output, Prompt

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


def request_of(output: Output) -> str:
    """The request that went outside; "" where none did."""
    return str(output.fields.get("request") or "")


class Papillon:
    """craft (executor) -> outside (untrusted) -> respond (executor).

    y is the answer to the user; its field `request` is what went outside.
    """

    name = "pupa"
    stages = ("craft", "respond")
    """The stages that a composed prompt stands before; `outside` has none."""
    roles: frozenset[Role] = frozenset({"untrusted"})

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
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
            return make_output("", [craft], {"request": ""})
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
        return make_output(answer["response"], [craft, helped, answer], {"request": request})


def _request(craft: ModuleReply) -> str:
    """The request of a labelled or bare reply.

    A reply with nothing but reasoning has none: thoughts about the private query must not leave.
    """
    request = craft["llm_request"].strip()
    return "" if request == craft["reasoning"].strip() else request
