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
    """Other names for the model, for clients that insist on a certain name."""
    input: Literal["last", "conversation"] = "last"
    """What is routed: the last user turn, or the whole conversation."""
    sticky: Annotated[str, Field(pattern=r"^(off|conversation|user|header:[A-Za-z0-9_-]+)$")] = (
        "off"
    )
    """Lets a conversation keep its prompt, recognised by its first turn ("conversation"), the
    body's "user", or a header ("header:NAME")."""
    prompt_first: bool = False
    """Put the prompt before the caller's system message, not after it."""
    verbatim: bool = False
    """Use instincts unchanged, without the generator, which saves a call."""
    route_timeout: _Seconds = 10.0
    """Seconds to wait for the encoder before a fallback is used."""
    compose_timeout: _Seconds = 10.0
    """Seconds to wait for the generator before a fallback is used."""
    cache: _Count = 10_000
    """Number of composed prompts kept in memory."""
    concurrency: _Some = 256
    """Most concurrent requests; further ones get a 429."""
    daily_budget: str = ""
    """What each key may spend per UTC day, e.g. "1000calls+2Mtok+5usd"; a line of the key file may
    set another limit after its key."""
    rate: Annotated[float, Field(ge=0)] = 0.0
    """Requests per second for each key; 0 = no limit."""
    max_body: _Seconds = 16.0
    """Maximum size of a request's body, in MiB."""
    records: _Count = 10_000
    """Requests kept for `pco explain REQUEST_ID`."""
    keep: str = "30d"
    """How long requests and their feedback are kept, such as "12h"."""
    never: tuple[_Count, ...] = ()
    """Indices of instincts that are never explored."""
    key_share: Annotated[Unit, Field(ge=0.01)] = KEY_SHARE
    """Maximum share of the feedback from one key, if no other key sends as much; 1 = no limit, so
    one key may end a canary."""
    slices: tuple[str, ...] = ()
    """Keys of a request's `metadata`; feedback and drift are also shown by their values."""
    window: str = "1d"
    """How far `pco serve status` looks back."""
