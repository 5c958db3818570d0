"""The estimate is honest: what a run then takes lies between its low and its high."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.build.cli import pco, served
from tests.build.server import Server, says

SHORT = (
    *("--task", "constraints", "--lm", "simulated", "--preset", "quick"),
    *("--set", "update.epochs=3", "--set", "validation.every=2", "--set", "validation.subset=12"),
)
TINY = ("--set", "update.epochs=1", "--set", "validation.every=0")


def usage(folder: Path, *args: str) -> dict[str, Any]:
    result = pco("train", *args, cwd=folder)
    assert result.code == 0, result.err
    return pco("runs", "show", "last", "--json", cwd=folder).json["usage"]


def estimated(folder: Path, *args: str) -> dict[str, Any]:
    result = pco("estimate", *args, "--json", cwd=folder)
    assert result.code == 0, result.err
    return result.json


def holds(estimate: dict[str, Any], used: dict[str, Any]) -> None:
    """Each role's calls, and the whole run's calls and tokens."""
    by_role = {r["role"]: r for r in estimate["roles"]}
    assert used.keys() <= by_role.keys()
    for role, spent in used.items():
        within(by_role[role]["calls"], spent["calls"], role)
    within(estimate["total"]["calls"], sum(u["calls"] for u in used.values()), "calls")
    tokens = sum(u["prompt_tokens"] + u["completion_tokens"] for u in used.values())
    within(estimate["total"]["tokens"], tokens, "tokens")


def within(estimated: dict[str, float], actual: float, what: object) -> None:
    assert estimated["low"] <= actual <= estimated["high"], (what, estimated, actual)


PLANS = (
    ("--task", "hotpotqa"),
    ("--set", "update.mode=online", "--set", "update.batch_size=4"),
    ("--set", "critic.stages=1", "--set", "critic.skip_solved=false"),
    ("--set", "encoder.mode=none", "--set", "templates=paper"),
    ("--set", "update.steps_per_epoch=all", "--set", "update.epochs=1"),
    ("--task", "hotpotqa", "--set", "compose_per_stage=true"),
)


@pytest.mark.slow
def test_what_the_plain_plan_takes_lies_within_the_estimate_and_the_forward_pass_near_it(
    tmp_path: Path,
) -> None:
    estimate, used = estimated(tmp_path, *SHORT), usage(tmp_path, *SHORT)
    holds(estimate, used)
    # The encoder also routes a batch anew whenever its directive was rewritten, which not every
    # step does: expected are 285 calls, and draws of the simulated model take 253 to 265.
    for role, near in (("encoder", 0.15), ("generator", 0.1), ("executor", 0.1)):
        [found] = [r for r in estimate["roles"] if r["role"] == role]
        assert found["calls"]["expected"] == pytest.approx(used[role]["calls"], rel=near)


@pytest.mark.slow
@pytest.mark.parametrize("more", PLANS)
def test_what_a_run_takes_lies_within_the_estimate(tmp_path: Path, more: tuple[str, ...]) -> None:
    holds(estimated(tmp_path, *SHORT, *more), usage(tmp_path, *SHORT, *more))


def test_a_run_with_a_judge_and_an_agent_lies_within_the_estimate(folder: Path) -> None:
    (folder / "agent.py").write_text(
        "async def run(prompt, example, lm):\n"
        "    draft = await lm(example.input, system=prompt, purpose='draft')\n"
        "    return (await lm(draft.text, system=prompt, purpose='final')).text\n"
    )
    server = Server()

    async def varied(request: Any, body: dict[str, Any]) -> Any:
        text = f"so so {zlib.crc32(json.dumps(body).encode())}"
        reply = {"score": 0.5, "feedback": text, "selected_indices": [0, 1, 2, 3]}
        return await says(json.dumps(reply))(request, body)

    server.default = varied
    args = (
        *("--preset", "quick", "--set", "update.epochs=2", "--set", "executor=agent.py:run"),
        *("--set", 'reward={"kind": "judge", "rubric": "Be right."}', "--set", "cache=false"),
    )
    with served(server):
        estimate = estimated(folder, *args, "--lm", server.spec)
        used = usage(folder, *args, "--lm", server.spec)
    assert used["judge"]["calls"] > 0 and used["executor"]["calls"] > 0
    holds(estimate, used)
    assert any("your executor is counted" in text for text in estimate["assumptions"])


def test_it_asks_no_model_and_says_what_it_does_not_know(folder: Path) -> None:
    before = sorted(p.name for p in folder.iterdir())
    nobody = (*TINY, "--lm", "http://127.0.0.1:9/v1#m")
    found = estimated(folder, *nobody, "--budget", "10calls")
    assert sorted(p.name for p in folder.iterdir() if p.name != "__pycache__") == before
    assert found["total"]["usd"] is None and all(r["usd"] is None for r in found["roles"])
    assert any("budget.calls = 10 lies below" in each for each in found["assumptions"])
    text = pco("estimate", *nobody, cwd=folder).out
    assert "updates; model http://127.0.0.1:9/v1#m" in text
    assert "unknown" in text and "no price is known for http://127.0.0.1:9/v1#m" in text
