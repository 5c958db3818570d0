"""In process and over HTTP the simulated model is one and the same, and so is the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.proof.runs import SMALL, Finished, finished
from tests.proof.served import ROOT, served

AIME: dict[str, Any] = {
    "task": "aime",
    "update": {"epochs": 6, "batch_size": 15},
    "validation": {"every": 3, "subset": 20, "finalists": 2},
    "cache": False,
}


def real_aime() -> Path | None:
    """The folder of the real problems: $PCO_SHARED/data/aime, else beside the repository."""
    shared = Path(os.environ.get("PCO_SHARED") or ROOT.parent / "shared")
    folder = shared / "data" / "aime"
    return folder if (folder / "train.jsonl").is_file() else None


REAL_AIME = real_aime()  # read here: tests are run without the developer's PCO_* variables


def both_ways(tmp_path: Path, settings: dict[str, Any], data: Path | None) -> list[Finished]:
    """The same run twice: in process, and over HTTP."""
    where = {"data_dir": str(data)} if data is not None else {}
    with served("simulated", settings["task"], data) as server:
        over_http = finished(tmp_path / "http", server.lm, settings, **where)
        asked = server.stats()["replies"]
    assert asked > 0
    return [finished(tmp_path / "here", "simulated", settings, **where), over_http]


def assert_the_same(here: Finished, there: Finished) -> None:
    assert here.policy == there.policy
    rewards = here.rewards()
    assert list(rewards) == ["present", "concat", "best_fixed", "untrained", "learned"]
    assert rewards == there.rewards()
    # Not only the end: every route, prompt, output, verdict and gradient on the way.
    assert here.events() == there.events()


@pytest.mark.slow
@pytest.mark.skipif(REAL_AIME is None, reason="no real AIME data; set PCO_SHARED to its folder")
def test_real_aime_problems_give_the_same_policy_file_over_http(tmp_path: Path) -> None:
    here, there = both_ways(tmp_path, AIME, REAL_AIME)
    assert_the_same(here, there)
    assert len(here.rewards()["learned"]) >= 15  # AIME 2025: the held-out year


def test_our_own_problems_give_the_same_policy_file_over_http(tmp_path: Path) -> None:
    assert_the_same(*both_ways(tmp_path, {**AIME, "update": {"epochs": 2}}, None))


def test_the_shipped_task_gives_the_same_policy_file_over_http(tmp_path: Path) -> None:
    here, there = both_ways(tmp_path, SMALL, None)
    assert_the_same(here, there)
