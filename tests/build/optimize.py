"""A small training run: its data, reward and settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import promptcodebook as pco
from promptcodebook.calls import Usage
from promptcodebook.errors import EndpointDown

TOPICS = ("rivers", "bridges", "clocks", "bread", "maps", "lamps", "boats", "seeds")


QUICK: dict[str, Any] = {
    "preset": "full",
    "update": {"epochs": 3, "batch_size": 6},
    "validation": {"every": 2, "subset": 6, "finalists": 2},
}


def rows() -> list[dict[str, str]]:
    """Small questions with short answers, ours."""
    return [
        {"question": f"In {n} words: what are {topic} good for?", "answer": f"use {topic} {n}"}
        for n, topic in enumerate(TOPICS * 4, start=2)
    ]


def reward(example: pco.Example, output: str) -> pco.Score:
    return pco.Score(float((example.target or "") in output), feedback="give the stated use")


def data() -> pco.Dataset:
    return pco.load(rows(), input="question", target="answer")


def train(
    tmp_path: Path, name: str = "runs", settings: Mapping[str, Any] = QUICK, **more: Any
) -> pco.Run:
    return pco.optimize(
        more.pop("data", None) or data(),
        more.pop("reward", reward),
        lm=more.pop("lm", "simulated"),
        config={**settings, **more.pop("config", {})},
        runs_dir=tmp_path / name,
        name=more.pop("name_it", ""),
        **more,
    )


class Flaky:
    """The simulated answers of an LM that goes away after `calls` calls, until it comes back."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    async def __call__(self, request: pco.Request) -> pco.Reply:
        if self.left <= 0:
            raise EndpointDown("nothing answers", hint="start it again")
        self.left -= 1
        match request.role:
            case "encoder":
                text = '{"constraints": [], "selected_indices": [0, 1, 2, 3], "analysis": ""}'
            case "critic":
                text = '{"score": 0.5, "feedback": ""}'
            case _:
                text = "use the stated thing"
        return pco.Reply(text, usage=Usage(1, 5, 5))
