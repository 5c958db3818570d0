"""What is set once for a server: the table `[serve]` of pco.toml."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from promptcodebook.config import OptimizerSettings
from promptcodebook.config.schema import Unit
from promptcodebook.deploy.online.canary_decision import KEY_SHARE

_Seconds = Annotated[float, Field(ge=0.001)]
_Count = Annotated[int, Field(ge=0)]
_Some = Annotated[int, Field(ge=1)]


class ServeSettings(OptimizerSettings):
    """Settings of `pco serve`, read when it starts."""

    table: ClassVar[str] = "serve"

    serve_as: tuple[str, ...] = ()
    """Other names for the model, for clients that insist on one."""
    input: Literal["last", "conversation"] = "last"
    """What is routed: the last user turn, or the whole conversation."""
    sticky: Annotated[str, Field(pattern=r"^(off|conversation|user|header:[A-Za-z0-9_-]+)$")] = (
        "off"
    )
    """A conversation keeps its prompt. It is recognised by its first turn ("conversation"), the
    body's "user", or a "header:NAME"."""
    prompt_first: bool = False
    """Put the prompt before the caller's system message, not after it."""
    verbatim: bool = False
    """Use instincts unchanged, without the generator: one call less."""
    route_timeout: _Seconds = 10.0
    """Seconds for the encoder; then a fallback is used."""
    compose_timeout: _Seconds = 10.0
    """Seconds for the generator; then a fallback is used."""
    cache: _Count = 10_000
    """Composed prompts that are kept in memory."""
    concurrency: _Some = 256
    """Concurrent requests; more get a 429."""
    daily_budget: str = ""
    """What each key may spend per UTC day, e.g. "1000calls+2Mtok+5usd"; a line of the key file may
    name another after its key."""
    rate: Annotated[float, Field(ge=0)] = 0.0
    """Requests per second for each key; 0 = any number."""
    max_body: _Seconds = 16.0
    """Greatest size of a request's body, in MiB."""
    records: _Count = 10_000
    """Requests kept for `pco explain REQUEST_ID`."""
    keep: str = "30d"
    """How long requests and their feedback are kept, such as "12h"."""
    never: tuple[_Count, ...] = ()
    """Indices of instincts that are never explored."""
    key_share: Annotated[Unit, Field(ge=0.01)] = KEY_SHARE
    """Greatest share that one key's feedback may have if no other key gives as much; 1 = no limit,
    so one key may end a canary."""
    slices: tuple[str, ...] = ()
    """Keys of a request's `metadata` for whose values feedback and drift are also shown."""
    window: str = "1d"
    """How far `pco serve status` looks back."""
