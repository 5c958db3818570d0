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
    """Other names for the model, for clients that require a specific name."""
    input: Literal["last", "conversation"] = "last"
    """Text used for routing: the last user turn, or the whole conversation."""
    sticky: Annotated[str, Field(pattern=r"^(off|conversation|user|header:[A-Za-z0-9_-]+)$")] = (
        "off"
    )
    """Lets a conversation keep its prompt; the first turn ("conversation"), the body's "user" field
    or a header ("header:NAME") identifies it."""
    prompt_first: bool = False
    """Whether the prompt precedes the caller's system message."""
    verbatim: bool = False
    """Whether instincts are used unchanged, without the generator, which saves a call."""
    route_timeout: _Seconds = 10.0
    """Seconds to wait for the encoder before falling back."""
    compose_timeout: _Seconds = 10.0
    """Seconds to wait for the generator before falling back."""
    cache: _Count = 10_000
    """Number of composed prompts kept in memory."""
    concurrency: _Some = 256
    """Maximum concurrent requests; any beyond that get a 429."""
    daily_budget: str = ""
    """Limit per key and UTC day, e.g. "1000calls+2Mtok+5usd"; the key file can set a different
    limit after a key."""
    rate: Annotated[float, Field(ge=0)] = 0.0
    """Maximum requests per second for each key; 0 = no limit."""
    max_body: _Seconds = 16.0
    """Maximum size of a request's body, in MiB."""
    records: _Count = 10_000
    """Number of requests kept for `pco explain REQUEST_ID`."""
    keep: str = "30d"
    """How long requests and their feedback are kept, such as "12h"."""
    never: tuple[_Count, ...] = ()
    """Indices of instincts that are never explored."""
    key_share: Annotated[Unit, Field(ge=0.01)] = KEY_SHARE
    """Maximum share of counted feedback for any one key, unless another key sends as much. 1 = no
    limit, so a single key could end a canary."""
    slices: tuple[str, ...] = ()
    """Keys in a request's `metadata`; feedback and drift are also shown by their values."""
    window: str = "1d"
    """How far `pco serve status` looks back."""
