"""Whole trainings: what each request was taken for, beside the role that sent it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.assemble import Sources
from promptcodebook.calls import Reply, Request, Role
from promptcodebook.config import load_config
from promptcodebook.run.opening import Where, open_run
from promptcodebook.run.optimize import finish
from promptcodebook.simulated.mind import Kind, understand
from promptcodebook.simulated.model import SimulatedLM
from promptcodebook.simulated.request import from_request
from promptcodebook.simulated.world import World
from promptcodebook.tasks.task import load_task

pytestmark = pytest.mark.slow

KINDS: Mapping[Role, set[Kind]] = {
    "encoder": {"route"},
    "generator": {"compose"},
    "executor": {"execute", "stage"},
    "critic": {"critique", "adversary", "critique_and_blame"},
    "attribution": {"blame"},
    "updater": {"improve", "split", "instincts"},
    "judge": {"judge", "compare", "leaks"},
    "untrusted": {"execute", "stage"},
}


class Watched:
    """The simulated model, with what each role's requests were taken for."""

    def __init__(self, task: str) -> None:
        examples = [e for _, split in load_task(task).dataset.items() for e in split]
        self._lm = SimulatedLM(World(task, examples))
        self.taken: Counter[tuple[str, str]] = Counter()

    async def __call__(self, request: Request) -> Reply:
        kind = understand(from_request(request), self._lm.world).kind
        self.taken[request.role, kind] += 1
        return await self._lm(request)


@pytest.mark.parametrize(
    ("task", "epochs", "more"),
    [
        ("constraints", 12, {"templates": "default"}),
        ("constraints", 12, {"templates": "paper"}),
        ("constraints", 6, {"critic": {"stages": 1}}),
        ("hotpotqa", 6, {"templates": "default"}),
        ("hover", 6, {"templates": "paper"}),
        ("pupa", 6, {"templates": "default"}),
    ],
)
def test_requests_of_a_training_are_taken_for_what_they_are(
    task: str, epochs: int, more: Mapping[str, Any], tmp_path: Path
) -> None:
    lm = Watched(task)
    settings = {
        "task": task,
        "preset": "quick",
        "update": {"epochs": epochs},
        "validation": {"every": epochs, "subset": 8, "finalists": 1},
        "cache": False,
        **more,
    }
    config = load_config(settings, {"seed": 1})
    asyncio.run(finish(open_run(config, Sources(lm=lm), Where(tmp_path))))
    right = sum(n for (role, kind), n in lm.taken.items() if kind in KINDS[role])  # type: ignore[index]
    total = sum(lm.taken.values())
    assert total > 100
    assert right >= 0.995 * total, lm.taken
