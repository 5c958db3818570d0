"""The stack that every call passes, built from the configuration. From the top: `Roles` fills in
model and sampling; then come the run's journal, the reply cache, and the models by spec, each
behind the retries and the limit of its address. The budget admits and books each single request."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from promptcodebook.base.incidents import Counts, Tally, no_tally
from promptcodebook.base.paths import reply_cache_path
from promptcodebook.calls import LM, ROLES, Reply, Request, Role, Sampling
from promptcodebook.config import Config
from promptcodebook.config.schema import RoleSettings
from promptcodebook.config.secrets import fill_secrets, secret_variables
from promptcodebook.errors import (
    BudgetReached,
    ConfigError,
    Interrupted,
    LMError,
    MissingExtra,
    ParseError,
    import_part,
)
from promptcodebook.lm.budget import Attempted, BudgetGate, Ledger, PriceTable
from promptcodebook.lm.cache import Cache, Journaled, ReplyLog
from promptcodebook.lm.limit import AdaptiveLimit, Backoff, PerLoop, Retrying, StopSignal
from promptcodebook.lm.quirks import KnownForms
from promptcodebook.lm.spec import MODELS, Spec, any_simulated, no_model, parse_spec, require_keys
from promptcodebook.lm.structured import Ask
from promptcodebook.lm.wire import MOST_BYTES, scrubbed

if TYPE_CHECKING:
    from promptcodebook.lm.endpoint import Endpoint

# Calls at once to a model of this process: more make each step longer and no step cheaper.
_LOCAL_AT_ONCE = 32
AT_ONCE = 64  # calls in flight per address, unless said otherwise

# The entry points of what `telemetry` names: a `Middleware` of (configuration, private).
LISTENERS = "promptcodebook.listeners"


class Middleware(Protocol):
    """What another part puts around the models, below the journal and the cache, such as spans. It
    hears a run's events, and is closed after the last of them."""

    def around(self, inner: LM, budget: BudgetGate, tally: Tally) -> LM: ...

    def hear(self, event: object) -> None: ...

    async def close(self) -> None: ...


class InProcessModels(Protocol):
    """Models in this process. `identity` tells a connected spec's weights from others, or ''."""

    def connect(self, spec: Spec) -> LM: ...

    async def identity(self, spec_text: str) -> str: ...

    async def close(self) -> None: ...


def local_models() -> InProcessModels | None:
    """The local models of this process, none of them loaded; None where their part is missing."""
    try:
        return import_part(MODELS, "local", "a local model", "local")()
    except MissingExtra:
        return None


@dataclass(eq=False)
class Endpoints:
    """Connects specs and closes what it connected. All models of one address share its limit.
    `private` = no error may quote what was sent; `around` is put around every single request."""

    timeout: float = 120.0
    concurrency: int = AT_ONCE
    backoff: Backoff = field(default_factory=Backoff)
    most_bytes: int = MOST_BYTES
    private: bool = False
    simulated: Callable[[Spec], LM] | None = None
    local: Callable[[Spec], LM] | None = None
    tally: Tally = no_tally
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    stop: StopSignal = field(default_factory=StopSignal)
    around: Callable[[LM], LM] = lambda lm: lm
    forms: dict[str, KnownForms] = field(default_factory=dict[str, KnownForms])

    def __post_init__(self) -> None:
        self._limits: dict[str, PerLoop[AdaptiveLimit]] = {}
        self._open: list[Endpoint] = []
        self._by_spec: dict[str, LM] = {}

    def connect(self, spec_text: str, headers: Mapping[str, str] | None = None) -> LM:
        """The LM behind a spec. Opens no connection yet; raises ConfigError or MissingExtra."""
        if spec_text not in self._by_spec:
            spec = parse_spec(spec_text, self.environment)
            inner = _filled(self._inner(spec, headers or {}), self.environment)
            limit = partial(self.limit_of, spec)
            lm = Retrying(inner, limit, self.backoff, self.tally, self.stop)
            self._by_spec[spec_text] = lm
        return self._by_spec[spec_text]

    async def __call__(self, request: Request) -> Reply:
        """Asks what is connected as `request.model`."""
        lm = self._by_spec.get(request.model)
        if lm is None:
            message = f"no endpoint is connected for model {request.model!r} (role {request.role})"
            raise ConfigError(message, hint=f"connected: {', '.join(self._by_spec) or 'none'}")
        return await lm(request)

    def limit_of(self, spec: Spec) -> AdaptiveLimit:
        """The limit that all models at the spec's address share, in the loop that runs now."""
        limits = self._limits.setdefault(spec.base_url or spec.text, PerLoop())
        limits.orphans()
        local = spec.kind == "local"
        most = min(self.concurrency, _LOCAL_AT_ONCE) if local else self.concurrency
        return limits.here(lambda: AdaptiveLimit(most, self.stop))

    def _inner(self, spec: Spec, headers: Mapping[str, str]) -> LM:
        if spec.kind == "simulated":
            if self.simulated is None:
                message = "there is no simulated model in this program"
                raise ConfigError(message, hint="pco lm serve simulated")
            return self.around(self.simulated(spec))
        if spec.kind == "local":
            if self.local is None:
                raise MissingExtra(f"the local model {spec.text}", "local")
            return self.around(self.local(spec))
        # aiohttp takes a sixth of a second to import: here, once, and not in the first call.
        from promptcodebook.lm.endpoint import Endpoint

        found = spec.credentials(headers, self.environment)
        endpoint = Endpoint(
            spec,
            found,
            timeout=self.timeout,
            most_bytes=self.most_bytes,
            private=self.private,
            around=self.around,
            forms=self.forms,
        )
        self._open.append(endpoint)
        return endpoint

    async def close(self) -> None:
        """Closes every connection; an endpoint that is used again opens a new one."""
        for endpoint in self._open:
            await endpoint.close()


