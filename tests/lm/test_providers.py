"""A provider that answers nobody without a key is told of before a call, or a run, is begun."""

from __future__ import annotations

import pytest

from promptcodebook.errors import ConfigError
from promptcodebook.lm.connections import missing_key, require_keys


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


def test_any_of_the_variables_will_do() -> None:
    assert missing_key("litellm/gemini/flash", environment={"GOOGLE_API_KEY": "k"}) == ()
    address = "https://api.openai.com/v1#gpt-x"
    assert missing_key(address, environment={"OPENAI_API_KEY": "k"}) == ()


@pytest.mark.parametrize(
    "spec",
    [
        "simulated",
        "http://localhost:8000/v1#m",
        "https://models.example.org/v1#m",
        "https://api.openai.com.example.org/v1#m",
        "litellm/ollama/small",
        "litellm/some-model",
    ],
)
def test_who_may_do_without_a_key_is_not_asked_for_one(spec: str) -> None:
    assert missing_key(spec, environment={}) == ()


def test_a_server_of_ones_own_behind_openai_needs_none() -> None:
    env = {"OPENAI_BASE_URL": "http://localhost:8000/v1"}
    assert missing_key("openai/m", environment=env) == ()


def test_a_key_in_a_header_is_a_key() -> None:
    assert missing_key("https://api.x.ai/v1#m", ["$PCO_OTHER"], {}) == ()
    assert missing_key("https://api.x.ai/v1#m", ["2024-01-01"], {}) == ("PCO_API_KEY",)
