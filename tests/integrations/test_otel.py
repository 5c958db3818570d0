"""`telemetry = ["otel"]`: spans in the GenAI conventions, read from the SDK's own exporter."""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from promptcodebook.calls import Message, Request
from promptcodebook.config import Config
from promptcodebook.config.schema import RoleSettings
from promptcodebook.errors import AuthRefused
from promptcodebook.integrations.otel import Otel
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.stack import Models, StackResources
from tests.build.cli import pco
from tests.build.method import routed
from tests.build.proxied import CHAT, Setup, three_call, up
from tests.build.server import Server, fails, says

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
KNOWN = {str(v) for k, v in vars(gen_ai_attributes).items() if k.startswith("GEN_AI_")}
ASK = Request("executor", (Message("system", "a secret rule"), Message("user", "a question")))


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """Of the one provider that this process may have."""
    made, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    trace.set_tracer_provider(provider)
    return made


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[Any]:
    exporter.clear()
    yield lambda: [*exporter.get_finished_spans()]
    told = {key for span in exporter.get_finished_spans() for key in span.attributes or {}}
    assert {key for key in told if key.startswith("gen_ai.")} <= KNOWN


@asynccontextmanager
async def models(lm: str, private: bool = False, **more: Any) -> AsyncIterator[Models]:
    roles = {"executor": RoleSettings(temperature=0.5, top_p=0.9, max_tokens=64)}
    settings = {"cache": False, "retries": 1, "telemetry": ("otel",), **more}
    made = Models.build(Config(lm=lm, roles=roles, **settings), StackResources(private=private))
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def server() -> Any:
    made = Server()
    await made.start()
    yield made
    await made.stop()


async def test_a_call_is_a_span_with_the_attributes_of_the_conventions(
    server: Server, spans: Any
) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    cached = {**usage, "prompt_tokens_details": {"cached_tokens": 5}}
    server.script(fails(429), says("an answer", usage=cached))
    async with models(server.spec) as made:
        await made.lm(ASK)
    [span] = spans()
    host, port = server.url.removeprefix("http://").removesuffix("/v1").split(":")
    assert (span.name, span.kind) == ("chat m", SpanKind.CLIENT), "one span, retries included"
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.seed": 0,
        "gen_ai.output.type": "text",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 5,
        "server.address": host,
        "server.port": int(port),
        "pco.role": "executor",
    }


async def test_prompts_and_replies_are_in_spans_only_where_asked_for(
    server: Server, spans: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script(says("an answer"), fails(401, "what of 'a secret rule'?"))
    async with models(server.spec) as made:
        await made.lm(ASK)
        with pytest.raises(AuthRefused):
            await made.lm(ASK)
    good, bad = spans()
    assert bad.status.status_code is StatusCode.ERROR
    assert bad.attributes["error.type"] == "AuthRefused"
    assert not {"secret", "answer"} & {*(good.to_json() + bad.to_json()).split()}
    monkeypatch.setenv(CONTENT, "true")
    for how in ({}, {"private": True}, {"telemetry": ()}):
        async with models(server.spec, **how) as made:
            await made.lm(ASK)
    shown, withheld = spans()[2:]  # and none where it is not asked for
    sent = json.loads(shown.attributes["gen_ai.input.messages"])
    assert sent[0] == {"role": "system", "parts": [{"type": "text", "content": "a secret rule"}]}
    [reply] = json.loads(shown.attributes["gen_ai.output.messages"])
    assert reply == {
        "role": "assistant",
        "parts": [{"type": "text", "content": "ok"}],
        "finish_reason": "stop",
    }
    assert "gen_ai.input.messages" not in withheld.attributes


def test_a_training_run_is_one_trace(tmp_path: Path, spans: Any) -> None:
    words = ("train", "--task", "constraints", "--lm", "simulated", "--preset", "quick", "--plain")
    sets = ("update.epochs=2", "update.batch_size=2", "verdict_examples=4", "validation.every=0")
    made = pco(
        *words, *(w for s in (*sets, 'telemetry=["otel"]') for w in ("--set", s)), cwd=tmp_path
    )
    assert made.code == 0, made.err
    found = spans()
    [run] = [span for span in found if span.parent is None]
    assert run.name.startswith("pco train ") and run.attributes["pco.simulated"] is True
    assert len({span.context.trace_id for span in found}) == 1
    steps = [span for span in found if span.name.startswith("step ")]
    assert [span.name for span in steps] == ["step 1", "step 2"]
    calls = [span for span in found if span.name == "chat simulated"]
    assert {span.attributes["pco.role"] for span in calls} >= {"executor", "critic"}
    assert len(calls) + len(steps) + 1 == len(found)


@pytest.mark.parametrize(
    ("name", "module"),
    [("otel", "opentelemetry.trace"), ("mlflow", "mlflow")],
)
def test_what_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    words = ("train", "--task", "constraints", "--lm", "simulated")
    made = pco(*words, "--set", f'telemetry=["{name}"]', cwd=tmp_path)
    made.error(2, f"pip install 'promptcodebook[{name}]'")
    assert not [*tmp_path.glob("runs/*")], "nothing was begun"


async def test_a_served_request_is_a_span_in_the_callers_trace(spans: Any) -> None:
    lm = ScriptedLM().reply_with(lambda request: routed(0, 1))
    config = Config(lm="http://127.0.0.1:9/v1#m", telemetry=("otel",))
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    tracing = Otel(config, False)
    async with up(three_call(), Setup(lm=lm, options={"tracing": tracing})) as server:
        status, _, _ = await server.ask(
            json={"model": "pco/tickets", "messages": CHAT, "temperature": 0.25},
            headers={"traceparent": caller},
        )
        server.upstream.script(fails(413, "no"))
        refused, _, _ = await server.ask(json={"model": "pco/tickets", "messages": CHAT})
    assert (status, refused) == (200, 413)
    call, request, broken, above = spans()
    assert request.name == "chat pco/tickets" and request.kind is SpanKind.SERVER
    assert f"{request.context.trace_id:032x}" == caller.split("-")[1]
    assert call.parent.span_id == request.context.span_id and call.name == "chat m"
    assert call.attributes["gen_ai.request.temperature"] == 0.25
    assert call.attributes["gen_ai.usage.input_tokens"] == 7
    assert broken.attributes["error.type"] == "413" == above.attributes["error.type"]
    assert "refund" not in "".join(span.to_json() for span in spans())
