"""The simulated model: one function over chat requests, in process and behind HTTP alike."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import cast

from promptcodebook.base.incidents import Incident
from promptcodebook.base.randomness import keyed_int
from promptcodebook.calls import Message, Reply, Request, Usage
from promptcodebook.data import Dataset
from promptcodebook.deploy.http.completions import descriptions
from promptcodebook.errors import LMError, RateLimited, RequestRefused, ServerFault
from promptcodebook.lm.spec import Spec
from promptcodebook.paper.simulated import author, critic, executor
from promptcodebook.paper.simulated import mind as minds
from promptcodebook.paper.simulated.orders import cut_tokens, tokens
from promptcodebook.paper.simulated.world import (
    DEFAULTS,
    FAULTS,
    SimulatedFault,
    SimulatedSettings,
    World,
)

NAME = "simulated"
# As the model of a request: one fixed text after the latency, for load tests; nothing is read.
DELAY = "delay"
_FIXED = "This fixed text comes from the simulated server."
_ROLES: Mapping[minds.RequestKind, Callable[[minds.Mind], str]] = {
    "route": author.route,
    "compose": author.compose,
    "improve": author.improve,
    "split": author.split,
    "instincts": author.write_instincts,
    "critique": critic.critique,
    "critique_and_blame": critic.critique_and_blame,
    "blame": critic.blame,
    "adversary": critic.adversary,
    "judge": critic.judge,
    "compare": critic.compare,
    "leaks": critic.count_leaks,
    "stage": executor.perform,
    "execute": executor.execute,
}
# In this order the shares lie on the line that is drawn from.
_DRAWN: tuple[SimulatedFault, ...] = ("429", "500", "drop", "truncate", "json", "routes")
_INDICES = re.compile(r"\[\s*\d+(?:\s*,\s*\d+)*\s*\]")


class FaultPlan:
    """Decides, arrival by arrival, whether and how a request fails; `shares` of the requests. Seed,
    content, and how often the request arrived before decide, so a retry can succeed."""

    def __init__(self, noise_seed: int, shares: Mapping[str, float]) -> None:
        self._seed = noise_seed
        self._shares = shares
        self._arrivals: Counter[bytes] = Counter()

    def strike(self, key: bytes, *, is_json: bool, is_route: bool) -> SimulatedFault | None:
        """The fault of this arrival, None in most cases. `key` identifies the request's body."""
        if not self._shares:
            return None
        drawn = keyed_int("fault", self._seed, key, self._arrivals[key]) / 2**63
        self._arrivals[key] += 1
        fits = {"json": is_json, "routes": is_route}
        for fault in _DRAWN:
            drawn -= self._shares.get(fault, 0.0) if fits.get(fault, True) else 0.0
            if drawn < 0:
                return fault
        return None


def _spoiled(fault: SimulatedFault | None, text: str, key: bytes) -> tuple[str, bool]:
    if fault == "truncate":
        return cut_tokens(text, max(1, len(tokens(text)) // 2)), True
    if fault == "json" and keyed_int("form", key) % 2 == 0:
        return text.rstrip().rstrip("}"), False  # repair can mend it
    if fault == "json":
        words = re.sub(r"[{}\[\]\":,]+", " ", text).split()
        return "Here is what I think: " + " ".join(words[:40]), False  # nothing can mend it
    if fault == "routes" and (match := _INDICES.search(text)) is not None:
        indices = cast("list[int]", json.loads(match[0]))
        miscounted = indices[:-1] if len(indices) > 1 else [*indices, indices[-1] + 1]
        return f"{text[: match.start()]}{json.dumps(miscounted)}{text[match.end() :]}", False
    return text, False


@dataclass(slots=True)
class Stats:
    """Since the start or reset. `repeated` = replies to a known body; `cut` = ended at a length."""

    requests: int = 0
    replies: int = 0
    repeated: int = 0
    cut: int = 0
    faults: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(FAULTS, 0)))
    kinds: Counter[str] = field(default_factory=lambda: Counter[str]())
    prompt_tokens: int = 0
    completion_tokens: int = 0
    _answered: set[bytes] = field(default_factory=lambda: set[bytes]())

    def finished(self, key: bytes, kind: str, reply: Reply) -> None:
        """Counts a reply that went out whole; `key` identifies its request's body."""
        self.replies += 1
        self.kinds[kind] += 1
        self.cut += reply.finish == "length"
        self.prompt_tokens += reply.usage.prompt_tokens
        self.completion_tokens += reply.usage.completion_tokens
        self.repeated += key in self._answered
        self._answered.add(key)

    def reset(self) -> None:
        """All counts back to nothing."""
        self.__init__()

    def as_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        counted = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "_answered"}
        counted |= {"faults": dict(self.faults), "kinds": dict(sorted(self.kinds.items()))}
        return {"model": NAME, **counted}


