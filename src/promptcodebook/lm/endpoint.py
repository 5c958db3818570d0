"""One model behind one chat-completions address, over one pooled HTTP session.

What the endpoint refuses (a sampling field, `max_tokens`, a schema) is learned from its first
refusal and left out from then on. Redirects are not followed: the key goes nowhere else.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from promptcodebook.errors import ConfigError, LMError
from promptcodebook.lm.base import Reply, Request
from promptcodebook.lm.key import Key
from promptcodebook.lm.refusal import (
    Address,
    Said,
    broken,
    model_missing,
    read_said,
    refused,
    retry_after,
)
from promptcodebook.lm.spec import Spec
from promptcodebook.lm.transport import Answered, Transport
from promptcodebook.lm.wire import Malformed, Quirks, read_reply, request_body

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Endpoint"]

log = logging.getLogger(__name__)
# One refusal for each thing an endpoint can refuse, and the call itself.
_ATTEMPTS = 7


class Endpoint:
    """An LM over HTTP. Raises the LMErrors of errors.py; retries nothing but refused fields."""

    def __init__(
        self,
        spec: Spec,
        key: Key | None = None,
        *,
        timeout: float = 120.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._where = Address(spec.base_url, spec.model, key, spec.key_names)
        self._quirks = Quirks()
        self._transport = Transport(spec.base_url, key, timeout, headers or {})

    def __repr__(self) -> str:
        return f"Endpoint({self._where.base_url}#{self._where.model})"

    @property
    def model(self) -> str:
        """The model's name at the endpoint; '' until an unnamed one was asked for."""
        return self._where.model

    @property
    def dropped(self) -> tuple[str, ...]:
        """The request fields that this endpoint has refused so far."""
        return tuple(sorted(self._quirks.dropped))

    async def __call__(self, request: Request) -> Reply:
        if not self._where.model:
            await self._choose_model()
        for left in reversed(range(_ATTEMPTS)):
            body, dropped = request_body(request, self._where.model, self._quirks)
            begun = time.perf_counter()
            answer = await self._post(body)
            if answer.status == 200:
                reply = self._read(answer.data, request, time.perf_counter() - begun)
                return replace(reply, dropped=tuple(dropped)) if dropped else reply
            said = read_said(answer.data)
            fixable = left > 0 and answer.status in (400, 422)
            if not (fixable and self._learns(body, said)):
                raise await self._refusal(answer, said, request)
        raise AssertionError("the last attempt returns or raises")

    async def models(self) -> tuple[str, ...]:
        """The names that GET /models lists. Raises LMError when it can't be asked."""
        answer = await self._transport.send("GET", f"{self._where.base_url}/models", self._where)
        if answer.status != 200:
            raise refused(answer.status, read_said(answer.data), self._where)
        try:
            listed = json.loads(answer.data)["data"]
            return tuple(str(each["id"]) for each in listed)
        except (ValueError, KeyError, TypeError):
            raise broken("malformed_body", self._where) from None

    async def count_tokens(self, text: str) -> int | None:
        """The text's length by the model's own tokenizer; None where the server offers none."""
        root = replace(self._where, base_url=self._where.base_url.removesuffix("/v1"))
        # One server reads `prompt` and answers with a count, another `content` and all tokens.
        body = {"model": self._where.model, "prompt": text, "content": text}
        data = json.dumps(body).encode("ascii")
        try:
            answer = await self._transport.send("POST", f"{root.base_url}/tokenize", root, data)
            tree = json.loads(answer.data)
            count = tree["count"] if "count" in tree else len(tree["tokens"])
        except (LMError, ValueError, KeyError, TypeError):
            return None
        return count if answer.status == 200 and isinstance(count, int) else None

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _post(self, body: Mapping[str, Any]) -> Answered:
        # ASCII escapes: half of a surrogate pair is legal in a string and not in UTF-8.
        data = json.dumps(body, separators=(",", ":")).encode("ascii")
        url = f"{self._where.base_url}/chat/completions"
        return await self._transport.send("POST", url, self._where, data)

    def _read(self, data: bytes, request: Request, seconds: float) -> Reply:
        try:
            return read_reply(data, request, seconds)
        except Malformed as error:
            detail = str(error)
        raise broken("malformed_body", self._where, detail)

    def _learns(self, body: Mapping[str, Any], said: Said) -> bool:
        name = self._quirks.learn(body, said.all, said.param)
        if name is not None:
            log.info("%s refuses %s: left out from now on", self._where.base_url, name)
        return name is not None

    async def _refusal(self, answer: Answered, said: Said, request: Request) -> LMError:
        missing = answer.status == 404 or said.code == "model_not_found"
        if missing and ("model" in said.all.lower() or said.code == "model_not_found"):
            error: LMError = model_missing(self._where, await self._known())
        else:
            error = refused(
                answer.status, said, self._where, retry_after(answer.headers.get("Retry-After"))
            )
        error.role = request.role
        return error

    async def _known(self) -> tuple[str, ...]:
        try:
            return await self.models()
        except LMError:
            return ()

    async def _choose_model(self) -> None:
        known = await self.models()
        if len(known) != 1:
            listed = ", ".join(known[:12]) or "none"
            raise ConfigError(
                f"{self._where.base_url} serves {len(known)} models and the spec names none",
                hint=f"add #MODEL to the spec; it lists: {listed}",
            )
        self._where = replace(self._where, model=known[0])
