"""What providers have in common: they are served, examined, priced, and named where one lacks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.config import Config
from promptcodebook.deploy.http.completions import Refusal
from promptcodebook.deploy.serve.upstream import Upstream, UpstreamAnswer, connect_upstream
from promptcodebook.doctor.probe import probe
from promptcodebook.errors import MissingExtra
from promptcodebook.lm.budget import PriceTable
from promptcodebook.lm.endpoint import Endpoint
from promptcodebook.lm.spec import Credentials, parse_spec
from tests.build import providers
from tests.build.providers import Answer as Scripted

ASKED = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "seed": 3}
STREAM = [
    providers.BEGUN,
    *providers.block(0, {**providers.TEXT, "text": ""}, {"type": "text_delta", "text": "hello"}),
]


async def test_pco_serve_passes_requests_on_to_it(site: providers.Site) -> None:
    site.script(providers.says("hello"), providers.streams(*STREAM, *providers.ended("end_turn")))
    provider = providers.Provider(site, "anthropic/x")
    upstream = await connect_upstream(Config(lm=provider.text), provider.environment)
    try:
        answer = await upstream.ask(upstream.body(ASKED))
        choice = json.loads(answer.body)["choices"][0]
        assert answer.status == 200 and choice["message"]["content"] == "hello"
        body = upstream.body({**ASKED, "stream": True, "stream_options": {"include_usage": True}})
        answer = await upstream.ask(body, "shown")
        pieces = b"".join([piece async for piece in answer.pieces or ()])  # type: ignore[union-attr]
        answer.close()
    finally:
        await upstream.close()
    events = [line[6:] for line in pieces.decode().splitlines() if line]
    chunks = [json.loads(event) for event in events[:-1]]
    texts = [each["choices"][0]["delta"].get("content") or "" for each in chunks if each["choices"]]
    assert {choice["index"] for each in chunks for choice in each["choices"]} == {0}
    assert events[-1] == "[DONE]" and "".join(texts) == "hello"
    assert isinstance(answer.usage, dict) and answer.usage["total_tokens"] > 0


async def test_a_caller_of_pco_serve_reads_the_provider_s_refusal(site: providers.Site) -> None:
    site.script(
        providers.refuses(400, "invalid_request_error", "top_k: not for this model"),
        providers.refuses(401, "authentication_error", "invalid x-api-key"),
    )
    provider = providers.Provider(site, "anthropic/x")
    upstream: Upstream = await connect_upstream(Config(lm=provider.text), provider.environment)
    try:
        answer: UpstreamAnswer = await upstream.ask(upstream.body({**ASKED, "top_k": 2}))
        assert answer.status == 400 and b"top_k" in answer.body
        audio = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
        spoken = {"messages": [{"role": "user", "content": [audio]}]}
        answer = await upstream.ask(upstream.body(spoken))
        assert answer.status == 400 and b"no audio" in answer.body
        for odd in ({"type": "image_url"}, 7):
            body = {"messages": [{"role": "user", "content": [odd]}]}
            answer = await upstream.ask(upstream.body(body))
            assert answer.status == 400 and b"anthropic's words" in answer.body
        with pytest.raises(Refusal) as caught:
            await upstream.ask(upstream.body(ASKED))
        assert caught.value.status == 502, "our key is no fault of the caller's"
    finally:
        await upstream.close()


async def test_doctor_examines_it(site: providers.Site, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"data": [{"id": "x", "type": "model"}], "has_more": False}
    replies = [providers.says('{"code": "kestrel-7391"}')] * 15
    site.script(Scripted(listed), *replies, Scripted({"input_tokens": 3}))
    for name, value in providers.Provider(site, "anthropic/x").environment.items():
        monkeypatch.setenv(name, value)
    found = await probe("anthropic/x", timeout=60.0)
    assert found.ok and found["model"].what == "x is listed"
    assert found["structured output"].what.startswith("enforced")
    assert found["tokenizer"].what == "the endpoint counts tokens itself"
    assert "seed" in found["sampling"].what


@pytest.mark.parametrize(("text", "module", "extra"), [
    ("anthropic/x", "anthropic", "anthropic"),
    ("litellm/p/x", "litellm", "litellm"),
])  # fmt: skip
def test_without_its_library_the_extra_is_named(
    text: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra) as caught:
        Endpoint(parse_spec(text, {}), Credentials())
    assert caught.value.hint == f"pip install 'promptcodebook[{extra}]'"


LITELLMS = {
    "claude-haiku-4-5": {"litellm_provider": "anthropic", "input_cost_per_token": 9e-6,
                         "output_cost_per_token": 1e-5, "cache_read_input_token_cost": 1e-7,
                         "cache_creation_input_token_cost": 2e-6},
    "azure/gpt-4o": {"litellm_provider": "azure", "input_cost_per_token": 3e-6,
                     "output_cost_per_token": 4e-6},
    "gpt-new": {"litellm_provider": "openai", "input_cost_per_token": 1e-6},
}  # fmt: skip


@pytest.mark.parametrize(("text", "ours", "theirs"), [
    ("openai/gpt-4o-mini", (0.15, 0.6, 0.075, 0.5), (0.15, 0.6, 0.075, 0.5)),
    ("openai/gpt-4o-mini-2024-07-18", (0.15, 0.6, 0.075, 0.5), (0.15, 0.6, 0.075, 0.5)),
    ("https://api.openai.com/v1#gpt-4o", (2.5, 10.0, 1.25, 0.5), (2.5, 10.0, 1.25, 0.5)),
    ("https://elsewhere.example/v1#gpt-4o", None, None),
    ("anthropic/claude-haiku-4-5-20251001", (1.0, 5.0, 0.1, 1.25), (9.0, 10.0, 0.1, 2.0)),
    ("litellm/anthropic/claude-haiku-4-5", (1.0, 5.0, 0.1, 1.25), (9.0, 10.0, 0.1, 2.0)),
    ("openai/claude-haiku-4-5", None, None),
    ("gemini/gemini-2.5-flash", (0.3, 2.5, 0.03), (0.3, 2.5, 0.03)),
    ("litellm/azure/gpt-4o", None, (3.0, 4.0)),
    ("openai/gpt-new", None, None),
])  # fmt: skip
def test_litellms_list_comes_before_ours_and_what_is_in_neither_is_unknown(
    text: str, ours: Any, theirs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, table, expected in (("none", {}, ours), ("some", LITELLMS, theirs)):
        package = tmp_path / name / "litellm"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('it is slow to import')")
        listed = package / "model_prices_and_context_window_backup.json"
        listed.write_text(json.dumps(table))
        monkeypatch.syspath_prepend(package.parent)
        monkeypatch.delitem(sys.modules, "litellm", raising=False)
        price = PriceTable().price(text)
        known = price and tuple(v for v in price.model_dump().values() if v is not None)
        assert known == expected
