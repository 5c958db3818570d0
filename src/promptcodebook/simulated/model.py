"""The simulated model: one pure function over chat requests, in process and behind HTTP alike."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping

from promptcodebook.calls import Reply, Request, Usage
from promptcodebook.errors import LMError, RateLimited, ServerFault
from promptcodebook.incidents import Incident
from promptcodebook.simulated.attribution import blame, critique_and_blame
from promptcodebook.simulated.authoring import judge, split, write_instincts
from promptcodebook.simulated.chat import ChatReply, ChatRequest, Draw, from_request
from promptcodebook.simulated.critic import adversary, critique
from promptcodebook.simulated.encoder import route
from promptcodebook.simulated.executor import execute, perform
from promptcodebook.simulated.faults import Fault, FaultPlan, seconds, spoiled
from promptcodebook.simulated.generator import compose
from promptcodebook.simulated.improve import improve
from promptcodebook.simulated.jury import compare, count_leaks
from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.prefix import PrefixCache
from promptcodebook.simulated.recognise import Kind, Understood, understand
from promptcodebook.simulated.stats import Stats
from promptcodebook.simulated.words import count_tokens, cut_tokens
from promptcodebook.simulated.world import World

__all__ = ["NAME", "Refused", "SimulatedLM", "SimulatedModel", "answer"]

NAME = "simulated"

_ROLES: Mapping[Kind, Callable[[Mind], str]] = {
    "route": route,
    "compose": compose,
    "critique": critique,
    "critique_and_blame": critique_and_blame,
    "blame": blame,
    "adversary": adversary,
    "improve": improve,
    "split": split,
    "instincts": write_instincts,
    "judge": judge,
    "compare": compare,
    "leaks": count_leaks,
    "stage": perform,
    "execute": execute,
}


class Refused(Exception):
    """The request gets no reply: the fault that struck it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault: Fault = fault


def answer(asked: Understood, world: World, settings: SimulatedSettings) -> str:
    """The full text the simulated model says to a request. Pure."""
    draw = Draw(settings.world_seed, asked.request.sample, asked.request.digest)
    return _ROLES[asked.kind](Mind(asked, world, settings, draw))


def body_key(request: ChatRequest) -> bytes:
    """What tells two requests apart: messages, sampling, seed, and the schema's keys."""
    schema = "" if request.schema is None else str(request.schema)
    parts = (request.digest.hex(), request.temperature, request.max_tokens, request.sample, schema)
    return hashlib.sha256(repr(parts).encode(errors="replace")).digest()[:16]


class SimulatedModel:
    """A world with its faults, latency and counts: what the LM and the server both serve."""

    def __init__(
        self, world: World, settings: SimulatedSettings | None = None, stats: Stats | None = None
    ) -> None:
        self.world = world
        self.settings = settings or SimulatedSettings()
        self.stats = stats or Stats()
        self._plan = FaultPlan(self.settings.world_seed, self.settings.faults)
        self._prefix = PrefixCache(self.settings.cache_block)

    async def reply(self, request: ChatRequest) -> ChatReply:
        """One reply after its latency. Raises Refused when a fault strikes."""
        self.stats.requests += 1
        key = body_key(request)
        asked = understand(request, self.world)
        wants_json = asked.shape.json and asked.kind not in ("execute", "compose", "improve")
        fault = self._plan.strike(key, is_json=wants_json, is_route=asked.kind == "route")
        wait = seconds(self.settings.latency, key)
        if wait > 0.0:
            await asyncio.sleep(wait)
        if fault is not None:
            self.stats.faults[fault] += 1
        if fault in ("429", "500"):
            raise Refused(fault)
        found = self._finished(request, asked, fault, key)
        if fault == "drop":
            raise Refused(fault)
        self.stats.finished(key, found)
        return found

    def _finished(
        self, request: ChatRequest, asked: Understood, fault: Fault | None, key: bytes
    ) -> ChatReply:
        text, cut = spoiled(fault, answer(asked, self.world, self.settings), key)
        if request.max_tokens is not None and count_tokens(text) > request.max_tokens:
            text, cut = cut_tokens(text, request.max_tokens), True
        cached = self._prefix.cached(request.messages) if self.settings.prefix_cache else 0
        return ChatReply(
            text,
            asked.kind,
            "length" if cut else "stop",
            sum(4 + count_tokens(m.content) for m in request.messages),
            count_tokens(text),
            cached,
        )


class SimulatedLM:
    """The simulated model in process, as an `LM`: sees of a Request what an endpoint would see."""

    def __init__(
        self, world: World, settings: SimulatedSettings | None = None, stats: Stats | None = None
    ) -> None:
        self.model = SimulatedModel(world, settings, stats)

    @property
    def stats(self) -> Stats:
        return self.model.stats

    async def __call__(self, request: Request) -> Reply:
        """Raises RateLimited or ServerFault when such a fault is drawn, as an endpoint would."""
        started = time.perf_counter()
        try:
            said = await self.model.reply(from_request(request))
        except Refused as refused:
            raise self._as_error(refused.fault) from None
        took = time.perf_counter() - started
        usage = Usage(1, said.prompt_tokens, said.completion_tokens, said.cached_tokens, None, took)
        return Reply(said.text, said.finish, usage)

    def _as_error(self, fault: Fault) -> LMError:
        hint = "lower the shares after 'faults=' in the simulated model's spec"
        if fault == "429":
            limited = RateLimited("the simulated model refused: 429", hint=hint, model=NAME)
            limited.retry_after = self.model.settings.retry_after
            return limited
        said = "broke the connection" if fault == "drop" else "failed: 500"
        error = ServerFault(f"the simulated model {said}", hint=hint, model=NAME)
        error.incident = Incident.DROPPED if fault == "drop" else Incident.SERVER_ERROR
        return error
