"""A provider of batches on loopback, in the shapes of OpenAI's /v1/files and /v1/batches. It counts
how often it has answered each row: that is what a user pays for."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tests.build.batch import ROUTE
from tests.build.server import Server, says

Answer = Callable[[dict[str, Any]], dict[str, Any] | tuple[int, dict[str, Any]]]
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def completion(text: str) -> dict[str, Any]:
    """The body of a good answer."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "choices": [choice], "usage": USAGE}


def echo(body: dict[str, Any]) -> dict[str, Any]:
    return completion(f"As far as that: {body['messages'][-1]['content']}")


def refused(message: str, status: int = 400) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"message": message}}


class Provider:
    """Routes live, answers rows of batches by `answer`. `states` are what each batch is shown as
    before it is over; `ends` what it ends as, with all rows answered but the last `open`. At
    `stops_at` it does its work and never says so: 'files', 'batches', 'poll' or 'content'."""

    def __init__(self) -> None:
        self.server = Server()
        self.server.default = says(ROUTE)
        self.answer: Answer = echo
        self.states: list[str] = []
        self.ends, self.open = "completed", 0
        self.stops_at = ""
        self.reached = threading.Event()
        self.paid = Counter[str]()
        self.uploads: list[bytes] = []
        self.batches: list[dict[str, Any]] = []
        self.busy, self.retry_after = Counter[str](), 2
        self.seen: list[str] = []
        self._files: dict[str, bytes] = {}
        for path, handler in (
            ("/v1/files", self._upload),
            ("/v1/batches", self._all),
            ("/v1/batches/{id}", self._one),
            ("/v1/files/{id}/content", self._content),
        ):
            self.server.extra_routes.append((path, handler))

    @property
    def spec(self) -> str:
        return self.server.spec

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Every row of every file that was uploaded."""
        return [json.loads(line) for data in self.uploads for line in data.splitlines()]

    async def _answer(self, name: str, body: Any) -> web.StreamResponse:
        self.seen.append(name)
        while self.stops_at == name:
            self.reached.set()
            await asyncio.sleep(0.02)
        if self.busy[name]:
            self.busy[name] -= 1
            headers = {"Retry-After": str(self.retry_after)}
            return web.json_response({"error": {"message": "busy"}}, status=429, headers=headers)
        return web.json_response(body)

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        parts = {part.name: await part.read() async for part in await request.multipart()}
        assert parts.keys() == {"purpose", "file"} and parts["purpose"] == b"batch"
        assert request.headers["Authorization"] == "Bearer sk-test"
        name = f"file-{len(self._files)}"
        self._files[name] = bytes(parts["file"])
        self.uploads.append(self._files[name])
        return await self._answer("files", {"id": name, "object": "file", "purpose": "batch"})

    async def _all(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response({"data": self.batches[::-1], "has_more": False})
        order = await request.json()
        assert order["endpoint"] == "/v1/chat/completions" and order["completion_window"] == "24h"
        assert all(isinstance(value, str) for value in order["metadata"].values())
        rows = [json.loads(line) for line in self._files[order["input_file_id"]].splitlines()]
        number, good, bad = len(self.batches), list[Any](), list[Any]()
        for row in rows if self.ends != "failed" else ():
            if len(rows) - len(good) - len(bad) <= self.open:
                error = {"code": f"batch_{self.ends}", "message": "too late"}
                bad.append({"custom_id": row["custom_id"], "response": None, "error": error})
                continue
            made = self.answer(row["body"])
            status, body = made if isinstance(made, tuple) else (200, made)
            self.paid[row["custom_id"]] += status == 200
            response = {"status_code": status, "request_id": "r", "body": body}
            line = {"id": "x", "custom_id": row["custom_id"], "response": response, "error": None}
            (good if status == 200 else bad).append(line)
        for kind, lines in (("out", good), ("err", bad)):
            text = "".join(json.dumps(line) + "\n" for line in lines)
            self._files[f"{kind}-{number}"] = text.encode()
        now = int(time.time())
        batch = {
            "id": f"batch_{number}",
            "metadata": order["metadata"],
            "created_at": now - 600,
            f"{self.ends}_at": now,
            "output_file_id": f"out-{number}" if good else None,
            "error_file_id": f"err-{number}" if bad else None,
            "errors": {"data": [{"line": 2, "message": "no such model"}]},
            "_states": [*self.states, self.ends],
            "_total": len(rows),
        }
        self.batches.append(batch)
        return await self._answer("batches", {**batch, "status": "validating"})

    async def _one(self, request: web.Request) -> web.StreamResponse:
        batch = next(each for each in self.batches if each["id"] == request.match_info["id"])
        states: list[str] = batch["_states"]
        status = states.pop(0) if len(states) > 1 else states[0]
        done = batch["_total"] if len(states) == 1 and status == self.ends else 1
        counts = {"total": batch["_total"], "completed": done, "failed": 0}
        return await self._answer("poll", {**batch, "status": status, "request_counts": counts})

    async def _content(self, request: web.Request) -> web.StreamResponse:
        data = self._files[request.match_info["id"]]
        if self.stops_at == "content":
            await self._answer("content", None)
        self.seen.append("content")
        return web.Response(body=data)
