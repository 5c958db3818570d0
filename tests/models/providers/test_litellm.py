"""Models behind litellm: a stand-in for the library, so that these tests need no network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from promptcodebook import errors
from promptcodebook.base.incidents import Incident
from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.lm.endpoint import Endpoint
from promptcodebook.lm.spec import Credentials, parse_spec

# The part of litellm that we call, so that these tests need neither it nor a network.
LIBRARY = """
import os
seen = []
told_before_import = os.environ.get("LITELLM_LOCAL_MODEL_COST_MAP")

class Timeout(Exception):
    pass

class APIConnectionError(Exception):
    status_code = 500

class Failure(Exception):
    def __init__(self, status):
        super().__init__(f"Authorization: Bearer sk-secret {status}")
        self.status_code = status

class BadRequestError(Exception):
    def __init__(self, message, body=None):
        self.status_code, self.message, self.body = 400, message, body

class Response:
    def __init__(self, native):
        # Whatever a provider says, the library makes one of the words of OpenAI of it.
        own = {"native_finish_reason": native}
        self.native = {"provider_specific_fields": own} if native else {}

    def model_dump(self):
        return {
            "choices": [{"message": {"content": "hello"}, "finish_reason": "stop", **self.native}],
            "usage": {"prompt_tokens": 4, "completion_tokens": 1},
        }

async def acompletion(**fields):
    seen.append(fields)
    kind = fields["messages"][-1]["content"]
    if kind.startswith("refuses") and "temperature" in fields:
        body = {"message": "only 1 is allowed; Bearer sk-hush", "param": "temperature"}
        if kind == "refuses, and has a body":
            raise BadRequestError("litellm.BadRequestError: OpenAIException - only 1", body)
        error = repr({"error": body}).replace("'", '"')
        raise BadRequestError(f"litellm.BadRequestError: DeepseekException - {error}")
    if kind.startswith("always refuses"):
        words = f"no: {kind} {os.environ['X_API_KEY']}"
        raise BadRequestError(f"{os.environ['X_HEAD']} - {words}")
    if kind == "lacks":
        try:
            import no_such_part
        except ImportError:
            raise APIConnectionError()
    if kind == "timeout":
        raise Timeout()
    if kind.isdigit():
        raise Failure(int(kind))
    if kind == "broken":
        raise OSError("Authorization: Bearer sk-secret")
    if kind == "down":
        raise APIConnectionError() from ConnectionRefusedError()
    return Response(kind.removeprefix("ends: ") if kind.startswith("ends: ") else "")
"""


def install(folder: Path, version: str) -> None:
    package = folder / "litellm"
    package.mkdir()
    (package / "__init__.py").write_text(LIBRARY)
    told = folder / f"litellm-{version}.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: litellm\nVersion: {version}\n")


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "")
    install(tmp_path, "1.90.0")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("litellm", None)


def ask(text: str = "hi", **extra: object) -> Request:
    sampling = Sampling(0.5, 0.9, 20, extra)
    return Request("critic", (Message("user", text),), sampling=sampling)


def model(timeout: float = 120.0, headers: dict[str, str] | None = None) -> Endpoint:
    access = Credentials(headers=headers or {})
    return Endpoint(parse_spec("litellm/anthropic/x", {}), access, timeout=timeout)


async def test_a_call_goes_through_the_library_without_its_retries(library):
    reply = await model(9.0, {"X-A": "b"})(ask(top_k=3, n=2))
    assert (reply.text, reply.usage.tokens) == ("hello", 5)
    stub = sys.modules["litellm"]
    assert stub.told_before_import == "True"
    expected = {
        "model": "anthropic/x", "temperature": 0.5, "max_tokens": 20, "top_k": 3, "n": 2,
        "timeout": 9.0, "num_retries": 0, "max_retries": 0, "extra_headers": {"X-A": "b"},
    }  # fmt: skip
    assert stub.seen[0].items() >= expected.items()


@pytest.mark.parametrize(
    "name",
    ["api_base", "base_url", "api_key", "headers", "extra_headers", "mock_response",
     "custom_llm_provider", "fallbacks", "callbacks", "proxies", "client", "num_retries"],
)  # fmt: skip
async def test_no_data_sets_a_keyword_of_the_library_itself(library, name: str):
    with pytest.raises(errors.RequestRefused, match=name) as caught:
        await model()(ask(**{name: "http://127.0.0.1:9", "top_k": 3}))
    assert "roles.ROLE.extra" in str(caught.value) and caught.value.role == "critic"
    assert sys.modules["litellm"].seen == []


@pytest.mark.parametrize(("text", "kind"), [
    *(("timeout", errors.CallTimeout), ("429", errors.RateLimited), ("500", errors.ServerFault)),
    *(("401", errors.AuthRefused), ("broken", errors.ServerFault), ("down", errors.EndpointDown)),
])  # fmt: skip
async def test_its_errors_become_ours_without_what_they_hold(library, text: str, kind: type):
    with pytest.raises(kind) as caught:
        await model()(ask(text))
    assert "sk-secret" not in str(caught.value) + caught.value.hint
    assert caught.value.__context__ is None


@pytest.mark.parametrize("text", ["refuses", "refuses, and has a body"])
async def test_what_a_provider_refuses_is_learned_from_its_words(library, text: str):
    lm = model()
    first, second = await lm(ask(text)), await lm(ask(text))
    assert first.dropped == second.dropped == ("temperature",)
    assert len(sys.modules["litellm"].seen) == 3


@pytest.mark.parametrize("head", [
    "BadRequestError: AzureException BadRequestError",
    "NotFoundError: NotFoundError: OpenAIException",
    "ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: XException",
])  # fmt: skip
async def test_a_providers_words_arrive_without_a_key(
    library, monkeypatch: pytest.MonkeyPatch, head: str
):
    monkeypatch.setenv("X_API_KEY", "sk-hush-hush")
    monkeypatch.setenv("X_HEAD", f"litellm.{head}")
    with pytest.raises(errors.RequestRefused) as caught:
        await model()(ask("always refuses tools"))
    message = str(caught.value)
    assert "answered 400: no: always refuses tools ***" in message and "temperature 0.5" in message


async def test_a_package_that_the_library_lacks_is_named(library):
    with pytest.raises(errors.RequestRefused, match="pip install no_such_part"):
        await model()(ask("lacks"))


@pytest.mark.parametrize("native", [
    "error", "abort", "insufficient_system_resource", "MALFORMED_FUNCTION_CALL", "network_error",
])  # fmt: skip
async def test_a_reply_that_a_provider_broke_off_is_a_passing_fault(library, native: str):
    """The library itself calls such an ending "stop"."""
    with pytest.raises(errors.ServerFault, match=native) as caught:
        await model()(ask(f"ends: {native}"))
    assert caught.value.retryable and caught.value.incident == Incident.BROKEN_OFF


@pytest.mark.parametrize("native", ["end_turn", "stop_sequence", "STOP", "COMPLETE", "eos"])
async def test_a_whole_reply_ends_by_the_words_of_many_providers(library, native: str):
    assert (await model()(ask(f"ends: {native}"))).text == "hello"


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    holding = [p for p in sys.path if any(Path(p or os.curdir).glob("litellm-*.dist-info"))]
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in holding])
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    with pytest.raises(errors.MissingExtra) as caught:
        model()
    assert caught.value.hint == "pip install 'promptcodebook[litellm]'"


@pytest.mark.parametrize("version", ["1.82.7", "1.82.8"])
def test_a_compromised_release_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
):
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    install(tmp_path, version)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(errors.ConfigError, match=version):
        model()
    assert "litellm" not in sys.modules
