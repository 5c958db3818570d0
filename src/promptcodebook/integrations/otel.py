"""OpenTelemetry spans of model calls in the GenAI conventions, from training and from serving:
`telemetry = ["otel"]` (extra [otel]). A span covers a call with its retries. Spans go to the tracer
provider that the program has set, else by OTLP to OTEL_EXPORTER_OTLP_ENDPOINT. Prompts and replies
are in them only where OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT asks for them, and never
private ones.

A span has provider, model, sampling, tokens, finish reason, `error.type`, `pco.role` and
`pco.cost.usd`."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from promptcodebook.base.incidents import Tally
from promptcodebook.base.text import shipped_table
from promptcodebook.calls import LM, Reply, Request, Usage
from promptcodebook.config import Config
from promptcodebook.errors import ConfigError, import_extra
from promptcodebook.lm.budget import BudgetGate
from promptcodebook.lm.spec import Spec, parse_spec
from promptcodebook.lm.wire import told_usage
from promptcodebook.progress import Began, StepDone

if TYPE_CHECKING:
    from promptcodebook.deploy.serve.upstream import UpstreamAnswer

_WHAT = 'telemetry = ["otel"]'
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_ASKED = ("true", "1", "span_only", "span_and_event")
_FLUSH_MS = 5_000


class Otel:
    """A `Middleware` (`lm/stack.py`), and what `pco serve` traces its requests with."""

    def __init__(self, config: Config, private: bool) -> None:
        self._trace: Any = import_extra("opentelemetry.trace", _WHAT, "otel")
        self._provider: Any = self._trace.get_tracer_provider()
        if isinstance(self._provider, self._trace.ProxyTracerProvider):  # the program has set none
            self._provider = _own_provider()
        self._tracer: Any = self._provider.get_tracer("promptcodebook", version("promptcodebook"))
        self._content = os.environ.get(_CONTENT, "").lower() in _ASKED and not private
        self._executor = config.model_of("executor")
        self._run: Any = None

    def around(self, inner: LM, budget: BudgetGate, tally: Tally) -> LM:
        async def call(request: Request) -> Reply:
            with self._span(*_asked(request)) as span:
                if self._content:
                    turns = [(m.role, m.content) for m in request.messages]
                    span.set_attribute("gen_ai.input.messages", _messages(turns))
                reply = await inner(request)
                self._answered(span, reply.usage, reply.finish)
                if reply.usage.cost is not None:
                    span.set_attribute("pco.cost.usd", reply.usage.cost)
                if self._content and not request.embeds:
                    answer = _messages([("assistant", reply.text)], reply.finish)
                    span.set_attribute("gen_ai.output.messages", answer)
                return reply

        return call

    def hear(self, event: object) -> None:
        """A run is a span, with one for each step below it."""
        match event:
            case Began(run_id=name, simulated=simulated):
                facts = {"pco.run.id": name, "pco.simulated": simulated}
                self._run = self._tracer.start_span(f"pco train {name}", attributes=facts)
            case StepDone(step, seconds) if self._run is not None:
                now = time.time_ns()
                rewards = [t.rollout.reward for t in step.traces if t.rollout.reward is not None]
                facts: dict[str, Any] = {"pco.step": step.index + 1}
                if rewards:
                    facts["pco.reward"] = sum(rewards) / len(rewards)
                name, run = f"step {step.index + 1}", self._trace.set_span_in_context(self._run)
                begun = now - round(seconds * 1e9)
                done = self._tracer.start_span(name, run, attributes=facts, start_time=begun)
                done.end(now)
            case _:
                pass

    async def close(self) -> None:
        if self._run is not None:
            self._run.end()
            self._run = None
        if self._provider is not self._trace.get_tracer_provider():
            await asyncio.to_thread(self._provider.force_flush, _FLUSH_MS)

    @contextmanager
    def request(self, name: str, headers: Mapping[str, str]) -> Generator[Callable[[int], None]]:
        """A request for `name` that `pco serve` answers, in the caller's trace."""
        propagate: Any = import_extra("opentelemetry.propagate", _WHAT, "otel")
        facts = {"gen_ai.operation.name": "chat", "gen_ai.request.model": name}
        kind = self._trace.SpanKind.SERVER
        with self._span(f"chat {name}", facts, kind, propagate.extract(headers)) as span:
            yield lambda status: self._ended(span, status)

    @contextmanager
    def call(self, body: Mapping[str, Any], _: int) -> Generator[Callable[[UpstreamAnswer], None]]:
        """A call of the served model with this body; it hears the answer."""
        spec = _spec_of(self._executor)
        names = "temperature", "top_p", "max_tokens", "seed", "stream"
        given = {f"gen_ai.request.{n}": body[n] for n in names if body.get(n) is not None}
        name, facts = _named("chat", spec)
        with self._span(name, facts | given | {"pco.role": "executor"}) as span:
            if self._content:
                turns = cast("list[dict[str, Any]]", body["messages"])
                messages = [(str(turn["role"]), turn.get("content")) for turn in turns]
                span.set_attribute("gen_ai.input.messages", _messages(messages))

            def hear(answer: UpstreamAnswer) -> None:
                self._ended(span, answer.status)
                self._answered(span, told_usage(answer.usage))

            yield hear

    @contextmanager
    def _span(
        self, name: str, facts: Mapping[str, Any], kind: Any = None, context: Any = None
    ) -> Generator[Any]:
        if self._run is not None and not self._trace.get_current_span().get_span_context().is_valid:
            context = self._trace.set_span_in_context(self._run)
        with self._tracer.start_as_current_span(
            name,
            context,
            kind or self._trace.SpanKind.CLIENT,
            attributes=facts,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                # Its message may quote what was sent.
                self._failed(span, type(error).__name__)
                raise

    def _answered(self, span: Any, usage: Usage | None, finish: str = "") -> None:
        if finish:
            span.set_attribute("gen_ai.response.finish_reasons", [finish])
        if usage is not None:
            span.set_attribute("gen_ai.usage.input_tokens", usage.prompt_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", usage.completion_tokens)
            if cached := usage.cached_prompt_tokens:
                span.set_attribute("gen_ai.usage.cache_read.input_tokens", cached)

    def _ended(self, span: Any, status: int) -> None:
        span.set_attribute("http.response.status_code", status)
        if status >= 400:
            self._failed(span, str(status))

    def _failed(self, span: Any, kind: str) -> None:
        span.set_attribute("error.type", kind)
        span.set_status(self._trace.StatusCode.ERROR)


def _asked(request: Request) -> tuple[str, dict[str, Any]]:
    sampling = request.sampling
    operation = "embeddings" if request.embeds else "chat"
    name, facts = _named(operation, _spec_of(request.model))
    asked = {
        "pco.role": request.role,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.max_tokens": sampling.max_tokens or None,
        "gen_ai.request.seed": None if sampling.temperature == 0 else request.sample & 0x7FFFFFFF,
        "gen_ai.output.type": None if request.embeds else "json" if request.schema else "text",
    }
    return name, facts | {key: value for key, value in asked.items() if value is not None}


def _spec_of(text: str) -> Spec:
    try:
        return parse_spec(text)
    except ConfigError:
        return Spec(text, "local", model=text)


def _named(operation: str, spec: Spec) -> tuple[str, dict[str, Any]]:
    parts = urlsplit(spec.base_url)
    kind = spec.provider or spec.kind
    model = spec.model
    if kind == "litellm":
        kind, _, model = spec.model.partition("/")
    names = shipped_table(__file__, "otel.toml")
    provider = names.get(parts.hostname or "") or names.get(kind, kind)
    model = model or spec.text.partition("?")[0]
    facts: dict[str, Any] = {"gen_ai.operation.name": operation, "gen_ai.provider.name": provider}
    facts["gen_ai.request.model"] = model
    if parts.hostname:
        facts["server.address"] = parts.hostname
        facts["server.port"] = parts.port or {"http": 80}.get(parts.scheme, 443)
    return f"{operation} {model}", facts


def _messages(turns: Iterable[tuple[str, object]], finish: str = "") -> str:
    ending = {"finish_reason": finish} if finish else {}
    parts = ((role, [{"type": "text", "content": text}]) for role, text in turns)
    messages = [{"role": role, "parts": text, **ending} for role, text in parts]
    return json.dumps(messages, ensure_ascii=True, default=str)


@cache
def _own_provider() -> Any:
    """One for this process, which sends by OTLP."""
    sdk: Any = import_extra("opentelemetry.sdk.trace", _WHAT, "otel")
    resources: Any = import_extra("opentelemetry.sdk.resources", _WHAT, "otel")
    export: Any = import_extra("opentelemetry.sdk.trace.export", _WHAT, "otel")
    otlp: Any = import_extra("opentelemetry.exporter.otlp.proto.http.trace_exporter", _WHAT, "otel")
    named = os.environ.get("OTEL_SERVICE_NAME") or "promptcodebook"
    provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": named}))
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    return provider
