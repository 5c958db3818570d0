"""The simulated model over HTTP: the chat-completions wire in front of it.

It serves two models: `simulated`, the behavioural model of a world with its faults and latency, and
`delay`, which says one fixed text after the latency, for load tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from promptcodebook.assemble import NO_DATA, plan_data
from promptcodebook.calls import Reply
from promptcodebook.config import Config
from promptcodebook.errors import LMError, RateLimited
from promptcodebook.incidents import Incident
from promptcodebook.lm.spec import Spec
from promptcodebook.serve.completions import ChatCall, Refusal
from promptcodebook.serve.server import Dropped, Site, Stream
from promptcodebook.simulated.model import SimulatedLM, simulated_model


def open_site(spec: Spec, config: Config, base: Path, key: str = "") -> Site:
    """The model in a world of the configuration's data; without data, in a general one."""
    named = config.task or config.data.path or config.data.train
    data = plan_data(config, base) if named else NO_DATA
    return simulated_site(simulated_model(config.task, data, spec), key)


def simulated_site(lm: SimulatedLM, key: str = "") -> Site:
    """Both models, and their counts at GET /stats."""

    def reset() -> Mapping[str, object]:
        lm.stats.reset()
        return lm.stats.as_dict()

    pages = {("GET", "/stats"): lm.stats.as_dict, ("POST", "/stats/reset"): reset}
    return Site(_Backend(lm), ("simulated", "delay"), "simulated", pages, key)


class _Backend:
    """Hands on what an endpoint sees of a call, and streams in the settings' pieces."""

    def __init__(self, lm: SimulatedLM) -> None:
        self._lm = lm

    async def __call__(self, call: ChatCall) -> Reply | Stream:
        try:
            reply = await self._lm.reply(call.request, json_mode=call.json_mode, seeded=call.seeded)
        except LMError as error:
            failure = Refusal("simulated: a server error", status=500, kind="server_error")
            if isinstance(error, RateLimited):
                wait, text = self._lm.settings.retry_after, "simulated: too many requests"
                failure = Refusal(text, status=429, kind="rate_limit", retry_after=wait)
            dropped = error.incident == Incident.DROPPED
            raise Dropped("drop") if dropped else failure from None
        return self._pieces(reply) if call.stream else reply

    async def _pieces(self, reply: Reply) -> Stream:
        settings = self._lm.settings
        size = max(1, -(-len(reply.text) // max(1, settings.stream_chunks)))
        for start in range(0, len(reply.text), size):
            await asyncio.sleep(settings.stream_delay)
            yield reply.text[start : start + size]
        await asyncio.sleep(settings.stream_delay)
        yield reply
