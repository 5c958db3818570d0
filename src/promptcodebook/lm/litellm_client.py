"""Other providers' models through the optional litellm package."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Mapping
from typing import Any

from promptcodebook.calls import Reply, Request
from promptcodebook.errors import ConfigError, LMError, MissingExtra, RequestRefused, import_extra
from promptcodebook.incidents import Incident
from promptcodebook.lm.transport import ErrorBody, ModelAddress, fault_of, refusal_of
from promptcodebook.lm.wire import Malformed, Quirks, read_embedding, read_tree, request_body

# Releases that carried somebody else's code.
_MALICIOUS = ("1.82.7", "1.82.8")
_SENT = frozenset(
    {
        *("model", "messages", "input", "encoding_format", "response_format", "seed"),
        *("temperature", "top_p", "max_tokens", "max_completion_tokens"),
        *("top_k", "min_p", "stop", "stop_token_ids", "min_tokens", "logit_bias", "logprobs"),
        *("top_logprobs", "frequency_penalty", "presence_penalty", "repetition_penalty"),
        *("reasoning_effort", "reasoning", "thinking", "verbosity", "chat_template_kwargs"),
        *("enable_thinking", "thinking_budget", "include_reasoning", "guided_json"),
        *("guided_regex", "guided_choice", "safety_settings", "service_tier", "store", "user"),
        *("prompt_cache_key", "prediction", "modalities", "tools", "tool_choice"),
        *("parallel_tool_calls", "web_search_options", "num_ctx", "keep_alive"),
    }
)
"""Body fields. The library takes addresses, keys, headers and much else as keywords beside them."""


class LiteLLM:
    """An LM over `litellm.acompletion`; keys are litellm's own environment variables.

    Its retries are switched off: there is one retry layer and it is ours. Raises RequestRefused
    for a body field that it does not know, so that no keyword of the library's own is set by data.
    """

    def __init__(
        self, model: str, *, timeout: float = 120.0, headers: Mapping[str, str] | None = None
    ) -> None:
        self._where = ModelAddress(f"litellm/{model}", model)
        self._timeout = timeout
        self._headers = dict(headers or {})
        self._library = _library()

    async def __call__(self, request: Request) -> Reply:
        body, _ = request_body(request, self._where.model, Quirks())
        if unknown := sorted(body.keys() - _SENT):
            raise RequestRefused(
                f"litellm is not handed {unknown[0]!r}: it is not known as a field of a request's "
                "body, and might say where the request goes",
                hint=f"take it out of roles.{request.role}.extra; litellm reads addresses and keys "
                "from its own environment variables, and headers belong in "
                f"roles.{request.role}.headers",
                role=request.role,
            )
        begun = time.perf_counter()
        try:
            ask = self._library.aembedding if request.embeds else self._library.acompletion
            answer = await ask(
                **body,
                num_retries=0,
                max_retries=0,
                drop_params=True,
                timeout=self._timeout,
                extra_headers=self._headers or None,
            )
            read = read_embedding if request.embeds else read_tree
            return read(answer.model_dump(), request, time.perf_counter() - begun)
        except Malformed as error:
            fault = fault_of(Incident.MALFORMED_BODY, self._where, str(error))
        except Exception as error:
            fault = self._fault(error)
        fault.role = request.role
        raise fault

    def _fault(self, error: Exception) -> LMError:
        status = getattr(error, "status_code", None)
        name = type(error).__name__
        if name == "Timeout":
            return fault_of(Incident.TIMEOUT, self._where, f"after {self._timeout:g} s")
        if name == "APIConnectionError" or not isinstance(status, int):
            return fault_of(Incident.DROPPED, self._where, name)
        # The library's own message may hold request headers: only its kind is passed on.
        code = "insufficient_quota" if "insufficient_quota" in str(error) else ""
        return refusal_of(status, ErrorBody(name, code=code), self._where)


def _library() -> Any:
    try:
        version = importlib.metadata.version("litellm")
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtra("a litellm/... model", "litellm") from None
    if version in _MALICIOUS:
        raise ConfigError(
            f"litellm {version} is a compromised release and is not imported",
            hint="pip install -U 'promptcodebook[litellm]', and change the keys it could read",
        )
    litellm = import_extra("litellm", "a litellm/... model", "litellm")
    # Else it prints advice to the screen beside each error.
    litellm.suppress_debug_info = True
    return litellm
