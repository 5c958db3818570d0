"""Public scorers' verdicts and benchmarks' rows, which lie outside the repository."""

import json
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(os.environ.get("PCO_SHARED") or Path(__file__).parents[3] / "shared")


def shared(*parts: str) -> Path:
    """A file or folder among them; the test is skipped without it."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no {path}; set PCO_SHARED to the folder that holds {parts[0]}/")
    return path


def vectors(name: str) -> list[dict[str, Any]]:
    """What a public scorer said of given answers."""
    lines = shared("vectors", f"{name}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


PAPER = Path(__file__).parents[1] / "paper"


def cases(name: str) -> Any:
    """A table of tests/paper/cases.toml: what a test is tried on, and what must come of it."""
    return tomllib.loads((PAPER / "cases.toml").read_text("utf-8"))[name]


class Shelf:
    """A search that writes down what it was asked and numbers its passages."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, query: str, k: int) -> Sequence[str]:
        self.asked.append((query, k))
        hop = len(self.asked)
        return [f"Page {hop}.{n} | text {n} of hop {hop}" for n in range(k)]


PLAIN = "Thank you for your message. We are sorry for the trouble and will call you tomorrow."


REPLIES = json.loads((PAPER / "tasks" / "houserules_replies.json").read_text("utf-8"))


KEPT: dict[str, list[str]] = REPLIES["kept"]
