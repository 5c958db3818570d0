"""The stack that every call passes, built from the configuration.

From the top: `Roles` fills in model and sampling; then come the run's journal, the reply cache,
`Dispatch` by model, and the `Endpoints` with one retry layer and one limit for each address. The
budget is lowest: it admits each single request, and books it when it ends.

The server's own token count is used unless it is impossible; then ours replaces it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from promptcodebook.calls import LM, ROLES, Reply, Request, Role, Sampling, Usage
from promptcodebook.config import Config, RoleSettings, fill_secrets
from promptcodebook.errors import ConfigError, LMError, PcoError, StoreError
from promptcodebook.incidents import Counts, Incident, Tally
from promptcodebook.lm.budget import BudgetGate, Ledger, PriceTable
from promptcodebook.lm.cache import Cache, Journaled, ReplyLog, nothing_more
from promptcodebook.lm.connections import (
    CallSettings,
    Closes,
    Endpoints,
    InProcess,
    LocalModels,
    require_keys,
)
from promptcodebook.lm.limit import Backoff, StopSignal
from promptcodebook.lm.spec import Spec, any_simulated
from promptcodebook.lm.structured import Ask
from promptcodebook.lm.wire import byte_size, count_usage
from promptcodebook.paths import reply_cache_path

# The most bytes of text in one token (the longest runs of spaces are one token).
_BYTES_A_TOKEN = 128
# What a server may put around a prompt, or write beyond the cap, and still be believed.
_TIMES, _BEYOND = 4, 4096


class Attempted:
    """An LM whose every call is one attempt at `inner`, which makes one request and no more.

    Raises BudgetReached where the attempt could pass the budget. An attempt that brings no reply is
    booked by what became of it: lost ones at the most they can cost, refused ones as a call without
    tokens, and one that reached no server not at all.
    """

    def __init__(self, inner: LM, gate: BudgetGate, tally: Tally) -> None:
        self._inner = inner
        self._gate = gate
        self._tally = tally

    async def __call__(self, request: Request) -> Reply:
        gate = self._gate
        most = gate.most(request)
        await gate.enter(most)
        try:
            return await self._attempt(request, most)
        except StoreError as error:
            gate.stop_signal.give(error)  # what is asked for from now on could not be booked
            raise
        finally:
            gate.leave(most)

    async def _attempt(self, request: Request, most: Usage) -> Reply:
        ledger = self._gate.ledger
        attempt = ledger.begin(request.role, most)
        try:
            reply = await self._inner(request)
        except BaseException as error:
            usage, lost = _toll(error, most)
            ledger.end(attempt, usage, lost=lost)
            raise
        if reply.source != "live":
            ledger.end(attempt, Usage())
            return reply
        if not credible(reply.usage, request, reply.text, most):
            usage = count_usage(request, reply.text, reply.usage.latency_s)
            reply = replace(reply, usage=usage, estimated=True)
        if reply.estimated:
            self._tally(Incident.USAGE_REPLACED)
        usage = replace(reply.usage, cost=self._gate.prices.cost(request.model, reply.usage))
        ledger.end(attempt, usage)
        return replace(reply, usage=usage)


def _toll(error: BaseException, most: Usage) -> tuple[Usage, bool]:
    """What an attempt without a reply is booked at, and whether it counts as lost."""
    if isinstance(error, LMError):
        if error.lost:
            return most, True
        return Usage(calls=int(error.sent)), False
    # A wrong setting sent nothing; a cancelled call may have been paid for.
    return (Usage(), False) if isinstance(error, PcoError) else (most, True)


def credible(usage: Usage, request: Request, text: str, most: Usage) -> bool:
    """Whether a reply can have taken that many tokens. `most` is the bound of its attempt."""
    asked = sum(byte_size(m.content) for m in request.messages)
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    written = byte_size(text)
    capped = request.sampling.max_tokens is not None
    longest = max(most.completion_tokens, written)
    return (
        usage.calls > 0
        and max(1, asked // _BYTES_A_TOKEN) <= prompt <= _TIMES * most.prompt_tokens + _BEYOND
        and -(-written // _BYTES_A_TOKEN) <= completion
        # Hidden thoughts count too: without a cap their number is unknown.
        and (not capped or completion <= _TIMES * longest + _BEYOND)
        and 0 <= usage.cached_prompt_tokens <= prompt
    )


def _nowhere_else() -> Mapping[tuple[Role, str], str]:
    return {}


def _no_time() -> float:
    return 0.0


@dataclass(frozen=True)
class Supplies:
    """What the stack is built with beside the configuration; all of it optional."""

    own: LM | None = None
    """The user's own LM object, in place of every spec."""
    simulated: Callable[[Spec], LM] | None = None
    local: LocalModels | None = None
    """The models whose weights are in this process."""
    closes: Closes | None = None
    """What is closed together with the models, if anything."""
    log: ReplyLog | None = None
    spare: Callable[[], ReplyLog | None] | None = None
    """Opens a journal for replies that cost something, and that nothing else would keep."""
    ledger: Ledger | None = None
    tally: Tally | None = None
    elapsed: Callable[[], float] | None = None
    models_then: Mapping[tuple[Role, str], str] = field(default_factory=_nowhere_else)
    """By role and spec, the spec that the journal knows the model by, where it is another."""
    private: bool = False
    """Whether what is sent is real people's, so that no error may quote it."""

    @classmethod
    def of_one_budget(cls) -> Supplies:
        """An empty ledger and a clock that begins now: all that is built with them keeps within
        one budget together."""
        began = time.monotonic()
        return cls(ledger=Ledger(), elapsed=lambda: time.monotonic() - began)


