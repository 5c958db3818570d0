"""The method in one file gives what `train` gives in online mode, and runs as a script."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import pytest

from promptcodebook.config import Config
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.state import State
from tests.build import golden
from tests.build.method import World, book, config, examples, parameters, talkative
from tests.build.notebook import EXAMPLES, interpret

SCRIPT = EXAMPLES / "algorithm1.py"


@pytest.fixture
def algorithm1(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("algorithm1")


def often_blaming() -> ScriptedLM:
    return ScriptedLM().reply_with(talkative)


DECAYING = config(update={"mode": "online", "batch_size": 2, "epochs": 5, "encoder_on_explored": 1})


@pytest.mark.parametrize(
    ("settings", "script"), [(golden.CONFIG, golden.script), (DECAYING, often_blaming)]
)
async def test_it_gives_the_same_route_prompt_gradients_and_rewrites_as_train(
    algorithm1: ModuleType, settings: Config, script: Callable[[], ScriptedLM]
) -> None:
    start = parameters(book("zero v0", "one v0", "two v0", "three v0"))
    steps = await World(settings, script()).run(examples(3), start)
    bare = World(settings, script())
    parts = algorithm1.Parts(bare.composer, bare.trial, bare.critic, bare.attribution, bare.updater)
    rounds = [r async for r in algorithm1.learn(parts, examples(3), State.first(start), settings)]
    assert [trace for trace, _, _ in rounds] == [trace for step in steps for trace in step.traces]
    assert [rewrites for _, rewrites, _ in rounds] == [step.rewrites for step in steps]
    assert [state for _, _, state in rounds] == [State.after(step) for step in steps]
    assert any(rewrite.kept for _, rewrites, _ in rounds for rewrite in rewrites)


def test_it_runs_as_a_script_of_at_most_150_lines() -> None:
    assert len(SCRIPT.read_text("utf-8").splitlines()) <= 150
    printed = interpret(SCRIPT, "simulated", model="")
    steps = [line for line in printed.splitlines() if line.startswith("step ")]
    assert len(steps) == 9 and all("route (" in step for step in steps)
