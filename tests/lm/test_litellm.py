from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.errors import (
    AuthRefused,
    CallTimeout,
    ConfigError,
    MissingExtra,
    RateLimited,
    RequestRefused,
    ServerFault,
)
from promptcodebook.lm.litellm_client import LiteLLM

# The part of the library that we call, so that these tests need neither it nor a network.
LIBRARY = """
import os
seen = []
told_before_import = os.environ.get("LITELLM_LOCAL_MODEL_COST_MAP")

class Timeout(Exception):
    pass

class Failure(Exception):
    def __init__(self, status):
        super().__init__(f"Authorization: Bearer sk-secret {status}")
        self.status_code = status

class Response:
    def model_dump(self):
        return {
            "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 4, "completion_tokens": 1},
        }

async def acompletion(**fields):
    seen.append(fields)
    kind = fields["messages"][-1]["content"]
    if kind == "timeout":
        raise Timeout()
    if kind.isdigit():
        raise Failure(int(kind))
    if kind == "broken":
        raise OSError("Authorization: Bearer sk-secret")
    return Response()
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


def ask(text: str = "hi") -> Request:
    return Request("critic", (Message("user", text),), sampling=Sampling(0.5, 0.9, 20))


async def test_a_call_goes_through_the_library_without_its_retries(library):
    lm = LiteLLM("anthropic/x", timeout=9.0, headers={"X-A": "b"})
    reply = await lm(ask())
    assert reply.text == "hello"
    assert reply.usage.tokens == 5
    stub = sys.modules["litellm"]
    assert stub.told_before_import == "True"
    sent = stub.seen[0]
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("anthropic/x", 0.5, 20)
    assert (sent["num_retries"], sent["max_retries"], sent["timeout"]) == (0, 0, 9.0)
    assert sent["extra_headers"] == {"X-A": "b"}


@pytest.mark.parametrize(
    "name",
    ["api_base", "base_url", "api_key", "headers", "extra_headers", "mock_response",
     "custom_llm_provider", "fallbacks", "callbacks", "proxies", "client", "num_retries"],
)  # fmt: skip
async def test_no_data_sets_a_keyword_of_the_library_itself(library, name: str):
    drawn = Sampling(extra={name: "http://127.0.0.1:9", "top_k": 3})
    request = Request("critic", (Message("user", "hi"),), sampling=drawn)
    with pytest.raises(RequestRefused, match=name) as caught:
        await LiteLLM("anthropic/x")(request)
    assert "roles.critic.extra" in caught.value.hint
    assert sys.modules["litellm"].seen == []


async def test_body_fields_go_through(library):
    request = Request("critic", (Message("user", "hi"),), sampling=Sampling(extra={"top_k": 3}))
    await LiteLLM("anthropic/x")(request)
    assert sys.modules["litellm"].seen[0]["top_k"] == 3


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("timeout", CallTimeout),
        ("429", RateLimited),
        ("500", ServerFault),
        ("401", AuthRefused),
        ("broken", ServerFault),
    ],
)
async def test_its_errors_become_ours_without_what_they_hold(library, text: str, kind: type):
    with pytest.raises(kind) as caught:
        await LiteLLM("anthropic/x")(ask(text))
    assert caught.value.role == "critic"
    assert "sk-secret" not in str(caught.value) + caught.value.hint
    assert caught.value.__context__ is None


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not holds_litellm(p)])
    with pytest.raises(MissingExtra) as caught:
        LiteLLM("anthropic/x")
    assert caught.value.hint == "pip install 'promptcodebook[litellm]'"


def holds_litellm(folder: str) -> bool:
    return any(Path(folder or os.curdir).glob("litellm-*.dist-info"))


@pytest.mark.parametrize("version", ["1.82.7", "1.82.8"])
def test_a_compromised_release_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
):
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    install(tmp_path, version)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=version):
        LiteLLM("anthropic/x")
    assert "litellm" not in sys.modules
