"""Connected models: a spec becomes an LM behind the retries and the limit of its address.

All models of one address share its limit. The caller may wrap every single request, for instance
in the budget. A missing key is reported before anything else happens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol
from urllib.parse import urlsplit

from promptcodebook.calls import LM, Reply, Request
from promptcodebook.config import fill_secrets, secret_variables
from promptcodebook.errors import ConfigError, LMError, MissingExtra, import_part
from promptcodebook.incidents import Tally, no_tally
from promptcodebook.lm.limit import AdaptiveLimit, Backoff, PerLoop, Retrying, StopSignal
from promptcodebook.lm.spec import Spec, find_credentials, parse_spec, providers
from promptcodebook.lm.wire import MOST_BYTES

_LOCAL_AT_ONCE = 32
"""Calls at once to a model of this process: more make each step longer and no step cheaper."""


class Closes(Protocol):
    """What is closed when it is not needed any more."""

    async def close(self) -> None: ...


class LocalModels(Closes, Protocol):
    """Models with their weights in this process."""

    def connect(self, spec: Spec) -> LM: ...

    async def identity(self, spec_text: str) -> str:
        """What tells the weights behind a connected spec from others of its name; '' = nothing."""
        ...


MODELS = "promptcodebook.models"
"""The entry points that bring models to this process: `local` (a `LocalModels` when called), and
`simulated` (an LM, given the name of a task, its data and a spec)."""


def local_models() -> LocalModels | None:
    """The local models of this process, none of them loaded; None where the part that loads them is
    not installed."""
    try:
        return import_part(MODELS, "local", "a local model", "local")()
    except MissingExtra:
        return None


AT_ONCE = 64
"""Calls in flight per address, unless said otherwise."""


@dataclass(frozen=True, slots=True)
class CallSettings:
    """How calls go out: seconds one may take, calls in flight per address, further tries, the
    bytes that a reply's body may have, and whether errors must not quote what was sent."""

    timeout: float = 120.0
    concurrency: int = AT_ONCE
    backoff: Backoff = field(default_factory=Backoff)
    most_bytes: int = MOST_BYTES
    private: bool = False


def _bare(lm: LM) -> LM:
    return lm


@dataclass(frozen=True, slots=True)
class InProcess:
    """What connects models of this process: the one behind `simulated?...`, and those that have
    their weights here. None = there is none."""

    simulated: Callable[[Spec], LM] | None = None
    local: Callable[[Spec], LM] | None = None


class Endpoints:
    """Connects specs and closes everything it connected.

    `here` connects models of this process; `environment` is where keys come from;
    `around` is put around every single request.
    """

    def __init__(
        self,
        settings: CallSettings = CallSettings(),
        *,
        tally: Tally = no_tally,
        here: InProcess = InProcess(),
        environment: Mapping[str, str] | None = None,
        stop: StopSignal | None = None,
        around: Callable[[LM], LM] = _bare,
    ) -> None:
        self._around = around
        self._settings = settings
        self._tally = tally
        self._here = here
        self._stop = stop or StopSignal()
        self._stop.on_give(self._resume)
        self._environment = os.environ if environment is None else environment
        self._limits: dict[str, PerLoop[AdaptiveLimit]] = {}
        self._open: list[Closes] = []

    def connect(self, spec_text: str, headers: Mapping[str, str] | None = None) -> LM:
        """The LM behind a spec. Opens no connection yet; raises ConfigError or MissingExtra."""
        spec = parse_spec(spec_text, self._environment)
        inner = _Filled(self._inner(spec, headers or {}), self._environment)
        return Retrying(
            inner, lambda: self.limit_of(spec), self._settings.backoff, self._tally, self._stop
        )

    def limit_of(self, spec: Spec) -> AdaptiveLimit:
        """The limit that all models at the spec's address share, in the loop that runs now."""
        limits = self._limits.setdefault(spec.base_url or spec.text, PerLoop())
        limits.orphans()
        most = self._settings.concurrency
        if spec.kind == "local":
            most = min(most, _LOCAL_AT_ONCE)
        return limits.here(lambda: AdaptiveLimit(most))

    def _resume(self) -> None:
        for limits in self._limits.values():
            for limit in limits.everywhere():
                limit.resume()

    def _inner(self, spec: Spec, headers: Mapping[str, str]) -> LM:
        if spec.kind == "simulated":
            if self._here.simulated is None:
                raise ConfigError(
                    "there is no simulated model in this program", hint="pco lm serve simulated"
                )
            return self._around(self._here.simulated(spec))
        if spec.kind == "local":
            if self._here.local is None:
                raise MissingExtra(f"the local model {spec}", "local")
            return self._around(self._here.local(spec))
        if spec.kind == "litellm":
            from promptcodebook.lm.litellm_client import LiteLLM

            found = find_credentials((), headers, self._environment)
            timeout = self._settings.timeout
            return self._around(LiteLLM(spec.model, timeout=timeout, headers=found.all_headers()))
        # aiohttp takes a sixth of a second to import: here, once, and not in the first call.
        from promptcodebook.lm.endpoint import Endpoint

        credentials = find_credentials(spec.key_names, headers, self._environment)
        named = replace(spec, key_names=credentials.names)
        endpoint = Endpoint(
            named,
            credentials.key,
            timeout=self._settings.timeout,
            headers=credentials.headers,
            most_bytes=self._settings.most_bytes,
            private=self._settings.private,
        )
        endpoint.meter(self._around)
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


class _Filled:
    """An LM that is sent what the variables in the body fields hold; nothing above it sees that,
    and nothing that it says quotes it."""

    def __init__(self, inner: LM, environment: Mapping[str, str]) -> None:
        self._inner = inner
        self._environment = environment

    async def __call__(self, request: Request) -> Reply:
        extra = request.sampling.extra
        variables = secret_variables(extra) if extra else ()
        if not variables:
            return await self._inner(request)
        sampling = replace(request.sampling, extra=fill_secrets(extra, self._environment))
        secrets = [self._environment[name[1:]].strip() for name in variables]
        try:
            reply = await self._inner(replace(request, sampling=sampling))
        except LMError as error:
            error.args = tuple(_scrub(str(arg), secrets) for arg in error.args)
            error.hint = _scrub(error.hint, secrets)
            raise
        return replace(reply, text=_scrub(reply.text, secrets))


def _scrub(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def require_keys(
    specs: Mapping[str, Mapping[str, str]], environment: Mapping[str, str] | None = None
) -> None:
    """Raises ConfigError for the first spec whose provider wants a key that is nowhere set.

    `specs` maps each to its headers; one that brings its key in a header is left to it.
    """
    for text, headers in specs.items():
        names = missing_key(text, headers.values(), environment)
        if names:
            raise ConfigError(
                f"{text} needs a key, and {' or '.join(names)} is not set",
                hint=f"export {names[0]}=...",
            )


def missing_key(
    spec_text: str, header_values: Iterable[str] = (), environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The variables one of which should hold the spec's key and none does; () where all is well,
    or where the address is not known to want one. ConfigError for a bad spec."""
    env = os.environ if environment is None else environment
    names = _wanted(parse_spec(spec_text, env))
    given = any(env.get(name, "").strip() for name in names)
    return () if given or any(value.startswith("$") for value in header_values) else names


def _wanted(spec: Spec) -> tuple[str, ...]:
    """The variables that a key is looked for in, where there must be one."""
    if spec.kind == "litellm":
        return tuple(providers()["litellm"].get(spec.model.partition("/")[0], ()))
    return spec.key_names if urlsplit(spec.base_url).hostname in providers()["hosts"] else ()
