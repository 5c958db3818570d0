"""The model behind a policy that is served: a request goes to it as it came, and so does the reply.

Our key goes with it and comes back in nothing; whose fault an error is, its status says: 502 and
504 are ours and the model's, all others the caller's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from promptcodebook.config import Config, fill_secrets, secret_variables
from promptcodebook.errors import ConfigError, LMError
from promptcodebook.incidents import Incident
from promptcodebook.lm.endpoint import Endpoint
from promptcodebook.lm.refusal import ModelAddress
from promptcodebook.lm.spec import ApiKey, Spec, find_credentials, parse_spec
from promptcodebook.lm.transport import OpenReply, Transport
from promptcodebook.serve.completions import Refusal

__all__ = ["Answer", "Upstream", "connect_upstream"]

_log = logging.getLogger(__name__)
_LONGEST_LINE = 2**20
"""Bytes of a stream that wait for the end of their line."""
_SHORTEST = 8
"""Bytes of a key that is told from a word in an error."""
_OURS = (401, 403, 407)
"""What a model's server says of our key, and not of the caller's."""
_WORDS: Mapping[Incident | None, tuple[int, str]] = {
    Incident.TIMEOUT: (504, "the model did not answer in time"),
    Incident.REFUSED_CONNECTION: (502, "the model cannot be reached"),
    Incident.DROPPED: (502, "the model broke off its reply"),
    Incident.MALFORMED_BODY: (502, "the model's reply is too large"),
}


def _is_telling(secret: bytes) -> bool:
    """Whether nobody writes it by chance."""
    return len(secret) >= 24 or (
        len(secret) >= 16 and any(each in b"0123456789" for each in secret)
    )


def refusal_for(error: LMError) -> Refusal:
    """An error of the model's for a caller, who need not know where it lives."""
    status, text = _WORDS.get(error.incident, (502, "the model failed"))
    return Refusal(text, status=status, kind="upstream_error")


async def connect_upstream(config: Config, environment: Mapping[str, str]) -> Upstream:
    """The executor's model. Raises ConfigError for one without an address of its own, and LMError
    where it has to be asked for its name and does not answer."""
    text = config.model_of("executor")
    spec = parse_spec(text, environment)
    if not spec.base_url:
        raise ConfigError(
            f"{text} has no address that requests could be passed on to",
            hint="name the provider's own: --lm https://HOST/v1#MODEL"
            if spec.kind == "litellm"
            else f"pco lm serve {text}, then --lm with the address that it prints",
        )
    settings = config.roles.get("executor")
    headers = dict(settings.headers) if settings is not None else {}
    found = find_credentials(spec.key_names, headers, environment)
    if not spec.model:
        async with Endpoint(spec, found.key, timeout=10.0, headers=found.headers) as endpoint:
            listed = await endpoint.models()
        if len(listed) != 1:
            raise ConfigError(
                f"{spec.base_url} serves {len(listed)} models and the spec names none",
                hint="add #MODEL to the spec",
            )
        spec = parse_spec(f"{spec.base_url}#{listed[0]}", environment)
    most_bytes = int(config.max_reply_mb * 1e6)
    transport = Transport(spec.base_url, found.key, config.timeout, found.headers, most_bytes)
    extra = settings.extra if settings is not None else {}
    secrets = tuple(environment[name[1:]].strip() for name in secret_variables(extra))
    own = OwnFields(fill_secrets(extra, environment), secrets)
    return Upstream(spec, found.key, transport, own)


@dataclass(frozen=True, slots=True)
class OwnFields:
    """Body fields that stand in where a caller names none, and what in them is secret."""

    fields: Mapping[str, object]
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: a body, or pieces of one that are whole lines. `close` gives up what is left
    of it."""

    status: int
    kind: str
    headers: Mapping[str, str]
    body: bytes = b""
    pieces: AsyncGenerator[bytes, None] | None = None
    close: Callable[[], None] = lambda: None


class Upstream:
    """Passes requests on."""

    def __init__(
        self, spec: Spec, key: ApiKey | None, transport: Transport, own: OwnFields
    ) -> None:
        self.model = spec.model
        self._own = own
        self._json = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
        sent = [] if key is None else [v.removeprefix("Bearer ") for v in key.headers().values()]
        secrets = [each.encode() for each in (*own.secrets, *sent)]
        # Local servers are given words for keys: replies are full of 'none' and 'token'.
        self._secrets = [each for each in secrets if len(each) >= _SHORTEST]
        self._telling = [each for each in secrets if _is_telling(each)]
        self._transport = transport
        self._url = f"{spec.base_url}/chat/completions"
        self._where = ModelAddress(spec.base_url, spec.model, key, spec.key_names, private=True)

    async def ask(self, body: Mapping[str, Any]) -> Answer:
        """The reply to a body, under our model's name. It must be closed.

        Raises Refusal where there is none, or where it is our key that was refused.
        """
        sent = {**self._own.fields, **body, "model": self.model}
        try:
            # ASCII escapes: half of a surrogate pair is legal in a string and not in UTF-8.
            data = self._json.encode(sent).encode("ascii")
        except (ValueError, RecursionError):
            raise Refusal("the body holds what JSON has no word for, or is too deep") from None
        try:
            reply = await self._transport.open(self._url, self._where, data)
        except LMError as error:
            raise self._failure(error) from None
        return await self._answer(reply)

    async def close(self) -> None:
        await self._transport.close()

    async def _answer(self, reply: OpenReply) -> Answer:
        kind = reply.headers.get("Content-Type", "application/json")
        wait = reply.headers.get("Retry-After", "")
        headers = {"Retry-After": wait} if wait.isascii() and wait.isprintable() and wait else {}
        if reply.status == 200 and kind.startswith("text/event-stream"):
            return Answer(200, kind, headers, pieces=self._lines(reply), close=reply.close)
        try:
            body = self._scrub(await reply.whole(), reply.status)
        except LMError as error:
            raise self._failure(error) from None
        finally:
            reply.close()
        if reply.status in _OURS or 300 <= reply.status < 400:
            _log.error("the model's server answers with status %d", reply.status)
            raise Refusal("the model refused this server", status=502, kind="upstream_error")
        return Answer(reply.status, kind, headers, body)

    async def _lines(self, reply: OpenReply) -> AsyncGenerator[bytes, None]:
        """The pieces of a stream, each to the end of a line: an event is cut nowhere else."""
        rest = b""
        try:
            async with aclosing(reply.pieces()) as pieces:
                async for piece in pieces:
                    whole, newline, rest = (rest + piece).rpartition(b"\n")
                    if len(rest) > _LONGEST_LINE:
                        whole, newline, rest = whole + newline + rest, b"", b""
                    if whole or newline:
                        yield self._scrub(whole + newline)
            if rest:
                yield self._scrub(rest)
        except LMError as error:
            raise self._failure(error) from None

    def _scrub(self, data: bytes, status: int = 200) -> bytes:
        """Without our secrets: a server that echoes what it was sent gives them to nobody. A good
        reply is the model's own text, where only what can be nothing but a key is taken for one."""
        for secret in self._telling if status == 200 else self._secrets:
            data = data.replace(secret, b"***")
        return data

    def _failure(self, error: LMError) -> Refusal:
        _log.warning("%s", error)
        return refusal_for(error)
