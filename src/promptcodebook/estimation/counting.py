"""A model that costs nothing: it answers every role with made-up text, and counts the requests.

Its replies have a typical length and let the loop continue: routes are valid, rewrites pass the
checks, a typed reply satisfies its schema. The text itself says nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass
from typing import Any

from promptcodebook.calls import Reply, Request, Role, Usage
from promptcodebook.config import Config
from promptcodebook.lm.wire import estimate_tokens
from promptcodebook.progress import Phase, ProgressEvent, StepDone
from promptcodebook.types import Parameters

TRAINING = "training"
"""The phase of every call that no evaluation makes."""
EVALUATIONS = ("validating", "judging")
ANSWER = 120
"""Tokens of a typical answer, or of the reply to one stage of a pipeline."""
_PROMPT = 110
"""Tokens of a typical composed prompt."""
_FIELD = {"feedback": 90, "analysis": 25, "reasoning": 60, "constraints": 10}
"""Tokens of a typical string in a typed reply, by its field; all others are complaints."""
_COMPLAINT = 35
_FILLED = 0.65
"""Share of its cap in words that a rewritten text takes up."""
_PER_WORD = 1.5
"""Tokens of one made-up word."""
_QUIET = 24
"""Turns of the event loop without a new call, after which every chain waits for a reply."""
_DIMENSIONS = 16
"""Of an embedding: how many does not matter to what a run takes."""
_LETTERS = str.maketrans("0123456789", "ghiklmnoru")


@dataclass(frozen=True, slots=True)
class Manner:
    """How a made-up run goes. Shares are in [0, 1].

    `solved` rollouts get the full reward; the others blame a share `blamed` of the parts that could
    be to blame; `reasked` typed replies are of no use at first; the user's own agent makes
    `agent_calls` an answer, and a round of maintenance `tidied` calls. In a `steady` run an input
    keeps its route, and no policy gains in validation.
    """

    solved: float
    blamed: float
    reasked: float
    refused: float
    agent_calls: int
    tidied: float = 0.0
    steady: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """Calls, their tokens, and the rounds they take: no call of a round waits for another."""

    calls: float = 0.0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    rounds: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def times(self, factor: float, *, rounds: float = 1.0) -> Work:
        """The calls and tokens times one factor, the rounds times another."""
        tokens = factor * self.prompt_tokens, factor * self.completion_tokens
        return Work(factor * self.calls, *tokens, rounds * self.rounds)


class CountingLM:
    """An LM, and the Listener (`hear`) that learns of the phase its calls belong to.

    `work` is what each phase asked of each role; `untrained` holds until the first update is done.
    """

    def __init__(self, config: Config, manner: Manner) -> None:
        self.manner = manner
        self.work: defaultdict[tuple[str, Role], Work] = defaultdict(Work)
        self.phase = TRAINING
        self.untrained = True
        self._config = config
        self._directives: list[str] = []
        self._embedded: set[str] = set()
        self._rounds = _Rounds(self._round)

    def begin(self, first: Parameters) -> None:
        """Learns the first directives, to distinguish their rewrites from an instinct's."""
        self._directives = [t for t in (first.encoder, first.generator, first.critic) if t]

    def hear(self, event: ProgressEvent) -> None:
        """An evaluation is announced as 'validating step 10' or 'judging concat'."""
        if isinstance(event, StepDone):
            self.untrained = False
        elif isinstance(event, Phase):
            kind = event.name.split()[0]
            going = kind in EVALUATIONS and event.done < event.total
            self.phase = kind if going else TRAINING

    async def __call__(self, request: Request) -> Reply:
        if request.embeds:
            return await self._embedding(request)
        await self._rounds.join(request.role)
        draw = draws(request.role, str(request.sample), *(m.content for m in request.messages))
        text, tokens = self._reply(request, draw)
        tokens = min(tokens, request.sampling.max_tokens or tokens)
        prompt = sum(estimate_tokens(m.content) for m in request.messages)
        self.work[self.phase, request.role] += Work(1, prompt, tokens)
        return Reply(text, usage=Usage(1, prompt, tokens))

    async def _embedding(self, request: Request) -> Reply:
        """Of a text that the run has read before, its journal has the reply."""
        text = request.messages[0].content
        draw = draws("embedding", text)
        vector = tuple(draw.gauss(0.0, 1.0) for _ in range(_DIMENSIONS))
        if text in self._embedded:
            return Reply("", usage=Usage(), vector=vector)
        self._embedded.add(text)
        await self._rounds.join(request.role)
        prompt = estimate_tokens(text)
        self.work[self.phase, request.role] += Work(1, prompt, 0)
        return Reply("", usage=Usage(1, prompt, 0), vector=vector)

    def _round(self, calls: Counter[Role]) -> None:
        """A round is over; its roles share it by their calls."""
        for role, count in calls.items():
            self.work[self.phase, role] += Work(rounds=count / calls.total())

    def _reply(self, request: Request, draw: random.Random) -> tuple[str, int]:
        """The reply, and the tokens that a real one would have."""
        again = any(m.role == "assistant" for m in request.messages)
        if request.schema is not None and (again or draw.random() >= self.manner.reasked):
            if self.manner.steady and request.role == "encoder":
                draw = draws(request.messages[-1].content)
            filler = _Filler(self._config, self.manner, request.schema.body, draw)
            text = json.dumps(filler.value("", request.schema.body))
            return text, estimate_tokens(text)
        if request.schema is None and request.role == "updater":
            refused = self.manner.refused > 0 and draw.random() < self.manner.refused
            text = self._rewrite(request.messages[-1].content, draw)
            if refused:  # what says nothing passes no check, and took as long to write
                return "", estimate_tokens(text)
        else:
            text = words((_PROMPT if request.role == "generator" else ANSWER) / _PER_WORD, draw)
        return text, estimate_tokens(text)

    def _rewrite(self, asked: str, draw: random.Random) -> str:
        update = self._config.update
        directive = any(text in asked for text in self._directives)
        cap = update.directive_words if directive else update.instinct_words
        text = words(cap * _FILLED, draw)
        if directive:
            self._directives.append(text)
        return text