def _filled(inner: LM, environment: Mapping[str, str]) -> LM:
    """`inner`, sent what variables in body fields hold. Nothing above sees or quotes a secret."""

    async def call(request: Request) -> Reply:
        extra = request.sampling.extra
        variables = secret_variables(extra) if extra else ()
        if not variables:
            return await inner(request)
        secrets = [environment[name[1:]].strip() for name in variables]

        def scrub(text: str) -> str:
            for secret in secrets:
                text = text.replace(secret, "***")
            return text

        sampling = replace(request.sampling, extra=fill_secrets(extra, environment))
        try:
            reply = await inner(replace(request, sampling=sampling))
        except LMError as error:
            error.args = tuple(scrub(str(arg)) for arg in error.args)
            error.hint = scrub(error.hint)
            raise
        return scrubbed(reply, scrub)

    return call


@dataclass(frozen=True)
class StackResources:
    """What the stack is built with beside the configuration. `client` replaces every spec;
    `private` = no error may quote what is sent, which is real people's."""

    client: LM | None = None
    simulated: Callable[[Spec], LM] | None = None
    local: InProcessModels | None = None
    # The local models that are closed together with the others, if any.
    owned_models: InProcessModels | None = None
    log: ReplyLog | None = None
    # Opens a journal for replies that cost something, where no run has one.
    fallback_log: Callable[[], ReplyLog | None] | None = None
    recorded_replies: ReplyLog | None = None  # what a run was answered: it is not asked for again
    ledger: Ledger | None = None
    tally: Tally | None = None
    elapsed: Callable[[], float] = lambda: 0.0
    # By role and spec, the spec that the journal knows the model by, where it is another.
    models_then: Mapping[tuple[Role, str], str] = field(default_factory=dict[tuple[Role, str], str])
    private: bool = False
    # By spec, the forms that an endpoint takes: who shares them learns them once.
    forms: dict[str, KnownForms] = field(default_factory=dict[str, KnownForms], compare=False)

    @classmethod
    def of_one_budget(cls) -> StackResources:
        """An empty ledger and a clock that begins now: all that is built with them shares them."""
        began = time.monotonic()
        return cls(ledger=Ledger(), elapsed=lambda: time.monotonic() - began)


@dataclass(frozen=True)
class Models:
    """The stack, to watch, stop and close it. `keeps` = stopped work finds its replies again."""

    lm: Roles
    ask: Ask
    tally: Tally
    ledger: Ledger
    budget: BudgetGate
    keeps: bool
    outer: Sequence[Middleware]
    _endpoints: Endpoints
    _cache: Cache | None
    _owned_models: InProcessModels | None

    @classmethod
    def build(cls, config: Config, resources: StackResources = StackResources()) -> Models:
        """Raises ConfigError for a bad spec, a wanted key that is not set, or a money budget
        without a price."""
        tally, ledger = resources.tally or Counts(), resources.ledger or Ledger()
        client, local, stop, specs = (
            resources.client,
            resources.local,
            StopSignal(),
            specs_of(config),
        )
        if client is None:
            require_keys(specs)
            # Refuse a body field whose environment variable is not set.
            for role in ROLES:
                if role in config.roles and not simulated_here([config.model_of(role)]):
                    fill_secrets(config.roles[role].extra, os.environ)
        prices = PriceTable(config.prices)
        budget = BudgetGate(config.budget, prices, ledger, resources.elapsed, stop)
        budget.check_prices(specs)
        around = partial(Attempted, gate=budget, tally=tally)
        endpoints = Endpoints(
            timeout=config.timeout,
            concurrency=config.concurrency,
            backoff=Backoff(config.retries),
            most_bytes=int(config.max_reply_mb * 1e6),
            private=resources.private,
            simulated=resources.simulated,
            local=None if local is None else local.connect,
            tally=tally,
            stop=stop,
            around=around,
            forms=resources.forms,
        )
        inner: LM = endpoints if client is None else around(client)
        for spec, headers in specs.items() if client is None else ():
            endpoints.connect(spec, headers)
        makers = [import_part(LISTENERS, n, f"telemetry {n!r}", n) for n in config.telemetry]
        outer: list[Middleware] = [make(config, resources.private) for make in makers]
        for each in outer:
            inner = each.around(inner, budget, tally)
        cache, log = None, resources.log
        if client is None and not simulated_here(specs):
            if config.cache:
                identity = None if local is None else local.identity
                inner = cache = Cache(inner, reply_cache_path(), tally, identity)
            if log is None and resources.fallback_log:  # the cache waits for no commit
                log = resources.fallback_log()
        if log is not None:
            inner = Journaled(inner, log, tally, stop, resources.models_then, cache)
        if resources.recorded_replies is not None:
            inner = Journaled(inner, resources.recorded_replies, tally, stop)
        roles, keeps = Roles(inner, config.roles, config.lm), bool(cache or log)
        ask, closes = Ask(roles, tally), resources.owned_models
        return cls(roles, ask, tally, ledger, budget, keeps, outer, endpoints, cache, closes)

    @asynccontextmanager
    async def at_work(self, hint: str, kept: str = "") -> AsyncGenerator[None]:
        """Close the connections at the end. `hint` is the hint of a reached budget, or `kept` where
        replies are kept."""
        try:
            yield
        except BudgetReached as error:
            error.hint = kept if kept and self.keeps else hint
            raise
        finally:
            await self.close()

    def interrupt(self) -> None:
        """Start no new call; calls in flight finish, and are kept where `keeps`."""
        hint = f"start again{'; everything paid for so far is kept' if self.keeps else ''}"
        self.budget.stop(Interrupted("interrupted by the user", hint=hint))

    def by_role(self) -> dict[Role, str]:
        return {role: self.lm.model_of(role) for role in ROLES}

    def connect(self, spec: str) -> None:
        """One more model, for requests that name it themselves. Raises ConfigError or
        MissingExtra."""
        self._endpoints.connect(spec)

    @property
    def simulated(self) -> bool:
        """Whether any of them is simulated: figures must say so."""
        return any_simulated(self.by_role().values())

    async def close(self) -> None:
        """Closes connections, the cache, and the local models that are closed with them."""
        async with AsyncExitStack() as last:
            for each in filter(None, (self._owned_models, *self.outer)):
                last.push_async_callback(each.close)
            if self._cache is not None:
                last.callback(self._cache.close)
            await self._endpoints.close()


