"""The simulated model over HTTP: `simulated`, with its world's faults and latency, and `delay`,
which says one fixed text after the latency, for load tests."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from promptcodebook.assemble import NO_DATA, plan_data
from promptcodebook.base.incidents import Incident
from promptcodebook.calls import Reply
from promptcodebook.config import Config
from promptcodebook.deploy.http import admission
from promptcodebook.deploy.http.completions import ChatCall, Completion, Refusal, call_of
from promptcodebook.errors import LMError, RateLimited
from promptcodebook.lm.spec import Spec
from promptcodebook.paper.simulated.model import SimulatedLM, simulated_model

_MODELS = ("simulated", "delay")


def open_site(spec: Spec, config: Config, base: Path, key: str = "") -> SimulatedServer:
    """The model in a world of the configuration's data; without data, in a general one."""
    named = config.task or config.data.path or config.data.train
    data = plan_data(config, base) if named else NO_DATA
    return SimulatedServer(simulated_model(config.task, data, spec), key)


class SimulatedServer:
    """Both models; counts at GET /stats. Without a `key` it answers this machine alone."""

    def __init__(self, lm: SimulatedLM, key: str = "") -> None:
        self._lm = lm
        limits = admission.RequestLimits(drain_s=1.0)
        self._admission = admission.Admission(admission.Callers((key,)), limits)
        self._numbers = itertools.count(1)

    async def serve(self, host: str, port: int, ready: Callable[[admission.Address], None]) -> None:
        """Serves until cancelled; `ready` gets the address. Raises OSError when the port is
        taken."""
        async with self.serving(host, port) as address:
            ready(address)
            await asyncio.Event().wait()

    @asynccontextmanager
    async def serving(
        self, host: str = "127.0.0.1", port: int = 0
    ) -> AsyncGenerator[admission.Address]:
        """The server, listening while the block runs. Raises OSError when the port is taken."""
        owned = {"object": "model", "created": 0, "owned_by": "simulated"}
        models = {"object": "list", "data": [{"id": name, **owned} for name in _MODELS]}
        health = {"status": "ok", "model": "simulated"}

        def reset() -> Mapping[str, object]:
            self._lm.stats.reset()
            return self._lm.stats.as_dict()

        paths: admission.Paths = {
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/models": ("GET", admission.showing(lambda: models)),
            "/healthz": ("GET", admission.showing(lambda: health)),
            "/health": ("GET", admission.showing(lambda: health)),
            "/stats": ("GET", admission.showing(self._lm.stats.as_dict)),
            "/stats/reset": ("POST", admission.showing(reset)),
        }
        async with self._admission.listening(paths, None, host, port) as address:
            yield address

    async def _chat(
        self, request: web.BaseRequest, visit: admission.RequestContext
    ) -> web.StreamResponse:
        call = call_of(await self._admission.read(request, visit))
        name = call.request.model or "simulated"
        if name not in _MODELS:
            text = f"no model {name!r} here; this server has {' and '.join(map(repr, _MODELS))}"
            raise Refusal(text, status=404, kind="model_not_found", param="model")
        asked = replace(call.request, model=name)
        try:
            reply = await self._lm.reply(asked, json_mode=call.json_mode, seeded=call.seeded)
        except RateLimited:
            wait, text = self._lm.settings.retry_after, "simulated: too many requests"
            raise Refusal(text, status=429, kind="rate_limit", retry_after=wait) from None
        except LMError as error:
            if error.incident == Incident.DROPPED:
                # The reply begins, promises more than it gives, and the line goes dead.
                broken = web.StreamResponse(headers={"Content-Type": "application/json"})
                broken.content_length = 4096
                await broken.prepare(request)
                await broken.write(b'{"id": "broken", "choices": [')
                if request.transport is not None:
                    request.transport.abort()
                return broken
            text = "simulated: a server error"
            raise Refusal(text, status=500, kind="server_error") from None
        completion = Completion(f"simulated-{next(self._numbers)}", name)
        if call.stream:
            return await self._stream(request, call, completion, reply)
        return admission.json_response(completion.body(reply), visit)

    async def _stream(
        self, request: web.BaseRequest, call: ChatCall, completion: Completion, reply: Reply
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        settings = self._lm.settings

        async def send(body: Mapping[str, Any]) -> None:
            await response.write(b"data: " + json.dumps(body).encode() + b"\n\n")

        await response.prepare(request)
        await send(completion.chunk())
        size = max(1, -(-len(reply.text) // max(1, settings.stream_chunks)))
        for start in range(0, len(reply.text), size):
            await asyncio.sleep(settings.stream_delay)
            await send(completion.chunk({"content": reply.text[start : start + size]}))
        await asyncio.sleep(settings.stream_delay)
        await send(completion.chunk({}, finish=reply.finish))
        if call.stream_usage:
            await send(completion.usage_chunk(reply))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response
