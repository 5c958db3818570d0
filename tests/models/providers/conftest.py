from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from promptcodebook.calls import Message, Reply, Request, Sampling, Schema
from promptcodebook.lm.endpoint import Endpoint, Transport, transport_to
from promptcodebook.lm.spec import Spec, parse_spec
from promptcodebook.lm.wire import ModelAddress
from tests.models.providers.site import Site, opened_site

KEYS = {"ANTHROPIC_API_KEY": "sk-ant-very-secret-0", "GEMINI_API_KEY": "AIza-very-secret-0"}
SCHEMA = Schema(
    "Pick",
    {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 9}},
        "required": ["a"],
        "additionalProperties": False,
    },
)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with opened_site() as opened:
        yield opened


@dataclass
class Provider:
    """A model whose provider is the site."""

    site: Site
    text: str

    @property
    def environment(self) -> Mapping[str, str]:
        url = self.site.url
        return {**KEYS, "ANTHROPIC_BASE_URL": url, "GOOGLE_GEMINI_BASE_URL": url}

    @property
    def spec(self) -> Spec:
        return parse_spec(self.text, self.environment)

    def endpoint(self, timeout: float = 5.0, **options: Any) -> Endpoint:
        access = self.spec.credentials({}, self.environment)
        return Endpoint(self.spec, access, timeout=timeout, **options)

    async def ask(self, *asked: Request, **options: Any) -> list[Reply]:
        async with self.endpoint(**options) as lm:
            return [await lm(each) for each in asked]

    def transport(self) -> Transport:
        return transport_to(self.spec, self.spec.credentials({}, KEYS), 5.0)

    async def complete(self, **body: Any) -> dict[str, Any]:
        """What a body of OpenAI's wire is answered with."""
        where, transport = ModelAddress(self.spec.base_url, self.spec.model), self.transport()
        data = json.dumps({"model": self.spec.model, **body}).encode()
        try:
            _, answer, _ = await transport.send("POST", "/chat/completions", where, data)
        finally:
            await transport.close()
        return json.loads(answer)

    async def streamed(self, **body: Any) -> list[dict[str, Any]]:
        """The chunks of a stream. Its end is the mark that OpenAI's clients wait for."""
        where, transport = ModelAddress(self.spec.base_url, self.spec.model), self.transport()
        data = json.dumps({"model": self.spec.model, "stream": True, **body}).encode()
        try:
            reply = await transport.open("/chat/completions", where, data)
            assert reply.headers["Content-Type"] == "text/event-stream"
            *events, last, rest = (await reply.whole()).decode().split("\n\n")
        finally:
            await transport.close()
        assert (last, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.fixture
def claude(site: Site) -> Provider:
    return Provider(site, "anthropic/claude-x")


@pytest.fixture
def gemini(site: Site) -> Provider:
    return Provider(site, "gemini/gem-x")


def request(*texts: str, schema: Schema | None = None, **sampling: Any) -> Request:
    messages = tuple(Message("user", text) for text in texts or ("hi",))
    drawn = Sampling(**{"max_tokens": 20, **sampling})
    return Request("executor", (Message("system", "be brief"), *messages), schema, sampling=drawn)
