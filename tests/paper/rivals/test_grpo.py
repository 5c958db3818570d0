"""GRPO around its training: what it refuses, what it books, and what it leaves. The training itself
needs torch and has its tests in tests/models/local/test_grpo.py; here a stand-in writes
the replies."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.assemble import Sources, assemble
from promptcodebook.config import load_config
from promptcodebook.errors import BudgetReached, ConfigError
from promptcodebook.models.local.lora import LoraHooks, LoraTraining, Written
from promptcodebook.optimizers.base import Problem, Result
from promptcodebook.paper.rivals.grpo import GRPO
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from tests.build.optimize import data, reward
from tests.build.teachable import install_package, learn

PER_STEP = 8
SETTINGS: dict[str, Any] = {
    "lm": "hf:none/such",
    "preset": "quick",
    "cache": False,
    "roles": {"executor": {"temperature": 1.0, "max_tokens": 20}},
    "grpo": {"steps": 3, "group": 4, "batch": 2},
}


def checkpoint(training: LoraTraining, rewards: list[float]) -> None:
    """As the trainer leaves one after as many steps as there are rewards."""
    folder = training.folder / f"checkpoint-{len(rewards)}"
    folder.mkdir(parents=True)
    state = {"log_history": [{"reward": each} for each in rewards]}
    (folder / "trainer_state.json").write_text(json.dumps(state))


def write(training: LoraTraining, watch: LoraHooks) -> dict[str, Any]:
    """Every second reply is right; prompts have 30 tokens and replies 5."""
    rewards: list[float] = []
    for step in range(training.arguments["max_steps"]):
        watch.begin(30)
        texts = [f"use rivers {row}" if n % 2 else "no idea" for row in (0, 1) for n in range(4)]
        written = [Written(n // 4, text, 30, 5, n == 0) for n, text in enumerate(texts)]
        made = watch.score(step, written)
        rewards.append(sum(made) / len(made))
        checkpoint(training, rewards)
    return {"device": "cpu"}


async def optimize(
    tmp_path: Path, train: Callable[[LoraTraining, LoraHooks], dict[str, Any]] = write, **more: Any
) -> tuple[Result, Problem]:
    config = load_config({**SETTINGS, **more})
    assembled = assemble(config, Sources(data=data(), reward=reward))
    store = RunStore.create(tmp_path, Header("", "2026-01-31T15:45:02+00:00", "0.2.0"))
    problem = Problem(assembled, store, lambda _: None)
    try:
        return await GRPO(train).optimize(problem), problem
    finally:
        store.close()


@pytest.fixture(autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages count as there: none of them is used here."""
    site = tmp_path_factory.mktemp("site")
    for name in ("torch", "transformers", "accelerate", "llguidance", "trl", "peft", "datasets"):
        (site / f"{name}.py").touch()
        install_package(site, name)
    monkeypatch.syspath_prepend(site)


async def test_every_reply_is_booked_and_rewarded_as_the_tasks_own(tmp_path: Path) -> None:
    seen: list[float] = []

    def train(training: LoraTraining, watch: LoraHooks) -> dict[str, Any]:
        first = data().train[0]
        watch.begin(30)
        right = Written(0, first.target or "", 28, 4, False)
        wrong = Written(0, "no idea", 28, 20, True)
        seen.extend(watch.score(0, [right, wrong] * 4))
        return {"device": "cpu"}

    result, problem = await optimize(tmp_path, train)
    assert seen == [1.0, 0.0] * 4
    total = problem.assembled.models.ledger.total
    assert (total.calls, total.prompt_tokens, total.completion_tokens) == (8, 8 * 28, 4 * 24)
    assert problem.assembled.models.ledger.lost == {}
    assert result.model == "" and "made no step" in result.remark


