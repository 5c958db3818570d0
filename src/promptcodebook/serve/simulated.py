"""The simulated model as a Backend: the interface that anyone's optimizer can speak.

Two models: `simulated`, the behavioural model of a world with its faults and latency, and `delay`,
which says one fixed text after the latency, for load tests. Neither is named after a real model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from promptcodebook.calls import Reply, Usage
from promptcodebook.serve.completions import ChatCall, Refusal
from promptcodebook.serve.server import Dropped, Site, Stream
from promptcodebook.simulated.chat import ChatReply, ChatRequest, from_request
from promptcodebook.simulated.faults import Fault, seconds
from promptcodebook.simulated.model import NAME, Refused, SimulatedModel
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.recipes import build_world
from promptcodebook.simulated.world import World

__all__ = ["DELAY", "simulated_site"]

DELAY = "delay"
_FIXED = "This fixed text comes from the simulated server."


def simulated_site(world: World | None, settings: SimulatedSettings | None = None) -> Site:
    """Both models, and their counts at GET /stats. No world = a general one without data."""
    settings = settings or SimulatedSettings()
    model = SimulatedModel(world or build_world("", (), settings), settings)

    def reset() -> Mapping[str, object]:
        model.stats.reset()
        return model.stats.as_dict()

    pages = {("GET", "/stats"): model.stats.as_dict, ("POST", "/stats/reset"): reset}
    return Site(_Backend(model), (NAME, DELAY), "simulated", pages)


class _Backend:
    """Hands on what an endpoint sees of a call, and streams in the settings' pieces."""

    def __init__(self, model: SimulatedModel) -> None:
        self._model = model

    async def __call__(self, call: ChatCall) -> Reply | Stream:
        asked = replace(from_request(call.request), json_mode=call.json_mode)
        try:
            is_delay = call.request.model == DELAY
            answer = await (self._delayed(asked) if is_delay else self._model.reply(asked))
        except Refused as refused:
            raise self._as_failure(refused.fault) from None
        tokens = answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens
        reply = Reply(answer.text, answer.finish, Usage(1, *tokens, None))
        return self._pieces(reply) if call.stream else reply

    async def _delayed(self, asked: ChatRequest) -> ChatReply:
        """The bare model for load tests: no reading, no world, only the wait."""
        stats = self._model.stats
        stats.requests += 1
        await asyncio.sleep(seconds(self._model.settings.latency, asked.digest))
        length = sum(len(m.content) for m in asked.messages)
        reply = ChatReply(_FIXED, "delay", "stop", length // 4, len(_FIXED) // 4)
        stats.finished(asked.digest, reply)
        return reply

    def _as_failure(self, fault: Fault) -> Exception:
        if fault == "429":
            wait = self._model.settings.retry_after
            text = "simulated: too many requests"
            return Refusal(text, status=429, kind="rate_limit", retry_after=wait)
        if fault == "500":
            return Refusal("simulated: a server error", status=500, kind="server_error")
        return Dropped(fault)

    async def _pieces(self, reply: Reply) -> Stream:
        settings = self._model.settings
        size = max(1, -(-len(reply.text) // max(1, settings.stream_chunks)))
        for start in range(0, len(reply.text), size):
            await asyncio.sleep(settings.stream_delay)
            yield reply.text[start : start + size]
        await asyncio.sleep(settings.stream_delay)
        yield reply