def specs_of(config: Config) -> dict[str, dict[str, str]]:
    """Every spec in use with its headers. Roles that share a spec must agree on headers."""
    specs: dict[str, dict[str, str]] = {}
    for role in ROLES:
        spec = config.model_of(role)
        headers = dict(config.roles.get(role, RoleSettings()).headers)
        if not spec:
            named = any(map(config.model_of, ROLES))
            raise no_model(f"{f'role {role}' if named else 'the run'} has no model")
        if headers and specs.get(spec) not in (None, {}, headers):
            message = f"two roles send different headers to {spec}"
            raise ConfigError(message, hint="change one of the specs, or use the same headers")
        specs[spec] = headers or specs.get(spec, {})
    return specs


def uses_simulated(config: Config) -> bool:
    return any_simulated(specs_of(config))


def simulated_here(specs: Iterable[str]) -> bool:
    """Whether a simulated model runs in this process: its replies cost nothing, none is cached."""
    return any(spec.split("?")[0] == "simulated" for spec in specs)


class Roles:
    """Fills `model` and `sampling` by role, unless the request has its own. At temperature 0, as
    greedy requests have it, the sample is 0 and top_p left out: equal ones share one key. A role
    without a temperature sends none, greedy or not. Raises ParseError for a tool call in place of a
    text where no tools were sent."""

    def __init__(self, inner: LM, settings: Mapping[str, RoleSettings], default_model: str) -> None:
        self._inner = inner
        self._settings = {role: settings.get(role, RoleSettings()) for role in ROLES}
        self._default = default_model

    def model_of(self, role: Role) -> str:
        return self._settings[role].model or self._default

    def sampling_of(self, role: Role, greedy: bool = False) -> Sampling:
        each = self._settings[role]
        if greedy or each.temperature == 0:
            cold = None if each.temperature is None else 0.0
            return Sampling(cold, None, each.max_tokens, each.extra)
        return Sampling(each.temperature, each.top_p, each.max_tokens, each.extra)

    async def __call__(self, request: Request) -> Reply:
        # Of an embedding nothing is written.
        sampling = Sampling(max_tokens=0) if request.embeds else request.sampling
        if sampling.temperature is sampling.top_p is sampling.max_tokens is None:
            own = self.sampling_of(request.role, request.greedy)
            extra = sampling.extra
            sampling = replace(own, extra={**own.extra, **extra}) if extra else own
        greedy = request.greedy and sampling.temperature is None
        once = request.embeds or greedy or sampling.temperature == 0
        sample = 0 if once else request.sample
        model = request.model or self.model_of(request.role)
        asked = replace(request, model=model, sampling=sampling, sample=sample)
        reply = await self._inner(asked)
        if reply.tool_calls and not reply.text.strip() and "tools" not in sampling.extra:
            message = f"the {request.role} reply from {model} calls a tool where text was expected"
            hint = f"name the tools in roles.{request.role}.extra, or switch them off at the server"
            error = ParseError(message, hint=hint, role=request.role, model=model)
            error.usage = reply.usage
            raise error
        return reply
