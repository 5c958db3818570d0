"""Names of models, the keys that they need, and models behind litellm."""

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
from promptcodebook.lm.endpoint import LiteLLM
from promptcodebook.lm.spec import missing_key, parse_spec, require_keys

OURS, OPENAI = ("PCO_API_KEY",), ("OPENAI_API_KEY",)


@pytest.mark.parametrize(
    ("text", "environment", "url", "model", "keys"),
    [
        ("http://h:80/v1#Qwen/Qwen3:x", {}, "http://h:80/v1", "Qwen/Qwen3:x", OURS),
        ("https://host/v1/", {}, "https://host/v1", "", OURS),
        ("https://host/v1/chat/completions#m", {}, "https://host/v1", "m", OURS),
        ("openai/gpt-4o", {}, "https://api.openai.com/v1", "gpt-4o", OPENAI),
        ("openai/x", {"OPENAI_BASE_URL": "http://proxy:1/v1/"}, "http://proxy:1/v1", "x", OPENAI),
        ("https://api.openai.com/v1#x", {}, "https://api.openai.com/v1", "x", OURS + OPENAI),
        ("https://api.openai.com.evil.example/v1#x", {}, "https://api.openai.com.evil.example/v1",
         "x", OURS),
        ("litellm/anthropic/claude", {}, "", "anthropic/claude", ()),
        *((text, {}, "", text, ()) for text in ("smollm2", "x.GGUF", "hf:Qwen/Qwen3-0.6B")),
    ],
)  # fmt: skip
def test_a_spec_names_address_model_and_keys(
    text: str, environment: dict[str, str], url: str, model: str, keys: tuple[str, ...]
):
    """The key of openai goes to openai alone."""
    spec = parse_spec(text, environment)
    assert (spec.base_url, spec.model, spec.key_names) == (url, model, keys)


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("", "no model", "openai/NAME"),
        ("opnai/gpt", "did you mean 'openai'", "openai/NAME"),
        ("simulatd", "did you mean 'simulated'", "simulated"),
        ("smolm2", "did you mean 'smollm2'", "smollm2"),
        ("openai/", "names no model", "openai/NAME"),
        ("localhost:8000/v1#m", "lacks http://", "http://localhost:8000/v1#m"),
        ("ftp://host/v1#m", "cannot read the address", "http://"),
        ("http://host:port/v1#m", "malformed", "http://"),
        ("http://:80#m", "cannot read the address", "http://"),
        ("simulated?load", "'load'", "load=0.1"),
        ("openai", "unknown model 'openai'", "openai/NAME"),
    ],
)
def test_a_wrong_spec_says_what_is_wrong_and_what_to_write(text: str, said: str, hint: str):
    with pytest.raises(ConfigError) as caught:
        parse_spec(text, {})
    assert said in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "http://user:hunter2@host/v1#m",
        "https://hunter2@host/v1#m",
        "http://host/v1?key=hunter2#m",
        "ftp://user:hunter2@host/v1#m",
        "http://user:hunter2@host:port/v1#m",
        "user:hunter2@host:8000/v1#m",
        "user:hunter2@host",
        "http:/user:hunter2@host/v1#m",
        "hunter2@host:8000/v1",
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(text: str):
    with pytest.raises(ConfigError) as caught:
        parse_spec(text, {})
    assert "hunter2" not in str(caught.value) + caught.value.hint + repr(caught.value)
    with pytest.raises(ConfigError) as moved:
        parse_spec("openai/x", {"OPENAI_BASE_URL": text})
    assert "hunter2" not in str(moved.value) + moved.value.hint


# A provider that answers nobody without a key is told of before a call, or a run, is begun.


