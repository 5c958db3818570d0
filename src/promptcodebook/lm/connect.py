"""Specs become LMs: one stack (retry, limit, endpoint) per model, one limit per address."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from promptcodebook.errors import ConfigError
from promptcodebook.lm.base import LM, no_tally
from promptcodebook.lm.gate import Gate
from promptcodebook.lm.key import credentials
from promptcodebook.lm.limit import AdaptiveLimit
from promptcodebook.lm.per_loop import PerLoop
from promptcodebook.lm.retry import Backoff, Retrying
from promptcodebook.lm.spec import Spec, parse_spec
from promptcodebook.types import Tally

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Endpoints", "Wire"]


@dataclass(frozen=True, slots=True)
class Wire:
    """How calls go out: seconds one may take, retries, calls in flight per address."""

    timeout: float = 120.0
    concurrency: int = 64
    backoff: Backoff = field(default_factory=Backoff)


class _Closes(Protocol):
    async def close(self) -> None: ...


class Endpoints:
    """Connects specs and closes everything it connected.

    `simulated` builds the model behind `simulated?...`; `environment` is where keys come from.
    """

    def __init__(
        self,
        wire: Wire = Wire(),
        *,
        tally: Tally = no_tally,
        simulated: Callable[[Spec], LM] | None = None,
        environment: Mapping[str, str] | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._wire = wire
        self._tally = tally
        self._simulated = simulated
        self._gate = gate or Gate()
        self._gate.on_close(self._resume)
        self._environment = os.environ if environment is None else environment
        self._limits: dict[str, PerLoop[AdaptiveLimit]] = {}
        self._open: list[_Closes] = []

    def connect(self, spec_text: str, headers: Mapping[str, str] | None = None) -> LM:
        """The LM behind a spec. Opens no connection yet; raises ConfigError or MissingExtra."""
        spec = parse_spec(spec_text, self._environment)
        inner = self._inner(spec, headers or {})
        return Retrying(
            inner, lambda: self.limit_of(spec), self._wire.backoff, self._tally, self._gate
        )

    def limit_of(self, spec: Spec) -> AdaptiveLimit:
        """The limit that all models at the spec's address share, in the loop that runs now."""
        limits = self._limits.setdefault(spec.base_url or spec.text, PerLoop())
        limits.orphans()
        return limits.here(lambda: AdaptiveLimit(self._wire.concurrency))

    def _resume(self) -> None:
        for limits in self._limits.values():
            for limit in limits.everywhere():
                limit.resume()

    def _inner(self, spec: Spec, headers: Mapping[str, str]) -> LM:
        if spec.kind == "simulated":
            if self._simulated is None:
                raise ConfigError(
                    "no simulated model stands ready here", hint="pco lm serve simulated"
                )
            return self._simulated(spec)
        if spec.kind == "litellm":
            from promptcodebook.lm.litellm import LiteLLM

            return LiteLLM(spec.model, timeout=self._wire.timeout, headers=headers)
        # aiohttp takes a sixth of a second to import: here, once, and not in the first call.
        from promptcodebook.lm.endpoint import Endpoint

        with_ = credentials(spec.key_names, headers, self._environment)
        named = replace(spec, key_names=with_.names)
        endpoint = Endpoint(named, with_.key, timeout=self._wire.timeout, headers=with_.headers)
        self._open.append(endpoint)
        return endpoint

    async def close(self) -> None:
        """Closes every connection; an endpoint that is used again opens a new one."""
        for endpoint in self._open:
            await endpoint.close()

    async def __aenter__(self) -> Endpoints:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