async def test_it_trains_on_what_the_program_asks_and_more_steps_leave_the_first_as_they_were(
    tmp_path: Path,
) -> None:
    seen: list[LoraTraining] = []

    def train(training: LoraTraining, watch: LoraHooks) -> dict[str, Any]:
        seen.append(training)
        return {"device": "cpu"}

    examples = data().train
    count = len(examples)
    for steps in (3, count):
        more = {"base_prompt": "Be exact.", "init": {"prompt": "Be brief."}}
        size = {"steps": steps, "group": 4, "batch": 2}
        await optimize(tmp_path / f"{steps}", train, grpo=size, **more)
    training, longer = seen
    assert [c[-1].content for c in training.conversations] == [e.input for e in examples]
    assert {c[0].content for c in training.conversations} == {"Be exact.\n\nBe brief."}
    assert training.arguments["max_completion_length"] == 20
    assert training.arguments["gradient_accumulation_steps"] == 2
    assert training.source == "none/such" and training.folder.name == "grpo"
    assert len(training.order) == 3 * 2 and len(longer.order) == count * 2
    assert longer.order[:6] == training.order
    first, second = longer.order[:count], longer.order[count:]
    assert sorted(first) == sorted(second) == list(range(count)) and first != second


async def test_the_trained_weights_are_what_is_judged(tmp_path: Path) -> None:
    result, problem = await optimize(tmp_path)
    run = problem.store.path
    assert result.model == f"hf:{run / 'grpo' / 'checkpoint-3'}"
    assert result.settings["weights"] == "grpo/checkpoint-3"
    assert result.settings["library"] == "trl 1.0, peft 1.0, transformers 1.0, torch 1.0"
    assert (result.settings["max_steps"], result.settings["device"]) == (3, "cpu")
    assert "for 3 steps; their mean reward was 0." in result.remark
    assert problem.assembled.models.ledger.total.calls == 3 * PER_STEP


async def test_a_step_that_could_pass_the_budget_is_not_begun(tmp_path: Path) -> None:
    limit = {"budget": {"calls": 20, "reserve_for_verdict": 0.1}}
    result, problem = await optimize(tmp_path, **limit)
    assert result.ended == "budget" and isinstance(result.stop, BudgetReached)
    assert problem.assembled.models.ledger.total.calls == 2 * PER_STEP
    assert result.settings["weights"] == "grpo/checkpoint-2"


async def test_a_training_that_breaks_is_a_row_that_says_how(tmp_path: Path) -> None:
    def train(training: LoraTraining, watch: LoraHooks) -> dict[str, Any]:
        watch.begin(30)
        raise MemoryError("no room for the model")

    result, problem = await optimize(tmp_path, train)
    assert "It failed with MemoryError: no room for the model" in result.remark
    ledger = problem.assembled.models.ledger
    assert ledger.lost_total.calls == PER_STEP, "nobody knows what was written before"
    assert ledger.lost_total.completion_tokens == PER_STEP * 20


async def two_calls(prompt: str, example: pco.Example, lm: pco.Chat) -> str:
    plan = await lm(example.input, system=prompt)
    return (await lm(plan.text, system=prompt)).text


async def two_steps(prompt: pco.Prompt, example: pco.Example, lm: pco.Chat) -> str:
    return (await lm(example.input, system=prompt.of("say"))).text


two_steps.stages = ("plan", "say")  # type: ignore[attr-defined]


@pytest.mark.parametrize(("more", "message", "next_"), [
    ({"lm": "http://127.0.0.1:1/v1#some"}, "weights of Hugging Face on this", "--lm hf:"),
    ({"roles": {"executor": {"temperature": 0.0}}}, "temperature 0", "roles.executor.temp"),
    ({"roles": {"executor": {"max_tokens": None}}}, "length cap", "roles.executor.max_tok"),
    ({"roles": {"executor": {"extra": {"stop": "x"}}}}, "without stop", "roles.executor.ext"),
    ({"executor": two_calls}, "ask the executor once", 'optimizer = "gepa"'),
    ({"executor": two_steps}, "programs of a single call", 'optimizer = "gepa"'),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused_before_anything_is_paid(
    tmp_path: Path, more: dict[str, Any], message: str, next_: str
) -> None:
    roles = {"executor": {**SETTINGS["roles"]["executor"]}}
    for role, settings in more.pop("roles", {}).items():
        roles[role] |= settings
    with pytest.raises(ConfigError, match=message) as caught:
        learn(tmp_path, "grpo", more.pop("lm", "hf:none/such"), roles=roles, **more)
    assert next_ in caught.value.hint
    assert not [*(tmp_path / "runs").iterdir()], "a run of nothing"