@pytest.mark.parametrize(
    ("spec", "variable"),
    [
        ("openai/gpt-x", "OPENAI_API_KEY"),
        ("https://api.openai.com/v1#gpt-x", "PCO_API_KEY"),
        ("https://openrouter.ai/api/v1#some/model", "PCO_API_KEY"),
        ("litellm/anthropic/claude", "ANTHROPIC_API_KEY"),
        ("litellm/gemini/flash", "GEMINI_API_KEY"),
    ],
)
def test_the_variable_to_export_is_named_until_it_is_set(spec: str, variable: str) -> None:
    with pytest.raises(ConfigError, match="needs a key") as caught:
        require_keys({"simulated": {}, spec: {}}, {})
    assert spec in str(caught.value)
    assert caught.value.hint == f"export {variable}=..."
    with pytest.raises(ConfigError):
        require_keys({spec: {}}, {variable: "  "})
    require_keys({spec: {}}, {variable: "k"})


@pytest.mark.parametrize(
    ("spec", "headers", "environment", "missing"),
    [
        ("litellm/gemini/flash", [], {"GOOGLE_API_KEY": "k"}, ()),  # any of the variables will do
        ("https://api.openai.com/v1#x", [], {"OPENAI_API_KEY": "k"}, ()),
        ("https://api.x.ai/v1#m", ["$PCO_OTHER"], {}, ()),  # a key in a header is a key
        ("https://api.x.ai/v1#m", ["2024-01-01"], {}, ("PCO_API_KEY",)),
        ("openai/m", [], {"OPENAI_BASE_URL": "http://localhost:8000/v1"}, ()),
        ("simulated", [], {}, ()),
        ("http://localhost:8000/v1#m", [], {}, ()),
        ("https://models.example.org/v1#m", [], {}, ()),
        ("https://api.openai.com.example.org/v1#m", [], {}, ()),
        ("litellm/ollama/small", [], {}, ()),
        ("litellm/some-model", [], {}, ()),
    ],
)
def test_who_may_do_without_a_key_is_not_asked_for_one(
    spec: str, headers: list[str], environment: dict[str, str], missing: tuple[str, ...]
) -> None:
    assert missing_key(spec, headers, environment) == missing


# The part of litellm that we call, so that these tests need neither it nor a network.
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


def ask(text: str = "hi", **extra: object) -> Request:
    sampling = Sampling(0.5, 0.9, 20, extra)
    return Request("critic", (Message("user", text),), sampling=sampling)


async def test_a_call_goes_through_the_library_without_its_retries(library):
    lm = LiteLLM("anthropic/x", timeout=9.0, headers={"X-A": "b"})
    reply = await lm(ask(top_k=3))
    assert (reply.text, reply.usage.tokens) == ("hello", 5)
    stub = sys.modules["litellm"]
    assert stub.told_before_import == "True"
    expected = {
        "model": "anthropic/x", "temperature": 0.5, "max_tokens": 20, "top_k": 3, "timeout": 9.0,
        "num_retries": 0, "max_retries": 0, "extra_headers": {"X-A": "b"},
    }  # fmt: skip
    assert stub.seen[0].items() >= expected.items()


@pytest.mark.parametrize(
    "name",
    ["api_base", "base_url", "api_key", "headers", "extra_headers", "mock_response",
     "custom_llm_provider", "fallbacks", "callbacks", "proxies", "client", "num_retries"],
)  # fmt: skip
async def test_no_data_sets_a_keyword_of_the_library_itself(library, name: str):
    with pytest.raises(RequestRefused, match=name) as caught:
        await LiteLLM("anthropic/x")(ask(**{name: "http://127.0.0.1:9", "top_k": 3}))
    assert "roles.critic.extra" in caught.value.hint
    assert sys.modules["litellm"].seen == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *(("timeout", CallTimeout), ("429", RateLimited), ("500", ServerFault)),
        *(("401", AuthRefused), ("broken", ServerFault)),
    ],
)
async def test_its_errors_become_ours_without_what_they_hold(library, text: str, kind: type):
    with pytest.raises(kind) as caught:
        await LiteLLM("anthropic/x")(ask(text))
    assert caught.value.role == "critic"
    assert "sk-secret" not in str(caught.value) + caught.value.hint
    assert caught.value.__context__ is None


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    holding = [p for p in sys.path if any(Path(p or os.curdir).glob("litellm-*.dist-info"))]
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in holding])
    with pytest.raises(MissingExtra) as caught:
        LiteLLM("anthropic/x")
    assert caught.value.hint == "pip install 'promptcodebook[litellm]'"


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