@dataclass(frozen=True)
class Models:
    """The stack, and what is needed to watch, stop and close it."""

    lm: Roles
    ask: Ask
    tally: Tally
    ledger: Ledger
    budget: BudgetGate
    _endpoints: Endpoints
    _dispatch: Dispatch
    _cache: Cache | None
    keeps: bool
    """Whether work that is stopped finds its replies again."""
    _closes: Closes | None = None

    @classmethod
    def build(cls, config: Config, supplies: Supplies = Supplies()) -> Models:
        """Raises ConfigError for a bad spec, a key that a provider wants and that is not set, or a
        money budget over an unknown price."""
        tally = supplies.tally or Counts()
        ledger = supplies.ledger or Ledger()
        local = supplies.local
        stop = StopSignal()
        specs = specs_of(config)
        if supplies.own is None:
            require_keys(specs)
            # Refuse a body field whose environment variable is not set.
            for role in ROLES:
                if role in config.roles and not simulated_here([config.model_of(role)]):
                    fill_secrets(config.roles[role].extra, os.environ)
        prices, elapsed = PriceTable(config.prices), supplies.elapsed or _no_time
        budget = BudgetGate(config.budget, prices, ledger, elapsed, stop)
        budget.check_prices(specs)

        def around(lm: LM) -> LM:
            return Attempted(lm, budget, tally)

        most_bytes, backoff = int(config.max_reply_mb * 1e6), Backoff(config.retries)
        settings = CallSettings(
            config.timeout, config.concurrency, backoff, most_bytes, supplies.private
        )
        endpoints = Endpoints(
            settings,
            tally=tally,
            here=InProcess(supplies.simulated, None if local is None else local.connect),
            stop=stop,
            around=around,
        )
        own = None if supplies.own is None else around(supplies.own)
        dispatch = Dispatch({s: own or endpoints.connect(s, h) for s, h in specs.items()})
        inner: LM = dispatch
        cache = None
        if config.cache and supplies.own is None and not simulated_here(specs):
            identity = nothing_more if local is None else local.identity
            inner = cache = Cache(inner, reply_cache_path(), tally, identity)
        log = supplies.log
        if supplies.spare and not (cache or supplies.own or simulated_here(specs)):
            log = log or supplies.spare()
        if log is not None:
            inner = Journaled(inner, log, tally, stop, supplies.models_then)
        roles = Roles(inner, config.roles, config.lm)
        ask = Ask(roles, tally)
        keeps = cache is not None or log is not None
        stack = (roles, ask, tally, ledger, budget, endpoints, dispatch, cache, keeps)
        return cls(*stack, supplies.closes)

    def by_role(self) -> dict[Role, str]:
        """The model of every role."""
        return {role: self.lm.model_of(role) for role in ROLES}

    def connect(self, spec: str) -> None:
        """One more model, for requests that name it themselves; they take the same way, through
        journal, cache, budget and meter. Raises ConfigError or MissingExtra."""
        self._dispatch.add(spec, self._endpoints.connect(spec))

    @property
    def simulated(self) -> bool:
        """Whether any of them is simulated: figures must say so."""
        return any_simulated(self.by_role().values())

    async def close(self) -> None:
        """Closes connections, the cache, and the local models that are closed with them."""
        try:
            await self._endpoints.close()
        finally:
            if self._cache is not None:
                self._cache.close()
            if self._closes is not None:
                await self._closes.close()


