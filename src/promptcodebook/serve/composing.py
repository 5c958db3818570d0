"""A policy's prompt for a request, within its time.

Without a learned router the encoder is called first, then the generator unless instincts are put in
verbatim; the answer itself is the last call. Where a call fails or takes too long, the S instincts
of highest r̄ replace the route, and the route's instincts as they are replace the prompt. Such a
prompt is counted and never cached.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

from promptcodebook.errors import PcoError
from promptcodebook.policy.policy import Policy
from promptcodebook.types import Example, Route

_log = logging.getLogger(__name__)
_K = TypeVar("_K")
_V = TypeVar("_V")
_LONG = 2**18
"""Characters."""

Mode = Literal["one-call", "two-call", "three-call"]
Cached = Literal["", "route", "input"]


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that the encoder and the generator may take, and how many prompts are kept."""

    route_s: float = 10.0
    compose_s: float = 10.0
    kept: int = 10_000


@dataclass(frozen=True, slots=True)
class Composed:
    """A prompt and how it came about.

    `fallbacks` name what had to do without a model, and why: 'encoder:timeout', 'encoder:error',
    'encoder:reply', 'generator:...', 'input:empty'. `cached` = by what the prompt was known.
    """

    prompt: str
    route: Route
    fallbacks: tuple[str, ...] = ()
    cached: Cached = ""


class Composing:
    """One version of a policy at work. `version` is its file's hash: 'sha256:' and 64 digits."""

    def __init__(self, policy: Policy, version: str, patience: Patience = Patience()) -> None:
        self.policy = policy
        self.version = version
        self._by_input: _Recent[bytes, Composed] = _Recent(patience.kept)
        self._by_route: _Recent[tuple[int, ...], str] = _Recent(patience.kept)
        file = policy.file
        asks_encoder = bool(file.encoder) if file.router is None else bool(file.router.center)
        self._asks_generator = asks_generator = file.compose == "generator"
        calls: tuple[Mode, ...] = ("one-call", "two-call", "three-call")
        self.mode: Mode = calls[asks_encoder + asks_generator]
        # Where no model is asked there is nothing to wait for, and a timer costs more than the sum.
        self._route_s = patience.route_s if asks_encoder else None
        self._compose_s = patience.compose_s if asks_generator else None
        # A template that never names the input makes one prompt of a route for all inputs.
        self._one_a_route = asks_generator and "{task}" not in file.templates.generator

    async def compose(self, text: str) -> Composed:
        """The prompt for an input; it always has one."""
        if not text or text.isspace():
            route = self.policy.spare_route()
            return Composed(self.policy.verbatim(route), route, ("input:empty",))
        long = len(text) >= _LONG
        key, example = await asyncio.to_thread(self._hashed, text) if long else self._hashed(text)
        known = self._by_input.get(key)
        if known is not None:
            return known
        found = await _within(self._route_s, self.policy.aroute(example), "encoder")
        if isinstance(found, str):
            route, lost = self.policy.spare_route(), found
        else:
            route, lost = found, "reply" if found.fallback else ""
        composed = await self._compose(example, route)
        if lost:
            return replace(composed, fallbacks=(f"encoder:{lost}", *composed.fallbacks))
        if not composed.fallbacks:
            self._by_input.put(key, replace(composed, cached="input"))
        return composed

    async def close(self) -> None:
        await self.policy.aclose()

    def _hashed(self, text: str) -> tuple[bytes, Example]:
        """What an input is known by, and the example that it is."""
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        return key, self.policy.example_of(text)

    async def _compose(self, example: Example, route: Route) -> Composed:
        if self._one_a_route:
            known = self._by_route.get(route.indices)
            if known is not None:
                return Composed(known, route, cached="route")
        work = self.policy.acompose_route(example, route)
        made = await _within(self._compose_s, work, "generator")
        if isinstance(made, str):
            return Composed(self.policy.verbatim(route), route, (f"generator:{made}",))
        if self._asks_generator and made.text == self.policy.verbatim(route):
            # What the generator puts together itself where a reply cannot be used.
            return Composed(made.text, route, ("generator:reply",))
        if self._one_a_route:
            self._by_route.put(route.indices, made.text)
        return Composed(made.text, route)


async def _within(seconds: float | None, work: Awaitable[_V], who: str) -> _V | str:
    """What the work comes to, or in a word why it came to nothing; None = it may take its time. The
    log has no error's text: it may quote the request."""
    try:
        if seconds is None:
            return await work
        async with asyncio.timeout(seconds):
            return await work
    except PcoError as error:
        reason = "timeout" if isinstance(error, TimeoutError) else "error"
        _log.warning("the %s failed: %s", who, type(error).__name__)
    except TimeoutError:
        reason = "timeout"
        _log.warning("the %s took longer than %g s", who, seconds)
    return reason


class _Recent(Generic[_K, _V]):
    """The last `most` values asked for."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[_K, _V] = OrderedDict()

    def get(self, key: _K) -> _V | None:
        if (value := self._values.get(key)) is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: _K, value: _V) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)
