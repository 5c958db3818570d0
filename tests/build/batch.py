"""Files of rows, and an endpoint that answers them."""

import json
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.build.method import routed
from tests.build.server import Server, says

ROUTE = routed(1, 3)


def write_rows(path: Path, count: int, **more: Any) -> Path:
    """JSON lines: n and a question."""
    lines = (json.dumps({"n": n, "question": f"How far is {n}?", **more}) for n in range(count))
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def question_of(body: dict[str, Any]) -> str:
    """What the row asks, or '' for a call that is not the executor's."""
    return "" if "response_format" in body else str(body["messages"][-1]["content"])


class Answers:
    """A step of `Server`: routes, and the answer to each question; some are asked in vain."""

    def __init__(self, fails_on: tuple[str, ...] = (), delay: float = 0.0) -> None:
        self.fails_on = fails_on
        self.delay = delay
        self.asked: list[str] = []

    async def __call__(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        question = question_of(body)
        self.asked.append(question)
        if any(part in question for part in self.fails_on):
            return web.json_response({"error": {"message": "no"}}, status=400)
        text = f"As far as that: {question}" if question else ROUTE
        return await says(text, delay=self.delay)(request, body)


def answering(**how: Any) -> tuple[Server, Answers]:
    server, answers = Server(), Answers(**how)
    server.default = answers
    return server, answers


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
