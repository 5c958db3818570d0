"""Programs of several stages, and questions of other forms: right where all outcomes are."""

from __future__ import annotations

import hashlib

import pytest

from promptcodebook.assemble import Sources, assemble
from promptcodebook.config import load_config
from promptcodebook.method.executor import roll_out
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.simulated.executor import wrong_answer


def always(chance: int) -> str:
    return f"able={chance}&unable={chance}&floor={chance}&ceiling={chance}&load=0&judge_noise=0"


@pytest.mark.parametrize(
    ("task", "digests"),
    [
        ("hotpotqa", ("74bee73295aa", "b87cf6f5c4f3", "0fbfe5b2e980")),
        ("hover", ("ed1b0927ba31", "a88f058a9ee5", "a88f058a9ee5")),
        ("pupa", ("c9970883efd2", "616d764e54e0", "a3a3e906a8ce")),
        ("ifbench", ("cc17e429704a", "cc17e429704a", "cc17e429704a")),
        ("aime", ("86966df5571e", "6e073aed8474", "438db50ef2bf")),
        ("livebench_math", ("d07fd376ef39", "53c570626e19", "f48fbb0a5e21")),
    ],
)
async def test_what_every_stage_says_follows_its_outcome(
    task: str, digests: tuple[str, str, str]
) -> None:
    rewards: list[list[float | None]] = []
    found: list[str] = []
    for params in (always(1), always(0), "world=1"):
        config = load_config({"task": task, "lm": f"simulated?{params}", "cache": False})
        assembled = assemble(config, Sources())
        trial, outputs = assembled.trial(), list[str]()
        rewards.append([])
        for example in assembled.dataset.test[:6]:
            draws = config.randomness.at(0, example.id)
            rollout = await roll_out(FixedPrompt("Be exact. " * 60), trial, example, draws)
            assert rollout.failure is None
            rewards[-1].append(rollout.reward)
            outputs.append(rollout.output)
        await assembled.models.close()
        found.append(hashlib.sha256("\n".join(outputs).encode()).hexdigest()[:12])
    if task != "ifbench":  # few of its constraints are about a skill
        assert set(rewards[0]) == {1.0} and 1.0 not in rewards[1]
    assert tuple(found) == digests, "figures depend on these texts"


@pytest.mark.parametrize("gold", ["no", "Both", "not stated", "unknown"])
def test_a_wrong_answer_is_never_the_right_one(gold: str) -> None:
    said = {wrong_answer(gold, f"is it so, {k}?", k) for k in range(40)}
    assert len(said) > 2 and gold.lower() not in said
