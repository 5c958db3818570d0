"""One model behind one chat-completions address, over one pooled HTTP session.

When the endpoint refuses a sampling field, `max_tokens` or a schema, later requests leave it out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from promptcodebook.calls import LM, Reply, Request
from promptcodebook.errors import ConfigError, LMError, RequestRefused
from promptcodebook.incidents import Incident
from promptcodebook.lm.spec import ApiKey, Spec
from promptcodebook.lm.transport import (
    ErrorBody,
    HttpResponse,
    ModelAddress,
    Transport,
    fault_of,
    missing_model,
    no_embeddings,
    read_error_body,
    read_retry_after,
    refusal_of,
)
from promptcodebook.lm.wire import MOST_BYTES, Malformed, Quirks, read_reply, request_body

_log = logging.getLogger(__name__)
# One refusal for each thing an endpoint can refuse, and the call itself.
_ATTEMPTS = 7
_NO_SUCH_PLACE = (404, 405, 501)
_MOST_MODELS = 2000
_LONGEST_NAME = 200
# Longer bodies are parsed in a thread, so that other calls continue.
_QUICK_BYTES = 200_000


class _FieldRefused(RequestRefused):
    """The endpoint refused a field that was learned and will be left out."""


class Endpoint:
    """An LM over HTTP. Raises the LMErrors of errors.py; retries nothing but refused fields."""

    def __init__(
        self,
        spec: Spec,
        key: ApiKey | None = None,
        *,
        timeout: float = 120.0,
        headers: Mapping[str, str] | None = None,
        most_bytes: int = MOST_BYTES,
        private: bool = False,
    ) -> None:
        self._attempt: LM = self._send
        self._where = ModelAddress(spec.base_url, spec.model, key, spec.key_names, private)
        self._quirks = Quirks()
        self._transport = Transport(spec.base_url, key, timeout, headers or {}, most_bytes)

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

    def meter(self, around: Callable[[LM], LM]) -> None:
        """Puts `around` around every single request, those of which a field is refused included."""
        self._attempt = around(self._send)

    async def __call__(self, request: Request) -> Reply:
        if not self._where.model:
            known = await self.models()
            if len(known) != 1:
                listed = ", ".join(known[:12]) or "none"
                raise ConfigError(
                    f"{self._where.base_url} serves {len(known)} models and the spec names none",
                    hint=f"add #MODEL to the spec; it lists: {listed}",
                )
            self._where = replace(self._where, model=known[0])
        for left in reversed(range(_ATTEMPTS)):
            try:
                return await self._attempt(request)
            except _FieldRefused:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _send(self, request: Request) -> Reply:
        """One request. Raises _FieldRefused when the next one will leave out what was refused."""
        body, dropped = request_body(request, self._where.model, self._quirks)
        begun = time.perf_counter()
        where = "embeddings" if request.embeds else "chat/completions"
        # ASCII escapes: half of a surrogate pair is legal in a string and not in UTF-8.
        data = json.dumps(body, separators=(",", ":")).encode("ascii")
        url = f"{self._where.base_url}/{where}"
        answer = await self._transport.send("POST", url, self._where, data)
        if answer.status == 200:
            reply = await self._read(answer.data, request, time.perf_counter() - begun)
            return replace(reply, dropped=tuple(dropped)) if dropped else reply
        error = read_error_body(answer.data)
        refusal = await self._refusal(answer, error, request)
        learned = None
        if answer.status in (400, 422):
            learned = self._quirks.learn(body, error.all, error.param)
        if learned is None:
            raise refusal
        _log.info("%s refuses %s: left out from now on", self._where.base_url, learned)
        raise _FieldRefused(str(refusal), hint=refusal.hint, model=self._where.model)

    async def models(self) -> tuple[str, ...]:
        """The names that GET /models lists. Raises LMError where there is no such list."""
        answer = await self._transport.send("GET", f"{self._where.base_url}/models", self._where)
        if answer.status != 200:
            raise refusal_of(answer.status, read_error_body(answer.data), self._where)
        try:
            listed = json.loads(answer.data)["data"]
            names = [str(each["id"]) for each in listed[:_MOST_MODELS]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise fault_of(Incident.MALFORMED_BODY, self._where) from None
        # Errors quote them: they are cut, and do not hold our key.
        return tuple(self._scrub(name)[:_LONGEST_NAME] for name in names)

    def _scrub(self, text: str) -> str:
        return text if self._where.key is None else self._where.key.scrub(text)

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
        except (LMError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return count if answer.status == 200 and isinstance(count, int) else None

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _read(self, data: bytes, request: Request, seconds: float) -> Reply:
        try:
            if len(data) <= _QUICK_BYTES:
                reply = read_reply(data, request, seconds)
            else:
                reply = await asyncio.to_thread(read_reply, data, request, seconds)
        except Malformed as error:
            detail = str(error)
        else:
            # A server that echoes what it was sent must not bring the key into journal and report.
            return replace(reply, text=self._scrub(reply.text))
        raise fault_of(Incident.MALFORMED_BODY, self._where, detail)

    async def _refusal(self, answer: HttpResponse, body: ErrorBody, request: Request) -> LMError:
        if request.embeds and answer.status in _NO_SUCH_PLACE and "model" not in body.all.lower():
            named = replace(request, model=self._where.model)
            where = self._where.base_url
            return no_embeddings(f"{where} makes no embeddings (HTTP {answer.status})", named)
        unknown = body.code == "model_not_found"
        if unknown or (answer.status == 404 and "model" in body.all.lower()):
            try:
                known = await self.models()
            except LMError:
                known = ()
            error: LMError = missing_model(self._where, known)
        else:
            wait = read_retry_after(answer.headers.get("Retry-After"))
            error = refusal_of(answer.status, body, self._where, wait)
        error.role = request.role
        return error