def specs_of(config: Config) -> dict[str, dict[str, str]]:
    """Every spec in use with its headers. Roles that share a spec must agree on headers."""
    specs: dict[str, dict[str, str]] = {}
    for role in ROLES:
        settings = config.roles.get(role)
        spec = config.model_of(role)
        headers = dict(settings.headers) if settings is not None else {}
        if not spec:
            raise ConfigError(
                f"role {role} has no model",
                hint="set lm in pco.toml, pass --lm (lm= in Python), or set PCO_LM",
            )
        if headers and specs.get(spec) not in (None, {}, headers):
            raise ConfigError(
                f"two roles send different headers to {spec}",
                hint="give one of them another spec, or the same headers",
            )
        specs[spec] = headers or specs.get(spec, {})
    return specs


def uses_simulated(config: Config) -> bool:
    """Whether a simulated model is among the configured ones."""
    return any_simulated(specs_of(config))


def simulated_here(specs: Iterable[str]) -> bool:
    """Whether a simulated model runs in this process: its replies cost nothing, none is cached."""
    return any(spec.split("?")[0] == "simulated" for spec in specs)


_READ = Sampling(max_tokens=0)
"""Of an embedding: nothing is written."""


class Roles:
    """Fills `model` and `sampling` by role, unless the request has its own; greedy means
    temperature 0.

    At temperature 0 the sample is set to 0 and top_p left out, so that equal greedy requests share
    one key wherever they come from. An embedding is not drawn at all.
    """

    def __init__(self, inner: LM, settings: Mapping[str, RoleSettings], default_model: str) -> None:
        self._inner = inner
        known: dict[Role, RoleSettings] = {r: settings.get(r, RoleSettings()) for r in ROLES}
        self._models = {role: each.model or default_model for role, each in known.items()}
        self._drawn = {role: _sampling(each) for role, each in known.items()}
        self._greedy = {role: _greedy(each) for role, each in self._drawn.items()}

    def model_of(self, role: Role) -> str:
        """The full spec of the role's model."""
        return self._models[role]

    def sampling_of(self, role: Role, greedy: bool = False) -> Sampling:
        """How the role's replies are drawn."""
        return (self._greedy if greedy else self._drawn)[role]

    async def __call__(self, request: Request) -> Reply:
        role = request.role
        sampling = _READ if request.embeds else request.sampling
        if sampling == Sampling():
            sampling = self.sampling_of(role, request.greedy)
        sample = 0 if request.embeds or sampling.temperature == 0 else request.sample
        model = request.model or self._models[role]
        filled = replace(request, model=model, sampling=sampling, sample=sample)
        return await self._inner(filled)


def _sampling(each: RoleSettings) -> Sampling:
    drawn = Sampling(each.temperature, each.top_p, each.max_tokens, each.extra)
    return _greedy(drawn) if each.temperature == 0 else drawn


def _greedy(sampling: Sampling) -> Sampling:
    return replace(sampling, temperature=0.0, top_p=None)


class Dispatch:
    """An LM over several, by `request.model` (a full spec)."""

    def __init__(self, table: Mapping[str, LM]) -> None:
        self._table = dict(table)

    def add(self, spec: str, lm: LM) -> None:
        """From now on; a spec that is there already keeps its LM."""
        self._table.setdefault(spec, lm)

    async def __call__(self, request: Request) -> Reply:
        lm = self._table.get(request.model)
        if lm is None:
            raise ConfigError(
                f"no endpoint is connected for model {request.model!r} (role {request.role})",
                hint=f"connected: {', '.join(self._table) or 'none'}",
            )
        return await lm(request)
