"""A policy behind its server, in front of a scripted upstream: what the tests of `pco serve`
share."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

import aiohttp
import openai
from aiohttp import web

from promptcodebook.assemble import Sources
from promptcodebook.calls import LM
from promptcodebook.config.schema import Price
from promptcodebook.deploy.http.admission import (
    Admission,
    Callers,
    RequestLimits,
    caller_of,
    daily_budget,
)
from promptcodebook.deploy.online.exploring import Explorer
from promptcodebook.deploy.serve import versions
from promptcodebook.deploy.serve.placement import Placement
from promptcodebook.deploy.serve.proxy import Proxy
from promptcodebook.deploy.serve.spending import Records, Spending
from promptcodebook.deploy.serve.upstream import Upstream
from promptcodebook.lm.budget import Ledger, PriceTable
from promptcodebook.lm.endpoint import HttpTransport
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.spec import ApiKey, Credentials, parse_spec
from promptcodebook.lm.stack import StackResources
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.policy import Policy, deploy
from promptcodebook.routing.ranking import BUCKETS
from promptcodebook.types import Ranking
from tests.build.policy import RANKING, file_of
from tests.build.server import Server, Step

CHAT: Any = [{"role": "user", "content": "My refund is late."}]
UPSTREAM_KEY = "sk-upstream-4711-secret"


def one_call(**settings: Any) -> PolicyFile:
    """Routed by a ranking, put together verbatim: no model is asked for a prompt."""
    if not settings:  # to write and to read 24,000 numbers takes longer than most requests
        return _plain().file
    made = file_of(ranking=RANKING, compose="verbatim", **settings)
    return made.with_about(verdict="Deploy")


@cache
def _plain() -> versions.ServedVersion:
    file = file_of(ranking=RANKING, compose="verbatim").with_about(verdict="Deploy")
    return versions.ServedVersion.of(file.text().encode(), "the test")


def by_words() -> PolicyFile:
    """The same, with a route for the words of each input."""
    draw = random.Random(0)
    rows = tuple(tuple(draw.randrange(-9, 10) for _ in range(BUCKETS)) for _ in range(5))
    ranking = Ranking((1.0,) * BUCKETS, 0.01, rows, (0.0,) * 5, least=1, kind="distilled")
    return file_of(ranking=ranking, compose="verbatim")


def three_call(**settings: Any) -> PolicyFile:
    return file_of(**settings)


def deployed(file: PolicyFile, lm: LM | None = None, spending: Spending | None = None) -> Policy:
    settings = file.settings(above={"lm": "own"}, trusted=True)
    supplies = StackResources(ledger=Ledger(log=spending))
    return deploy(file, settings, Sources(lm=lm or ScriptedLM()), supplies)


async def ask(
    url: str, path: str = "/v1/chat/completions", **sent: Any
) -> tuple[int, Any, dict[str, str]]:
    """Status, body and headers (in small letters). `data` is sent as JSON."""
    if "data" in sent:
        sent["headers"] = {"Content-Type": "application/json", **sent.get("headers", {})}
    method = sent.pop("method", "POST" if {"json", "data"} & sent.keys() else "GET")
    async with aiohttp.ClientSession() as http, http.request(method, url + path, **sent) as answer:
        is_json = answer.content_type == "application/json"
        body = await answer.json() if is_json else await answer.text()
        return answer.status, body, {k.lower(): v for k, v in answer.headers.items()}


@dataclass
class Setup:
    """How a policy is served; the rest is as `pco serve` has it."""

    lm: LM = field(default_factory=ScriptedLM)
    keys: tuple[str, ...] = ()
    limits: RequestLimits = field(default_factory=RequestLimits)
    patience: versions.Patience = field(default_factory=versions.Patience)
    source: versions.PolicySource | None = None
    records: Path | None = None
    spending: Spending | None = None
    cap: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    timeout: float = 10.0
    most_bytes: int = 1_000_000
    # Another base URL than the scripted server's.
    upstream: str = ""
    # Of `Proxy` and of its `Placement`.
    options: dict[str, Any] = field(default_factory=dict)
    explore: float = 0.0


@dataclass
class Up:
    """What is up."""

    url: str
    upstream: Server
    proxy: Proxy

    def client(self, key: str = "none", **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, **options)

    async def ask(
        self, path: str = "/v1/chat/completions", **sent: Any
    ) -> tuple[int, Any, dict[str, str]]:
        return await ask(self.url, path, **sent)

    async def metrics(self, key: str = "") -> dict[str, float]:
        sent = {"headers": {"Authorization": f"Bearer {key}"}} if key else {}
        _, page, _ = await self.ask("/metrics", **sent)
        lines = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}


@asynccontextmanager
async def up(file: PolicyFile | None = None, setup: Setup | None = None) -> AsyncGenerator[Up]:
    """The policy served as pco/tickets, over an upstream that is scripted."""
    setup, server = setup or Setup(), Server()
    await server.start()
    base_url = setup.upstream or server.url
    spec = parse_spec(f"{base_url}#m", {})
    key = ApiKey("PCO_API_KEY", UPSTREAM_KEY)
    transport = HttpTransport(spec.base_url, Credentials(key), setup.timeout, setup.most_bytes)
    upstream = Upstream(spec, key, transport, cap=setup.cap)
    fixed = versions.FixedSource(
        versions.ServedVersion.of(file.text().encode(), "the test") if file else _plain()
    )
    live = versions.Live(
        setup.source or fixed,
        lambda version: versions.Composing(
            deployed(version.file, setup.lm, setup.spending),
            version.name,
            setup.patience,
            Explorer(version.file, setup.explore) if setup.explore else None,
        ),
    )
    records = Records(setup.records, 1000) if setup.records else None
    admission = Admission(Callers(setup.keys), setup.limits)
    placing = {each.name for each in fields(Placement)} & setup.options.keys()
    placement = Placement(**{name: setup.options[name] for name in placing})
    options = {name: value for name, value in setup.options.items() if name not in placing}
    proxy = Proxy(
        "tickets",
        live,
        upstream,
        admission,
        records,
        setup.spending,
        placement=placement,
        **options,
    )
    try:
        async with proxy.serving(poll_s=0.02) as address:
            yield Up(address.base_url.removesuffix("/v1"), server, proxy)
    finally:
        await server.stop()


def limited(path: Path, *, at: str = "2026-03-01T18:00:00+00:00", **budgets: str) -> Setup:
    """Keys NAME-key-4711 with these budgets a day; a token costs a thousandth of a dollar."""
    keys = {f"{name}-key-4711": daily_budget(text, name) for name, text in budgets.items()}
    allowed = {caller_of(key): budget for key, budget in keys.items()}
    prices = PriceTable({"m": Price(prompt=1000, completion=1000)})
    spending = Spending(path, allowed, prices, ("m",), 20, lambda: datetime.fromisoformat(at))
    return Setup(keys=(*keys, "free-key-4711"), spending=spending)


LATE = "My refund is late."


def streams(*pieces: bytes, delay: float = 0.0, breaks: bool = False) -> Step:
    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(delay)
        if breaks and request.transport is not None:
            request.transport.abort()
        return response

    return step