def answer(asked: minds.Understood, world: World, settings: SimulatedSettings) -> str:
    """The full text the simulated model says to a request. Pure."""
    return _ROLES[asked.kind](minds.Mind(asked, world, settings))


class SimulatedLM:
    """The simulated model as an `LM`: it sees of a Request what an endpoint would see."""

    def __init__(self, world: World | None = None, settings: SimulatedSettings = DEFAULTS) -> None:
        """No world = a general one without data."""
        self.settings = settings
        self.world = world or World("", (), self.settings)
        self.stats = Stats()
        self._plan = FaultPlan(self.settings.noise_seed, self.settings.faults)
        self._unseeded: Counter[bytes] = Counter()

    async def __call__(self, request: Request) -> Reply:
        """Raises RateLimited or ServerFault when such a fault is drawn, as an endpoint would."""
        return await self.reply(request)

    async def reply(
        self, request: Request, *, json_mode: bool = False, seeded: bool = True
    ) -> Reply:
        """One reply after its latency. `json_mode`: some JSON; not `seeded`: drawn afresh."""
        if request.embeds:
            message = "the simulated model offers no embeddings"
            hint = "router.features = 'words'"
            raise RequestRefused(message, hint=hint, role=request.role, model=request.model)
        asked = replace(minds.from_request(request), json_mode=json_mode)
        tools = descriptions(request.sampling.extra.get("tools"))
        tool = next(iter(tools), "") if self.settings.heeds_tools else ""
        if tool:
            rest = [m for m in asked.messages if m.role != "system"]
            asked = replace(asked, messages=(Message("system", tools[tool]), *rest), digest=b"")
        if not seeded:
            self._unseeded[asked.digest] += 1
            asked = replace(asked, seed=self._unseeded[asked.digest])
        started = time.perf_counter()
        self.stats.requests += 1
        if request.model == DELAY:
            await asyncio.sleep(self.settings.latency.seconds(asked.digest))
            length = sum(len(m.content) for m in asked.messages)
            answer = Reply(_FIXED, usage=Usage(1, length // 4, len(_FIXED) // 4, cost=None))
            self.stats.finished(asked.digest, DELAY, answer)
        else:
            answer = await self._reply(asked)
        if tool:
            call = {"name": tool, "arguments": json.dumps({"text": answer.text})}
            made = {"id": "call_0", "type": "function", "function": call}
            answer = replace(answer, text="", tool_calls=(made,))
        return replace(answer, usage=replace(answer.usage, latency_s=time.perf_counter() - started))

    async def _reply(self, request: minds.RecognisedRequest) -> Reply:
        """The reply, ready `latency` after the request came: thinking counts as part of it."""
        arrived = time.perf_counter()
        # What tells two requests apart: messages, sampling, seed, and the schema's keys.
        schema = "" if request.schema is None else str(request.schema)
        sampling = (request.temperature, request.max_tokens, request.sample)
        parts = repr((request.digest.hex(), *sampling, schema)).encode(errors="replace")
        key = hashlib.sha256(parts).digest()[:16]
        asked = minds.understand(request, self.world)
        wants_json = asked.shape.json and asked.kind not in ("execute", "compose", "improve")
        fault = self._plan.strike(key, is_json=wants_json, is_route=asked.kind == "route")
        text, cut = _spoiled(fault, answer(asked, self.world, self.settings), key)
        if request.max_tokens is not None and len(tokens(text)) > request.max_tokens:
            text, cut = cut_tokens(text, request.max_tokens), True
        length = sum(4 + len(tokens(m.content)) for m in request.messages)
        wait = arrived + self.settings.latency.seconds(key) - time.perf_counter()
        if wait > 0.0:
            await asyncio.sleep(wait)
        if fault is not None:
            self.stats.faults[fault] += 1
        if fault in ("429", "500", "drop"):
            raise self._as_error(fault)
        usage = Usage(1, length, len(tokens(text)), cost=None)
        reply = Reply(text, "length" if cut else "stop", usage)
        self.stats.finished(key, asked.kind, reply)
        return reply

    def _as_error(self, fault: SimulatedFault) -> LMError:
        hint = "lower the shares after 'faults=' in the simulated model's spec"
        if fault == "429":
            limited = RateLimited("the simulated model refused: 429", hint=hint, model=NAME)
            limited.retry_after = self.settings.retry_after
            return limited
        outcome = "broke the connection" if fault == "drop" else "failed: 500"
        error = ServerFault(f"the simulated model {outcome}", hint=hint, model=NAME)
        error.incident = Incident.DROPPED if fault == "drop" else Incident.SERVER_ERROR
        return error


def simulated_model(task: str, dataset: Dataset, spec: Spec) -> SimulatedLM:
    """The model behind a `simulated?...` spec, in a world of the task's data. Raises ConfigError
    when a parameter is wrong."""
    settings = SimulatedSettings.from_params(spec.params)
    examples = [*dataset.train, *dataset.val, *dataset.test]
    return SimulatedLM(World(task, examples, settings), settings)
