"""What litellm reaches, such as Azure and Bedrock; addresses and keys are in its own variables."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
from collections.abc import AsyncGenerator
from typing import Any

from promptcodebook.errors import ConfigError
from promptcodebook.lm.spec import Credentials, Spec
from promptcodebook.lm.wire import read_error_body
from promptcodebook.models.providers import library

# Releases of litellm that carried somebody else's code.
_MALICIOUS = ("1.82.7", "1.82.8")
# How the library introduces what a provider said.
_PROVIDERS = re.compile(r"litellm\.(?:[\w.]+: )+\w*Exception(?: \w+)? - (.*)", re.DOTALL)
_SECRETS = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
_BEARER = re.compile(r"(?i)\bbearer\W+\S+")
_SHORTEST = 6  # characters of a value that differs from a word


class LiteLLM(library.ProviderLibrary):
    """No data sets a keyword of the library: an unknown body field is refused."""

    module = extra = "litellm"

    def __init__(self, spec: Spec, access: Credentials, timeout: float) -> None:
        try:
            version = importlib.metadata.version("litellm")
        except importlib.metadata.PackageNotFoundError:
            version = ""
        if version in _MALICIOUS:
            hint = "pip install -U 'promptcodebook[litellm]', and replace the keys it could read"
            message = f"litellm {version} is a compromised release and is not imported"
            raise ConfigError(message, hint=hint)
        super().__init__(spec, access, timeout)
        # Else it prints advice to the screen beside each error.
        self.library.suppress_debug_info = True
        self._sent = access.all_headers()
        words = library.dialect("litellm")
        self._fields, self._endings = set(words["fields"]), words["endings"]

    def open_client(self) -> Any:
        return self.library

    async def close_client(self, client: Any) -> None:
        pass

    async def complete(self, client: Any, asked: library.JsonDict) -> library.JsonDict:
        answer = (await client.acompletion(**asked)).model_dump()
        for choice in answer["choices"]:
            own: library.JsonDict = choice.get("provider_specific_fields") or {}
            native = own.get("native_finish_reason")
            # The library says "stop" of a reply that was broken off, and of any word new to it.
            if choice.get("finish_reason") == "stop" and native not in (None, *self._endings):
                choice["finish_reason"] = native
        return answer

    async def stream(
        self, client: Any, asked: library.JsonDict
    ) -> AsyncGenerator[library.JsonDict, None]:
        options = {"include_usage": True}
        async for chunk in await client.acompletion(**asked, stream=True, stream_options=options):
            yield chunk.model_dump()

    async def embed(self, client: Any, body: library.JsonDict) -> library.JsonDict:
        return (await client.aembedding(**self.request(body))).model_dump()

    def refusal(self, error: Exception) -> library.RefusedCall | None:
        status, name = getattr(error, "status_code", None), type(error).__name__
        if name in ("Timeout", "APIConnectionError") or not isinstance(status, int):
            return None
        # The library's own message may hold request headers: only the provider's words are passed.
        match = _PROVIDERS.match(str(getattr(error, "message", "")))
        body = getattr(error, "body", None)
        words = name if match is None else json.dumps(body) if body else match[1]
        told = read_error_body(self._scrub(words).encode())
        code = "insufficient_quota" if "insufficient_quota" in str(error) else told.code
        tree = library.fault(told.message, kind=told.kind, code=code)
        tree["error"]["param"] = told.param
        return status, tree, {}

    def _scrub(self, text: str) -> str:
        """Without what was sent in a header, and without keys that the library may have read."""
        named = (value for name, value in os.environ.items() if _SECRETS.search(name))
        for secret in (*(self._sent or {}).values(), *named):
            text = text.replace(secret, "***") if len(secret) >= _SHORTEST else text
        return _BEARER.sub("***", text)

    def request(self, body: library.JsonDict) -> library.JsonDict:
        body = {name: value for name, value in body.items() if not name.startswith("stream")}
        # The library takes addresses, keys, headers and much else as keywords beside these.
        if unknown := sorted(body.keys() - self._fields):
            what = f"{unknown[0]!r} may redirect the request: take it out of roles.ROLE.extra. "
            what += "Headers belong in roles.ROLE.headers; litellm reads addresses and keys from "
            what += "variables of its own"
            raise library.Declined(what)
        own: library.JsonDict = {"num_retries": 0, "max_retries": 0, "drop_params": True}
        return {**body, **own, "timeout": self.timeout, "extra_headers": self._sent or None}