@dataclass(frozen=True)
class _Filler:
    """An instance of a JSON schema. Fields that the loop reads get what carries it on."""

    config: Config
    manner: Manner
    body: Mapping[str, Any]
    draw: random.Random

    def value(self, name: str, node: Mapping[str, Any]) -> Any:
        """The value of the field `name`, of which `node` is the schema."""
        if "$ref" in node:
            node = self.body["$defs"][node["$ref"].rpartition("/")[2]]
        if "anyOf" in node:
            return None if {"type": "null"} in node["anyOf"] else self.value(name, node["anyOf"][0])
        if "enum" in node:
            return node["enum"][0]
        match node.get("type"):
            case "object" if "properties" in node:
                # An instinct that may be blamed is named by its index.
                inner = name if name == "instinct_errors" else None
                fields = {f: self.value(inner or f, n) for f, n in node["properties"].items()}
                return {f: each for f, each in fields.items() if each or inner is None}
            case "object":
                return {}
            case "array":
                return self._list(name, node)
            case "integer" | "number":
                return node.get("minimum", 0)
            case "boolean":
                return True
            case _:
                return self._string(name)

    def _list(self, name: str, node: Mapping[str, Any]) -> list[Any]:
        """Picks, instincts, or reasons; nothing is harmful."""
        if name == "harmful":
            return []
        if name == "selected_indices":
            return self.draw.sample(range(self.config.size), self.config.select)
        most = node.get("maxItems", self.config.size)
        count = min(self.config.size, most) if name == "instincts" else 3
        return [self.value(name, node.get("items", {})) for _ in range(count)]

    def _string(self, name: str) -> str:
        """What is solved has an empty critique, and not every part is to blame (the rubric is one
        of them)."""
        if name == "instincts":
            return words(self.config.update.instinct_words * _FILLED, self.draw)
        often = 1.0
        rubric = name == "feedback" and "score" not in self.body.get("properties", {})
        if rubric or name.endswith("_errors"):
            often = self.manner.blamed
        elif name == "feedback" and not self.config.critic.skip_solved:
            often = 1.0 - self.manner.solved
        if self.draw.random() >= often:
            return ""
        return words(_FIELD.get(name, _COMPLAINT) / _PER_WORD, self.draw)


def draws(*texts: str) -> random.Random:
    """A generator decided by the texts alone."""
    key = "\x1f".join(texts).encode("utf-8", "surrogatepass")
    return random.Random(hashlib.blake2b(key, digest_size=8).digest())


def words(count: float, draw: random.Random) -> str:
    """Made-up words: no check refuses them, and no other reply has them."""
    count = max(1, round(count))
    letters = draw.randbytes(3 * count).hex().translate(_LETTERS)
    return " ".join(letters[i : i + 5] for i in range(0, 6 * count, 6))


class _Rounds:
    """Lets calls go when no chain can make another, so that each round holds all it can."""

    def __init__(self, over: Callable[[Counter[Role]], None]) -> None:
        self._over = over
        self._waiting: list[tuple[Role, asyncio.Future[None]]] = []
        self._quiet = 0

    async def join(self, role: Role) -> None:
        """Returns when the call's round is over."""
        loop = asyncio.get_running_loop()
        place = loop.create_future()
        self._waiting.append((role, place))
        self._quiet = 0
        if len(self._waiting) == 1:
            loop.call_soon(self._look, loop)
        await place

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._quiet += 1
        if self._quiet < _QUIET:
            loop.call_soon(self._look, loop)
            return
        waiting, self._waiting = self._waiting, []
        self._over(Counter(role for role, _ in waiting))
        for _, place in waiting:
            place.set_result(None)


class Inline(ThreadPoolExecutor):
    """Threads that are none: what is searched in one is found before the loop turns again."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done
