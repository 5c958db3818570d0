"""Models behind litellm, which a stand-in plays without a network, and behind `pco lm serve`."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from promptcodebook import errors
from promptcodebook.base.incidents import Incident
from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.config import Config
from promptcodebook.deploy.http.completions import Refusal
from promptcodebook.deploy.serve.upstream import Upstream, UpstreamAnswer, connect_upstream
from promptcodebook.doctor.probe import probe
from promptcodebook.errors import MissingExtra
from promptcodebook.lm.budget import PriceTable
from promptcodebook.lm.endpoint import Endpoint
from promptcodebook.lm.spec import Credentials, parse_spec
from tests.build import providers
from tests.build.cases import table
from tests.build.providers import Answer as Scripted

# The part of litellm that we call, so that these tests need neither it nor a network.
HERE = Path(__file__).parent
LIBRARY = (HERE / "litellm_stub.txt").read_text("utf-8")


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


# What providers have in common: they are served, examined, priced, and named where one lacks.

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
        assert answer.status == 400 and b"but not audio" in answer.body
        for odd in ({"type": "image_url"}, 7):
            body = {"messages": [{"role": "user", "content": [odd]}]}
            answer = await upstream.ask(upstream.body(body))
            assert answer.status == 400 and b"anthropic's format" in answer.body
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


@pytest.mark.parametrize(("text", "ours", "theirs"), table(__file__, "prices"))
def test_litellms_list_comes_before_ours_and_what_is_in_neither_is_unknown(
    text: str, ours: Any, theirs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty list in the table is an unknown price."""
    [litellms] = table(__file__, "list")
    for name, prices, expected in (("none", {}, ours), ("some", litellms, theirs)):
        package = tmp_path / name / "litellm"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('it is slow to import')")
        listed = package / "model_prices_and_context_window_backup.json"
        listed.write_text(json.dumps(prices))
        monkeypatch.syspath_prepend(package.parent)
        monkeypatch.delitem(sys.modules, "litellm", raising=False)
        price = PriceTable().price(text)
        known = [v for v in price.model_dump().values() if v is not None] if price else []
        assert known == expected
