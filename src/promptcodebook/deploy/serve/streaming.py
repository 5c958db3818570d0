"""The model's answer on its way to the caller, whole or piece by piece."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web

from promptcodebook.deploy.http.admission import Admission, RequestContext
from promptcodebook.deploy.http.completions import Refusal, error_body
from promptcodebook.deploy.serve.spending import Spending
from promptcodebook.deploy.serve.upstream import Upstream, UpstreamAnswer
from promptcodebook.lm.wire import told_usage

_PIECE = 2**16  # Bytes of a body that are handed over at once.


class Tracing(Protocol):
    """Spans of requests: `request` of one to the model `name`, which hears its status; `call` of
    what is asked for it, which hears the answer."""

    def request(
        self, name: str, headers: Mapping[str, str]
    ) -> AbstractContextManager[Callable[[int], None]]: ...

    def call(
        self, body: Mapping[str, Any], size: int
    ) -> AbstractContextManager[Callable[[UpstreamAnswer], None]]: ...


@dataclass(frozen=True, slots=True)
class AnswerRelay:
    """Asks the model behind the policy. `texts`: its text is logged."""

    upstream: Upstream
    admission: Admission
    spending: Spending | None = None
    tracing: Tracing | None = None
    texts: bool = False

    async def answer(
        self,
        request: web.BaseRequest,
        given: Mapping[str, Any],
        own: Mapping[str, Any],
        visit: RequestContext,
        turned: Callable[[UpstreamAnswer], UpstreamAnswer],
    ) -> web.StreamResponse:
        """The model's answer. Where it refuses what is ours, it is asked again in another form."""
        upstream, spending = self.upstream, self.spending
        asked = upstream.completed(given, own)
        body = asked if spending is None else spending.measured(asked)
        search = upstream.search(given)
        data = await self.admission.apart(visit, lambda: upstream.body(body, search))
        wanted = spending is None or body.get("stream_options") == asked.get("stream_options")
        unread = spending is None and self.tracing is None and not self.texts
        reads = ("ignored" if unread else "shown") if wanted else "hidden"
        with ExitStack() as calls:
            hearers = [
                calls.enter_context(each.call(body, len(data)))
                for each in (spending, self.tracing)
                if each is not None
            ]
            answer = await upstream.ask(data, usage=reads)
            while upstream.learns(search, answer):
                data = upstream.body(body, search)
                answer = await upstream.ask(data, usage=reads)
            visit.spent["executor"] = told_usage(answer.usage)
            visit.headers["x-pco-usage"] = visit.usage_text
            response = await self._send(request, turned(answer), visit)
            if answer.heard is not None:  # a stream says it at its end
                visit.spent["executor"] = told_usage(answer.usage)
            for hear in hearers:
                hear(answer)
            if self.texts:
                visit.output = answer.output
            return response

    async def _send(
        self, request: web.BaseRequest, answer: UpstreamAnswer, visit: RequestContext
    ) -> web.StreamResponse:
        headers = {**answer.headers, **visit.headers, "Content-Type": answer.kind}
        if answer.pieces is None and len(answer.body) <= _PIECE:
            return web.Response(body=answer.body, status=answer.status, headers=headers)
        response = web.StreamResponse(status=answer.status, headers=headers)
        if answer.pieces is None:
            response.content_length = len(answer.body)
        else:
            response.headers["Cache-Control"] = "no-store"
        try:
            await response.prepare(request)
            async with aclosing(answer.pieces or _cut(answer.body)) as pieces:
                try:
                    async for piece in pieces:
                        await self._write(request, response, piece)
                except Refusal as refusal:
                    message = json.dumps(error_body(refusal)).encode()
                    await self._write(request, response, b"\n\ndata: " + message + b"\n\n")
        finally:
            answer.close()
        await response.write_eof()
        return response

    async def _write(
        self, request: web.BaseRequest, response: web.StreamResponse, piece: bytes
    ) -> None:
        """Hands a piece to the caller; hangs up on one who does not take it in time."""
        try:
            async with asyncio.timeout(self.admission.limits.write_s):
                await response.write(piece)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError from None


async def _cut(body: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(body), _PIECE):
        yield body[start : start + _PIECE]
