from __future__ import annotations

import pytest

from promptcodebook.errors import ConfigError
from promptcodebook.lm.spec import parse_spec


def test_an_http_spec_names_address_and_model():
    spec = parse_spec("http://localhost:8000/v1#Qwen/Qwen3-8B:latest", {})
    assert (spec.kind, spec.base_url) == ("http", "http://localhost:8000/v1")
    assert spec.model == "Qwen/Qwen3-8B:latest"
    assert spec.key_names == ("PCO_API_KEY",)


def test_the_model_may_be_left_out_and_the_full_path_may_be_given():
    assert parse_spec("https://host/v1/", {}).model == ""
    assert parse_spec("https://host/v1/chat/completions#m", {}).base_url == "https://host/v1"


def test_openai_uses_its_own_key_and_address():
    spec = parse_spec("openai/gpt-4o", {})
    assert (spec.base_url, spec.model) == ("https://api.openai.com/v1", "gpt-4o")
    assert spec.key_names == ("OPENAI_API_KEY",)
    moved = parse_spec("openai/gpt-4o", {"OPENAI_BASE_URL": "http://proxy:1/v1/"})
    assert moved.base_url == "http://proxy:1/v1"


def test_the_openai_key_goes_to_openai_alone():
    assert "OPENAI_API_KEY" in parse_spec("https://api.openai.com/v1#x", {}).key_names
    for other in ("https://api.openai.com.evil.example/v1#x", "http://localhost/v1#x"):
        assert "OPENAI_API_KEY" not in parse_spec(other, {}).key_names


def test_litellm_keeps_the_provider_in_the_name():
    assert parse_spec("litellm/anthropic/claude", {}).model == "anthropic/claude"


def test_the_simulated_model_takes_settings():
    assert parse_spec("simulated", {}).params == {}
    spec = parse_spec("simulated?load=0.2&latency=0.1&faults=429:0.1,500:0.05", {})
    assert spec.params == {"load": "0.2", "latency": "0.1", "faults": "429:0.1,500:0.05"}


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("", "no model", "openai/NAME"),
        ("opnai/gpt", "did you mean 'openai'", "openai/NAME"),
        ("simulatd", "did you mean 'simulated'", "simulated"),
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
