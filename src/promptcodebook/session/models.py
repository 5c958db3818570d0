"""The stack every call goes through: roles, journal, cache, budget, and the endpoints below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from promptcodebook.config import Config
from promptcodebook.errors import ConfigError
from promptcodebook.lm.base import LM
from promptcodebook.lm.budget import Budgeted
from promptcodebook.lm.cache import Cache, default_cache_path
from promptcodebook.lm.connect import Endpoints, Wire
from promptcodebook.lm.dispatch import Dispatch
from promptcodebook.lm.gate import Gate
from promptcodebook.lm.journal import Journaled, ReplyLog
from promptcodebook.lm.ledger import Ledger
from promptcodebook.lm.prices import PriceTable
from promptcodebook.lm.retry import Backoff
from promptcodebook.lm.roles import Roles
from promptcodebook.lm.spec import Spec
from promptcodebook.lm.structured import Ask
from promptcodebook.types import ROLES, Role, Tally

__all__ = ["Counts", "Models", "Supplies", "any_simulated", "simulated_in", "specs_of"]


class Counts:
    """A Tally that can be read; `sink` hears of each count too."""

    def __init__(
        self, start: Mapping[str, int] | None = None, sink: Callable[[str, int], None] | None = None
    ) -> None:
        self.values: Counter[str] = Counter(start or {})
        self._sink = sink

    def __call__(self, name: str, count: int = 1) -> None:
        self.values[name] += count
        if self._sink is not None:
            self._sink(name, count)


@dataclass(frozen=True)
class Supplies:
    """What the stack is built with beside the configuration; all of it optional."""

    own: LM | None = None
    """The user's own LM object, in place of every spec."""
    simulated: Callable[[Spec], LM] | None = None
    log: ReplyLog | None = None
    ledger: Ledger | None = None
    tally: Tally | None = None
    elapsed: Callable[[], float] | None = None


@dataclass(frozen=True)
class Models:
    """The stack, and what is needed to watch, stop and close it."""

    lm: Roles
    ask: Ask
    tally: Tally
    ledger: Ledger
    budget: Budgeted
    _endpoints: Endpoints
    _cache: Cache | None

    @classmethod
    def build(cls, config: Config, supplies: Supplies = Supplies()) -> Models:
        """Raises ConfigError for a bad spec, or a money budget over an unknown price."""
        tally = supplies.tally or Counts()
        ledger = supplies.ledger or Ledger()
        wire = Wire(config.timeout, config.concurrency, Backoff(config.retries))
        gate = Gate()
        endpoints = Endpoints(wire, tally=tally, simulated=supplies.simulated, gate=gate)
        specs = specs_of(config)
        table = {spec: supplies.own or endpoints.connect(spec, h) for spec, h in specs.items()}
        clock = supplies.elapsed or _no_time
        prices = PriceTable(config.prices)
        budget = Budgeted(Dispatch(table), config.budget, prices, ledger, clock, gate)
        budget.check_prices(specs)
        inner: LM = budget
        cache = None
        if config.cache and supplies.own is None and not simulated_in(specs):
            inner = cache = Cache(inner, default_cache_path(), tally)
        if supplies.log is not None:
            inner = Journaled(inner, supplies.log, tally, gate)
        roles = Roles(inner, config.roles, config.lm)
        return cls(roles, Ask(roles, tally), tally, ledger, budget, endpoints, cache)

    def by_role(self) -> dict[Role, str]:
        """The model of every role."""
        return {role: self.lm.model_of(role) for role in ROLES}

    async def close(self) -> None:
        """Closes connections and the cache."""
        try:
            await self._endpoints.close()
        finally:
            if self._cache is not None:
                self._cache.close()


def specs_of(config: Config) -> dict[str, dict[str, str]]:
    """Every spec in use with its headers. Roles that share a spec must agree on headers."""
    specs: dict[str, dict[str, str]] = {}
    for role in ROLES:
        settings = config.roles.get(role)
        spec = (settings.model if settings is not None else None) or config.lm
        headers = dict(settings.headers) if settings is not None else {}
        if not spec:
            raise ConfigError(
                f"role {role} has no model",
                hint="set lm in pco.toml, pass --lm, or set PCO_LM",
            )
        if headers and specs.get(spec) not in (None, {}, headers):
            raise ConfigError(
                f"two roles send different headers to {spec}",
                hint="give one of them another spec, or the same headers",
            )
        specs[spec] = headers or specs.get(spec, {})
    return specs


def simulated_in(specs: Iterable[str]) -> bool:
    """Whether one runs in this process: its replies cost nothing and are not cached."""
    return any(spec.split("?")[0] == "simulated" for spec in specs)


def any_simulated(specs: Iterable[str]) -> bool:
    """Whether a simulated model is among them, in process or served: figures must say so."""
    named = {spec.rpartition("#")[2].split("?")[0] for spec in specs}
    return "simulated" in named


def _no_time() -> float:
    return 0.0
