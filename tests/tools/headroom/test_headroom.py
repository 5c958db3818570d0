"""`pco headroom` where the answer is known: in worlds of pure numbers, and on tasks."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.assemble import Sources, plan_run
from promptcodebook.base.sync import run_sync
from promptcodebook.config import load_config
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.tools.headroom.cli import Design, measure
from promptcodebook.tools.headroom.split import Headroom, TriedPrompts, split
from tests.build.cli import pco, served
from tests.build.project import PROJECT
from tests.build.router import keeping
from tests.build.server import Server, says

TOPICS = ("refund", "invoice", "cancel", "address")
PROMPTS = ("Answer.", *(f"Is it about a {topic}? Use form {topic}." for topic in TOPICS))


def world(kind: str, number: int, n: int = 24) -> TriedPrompts:
    """Right answers are coin tosses: even everywhere (noise), mostly right under one prompt for
    all (shared), or under the prompt of the input's topic (routing)."""
    draw = random.Random(f"{kind} {number} True")
    topics = [draw.choice(TOPICS) for _ in range(n)]
    texts = {f"x{i}": f"about my {topic}, letter {i}" for i, topic in enumerate(topics)}

    def chance(i: int, k: int) -> float:
        if kind == "noise":
            return 0.5
        right = k == 2 if kind == "shared" else k == 1 + TOPICS.index(topics[i])
        return 0.9 if right else 0.1

    rewards = [[float(draw.random() < chance(i, k)) for k in range(5)] for i in range(n)]
    return TriedPrompts(texts, PROMPTS, rewards)


@pytest.mark.parametrize(
    ("kind", "answer"), [("shared", "one prompt"), ("routing", "routing"), ("noise", "nothing")]
)
def test_what_there_is_to_win_is_seen(kind: str, answer: str) -> None:
    """Fixed before the first run: in at least 4 of 5 worlds."""
    assert Counter(split(world(kind, number)).answer for number in range(5))[answer] >= 4


def on_task(task: str, model: Any, **settings: Any) -> Headroom:
    tree = {
        "task": task,
        "preset": "small",
        "roles": {"executor": {"temperature": 0.0}},
        **settings,
    }
    plan = plan_run(load_config(tree), Sources(lm=ScriptedLM().reply_with(model)))
    design = Design.of(plan, [plan.present_prompt, *plan.task.seeds], 300, "train")
    assert len(design.prompts) * len(design.examples) <= 300
    return run_sync(measure(plan.connect(), design)).headroom


@pytest.mark.slow
def test_on_houserules_routing_pays() -> None:
    """A model that keeps the one rule in its prompt (simulated), against one that is deaf."""
    found = on_task("houserules_six", keeping)
    assert found.answer == "routing" and found.router.mean > 0.3

    assert on_task("houserules_six", lambda _: "Thank you for your message.").answer == "nothing"


RULES = ("--prompts", "prompts", "--rollouts", "100")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small task, and two prompts beside today's."""
    made = Path(shutil.copytree(PROJECT, tmp_path / "mytask"))
    (made / "prompts").mkdir()
    for name in ("a.txt", "b.md"):
        (made / "prompts" / name).write_text(f"Say {name}.", "utf-8")
    rows = [json.dumps({"input": f"letter {n}", "target": "yes"}) for n in range(60)]
    (made / "data.jsonl").write_text("\n".join(rows), "utf-8")
    return made


def test_a_budget_holds_and_nothing_is_paid_for_twice(folder: Path) -> None:
    with served(Server()) as server:
        server.default = says("yes")
        typed = ("headroom", *RULES, "--lm", server.spec, "--set", "reward=exact")
        typed += ("--set", "cache=false")
        pco(*typed, "--budget", "30calls", cwd=folder).error(3, "30 calls", "--budget")
        assert server.calls == 30
        done = pco(*typed, "--json", cwd=folder)
        assert done.code == 0, done.err
        assert done.json["rollouts"] == server.calls <= 100
        assert done.json["headroom"]["answer"] == "nothing"


def test_what_cannot_be_measured_says_what_to_type(folder: Path) -> None:
    few = ("headroom", "--lm", "simulated", "--rollouts", "30", "--prompts", "prompts")
    pco(*few, cwd=folder).error(2, "30 rollouts for 3 prompts", "--rollouts 60")
    left = pco(*few[:3], "--rollouts", "40", *few[5:], cwd=folder).err
    assert "1 prompt not tried; for all: --rollouts 60" in left
    none = pco("headroom", "--lm", "simulated", "--prompts", "nowhere", cwd=folder)
    none.error(2, "no folder 'nowhere'", "--prompts FOLDER")


@pytest.mark.parametrize("prompt", [(), ("--prompt", "Say yes. Be brief: {message}")])
def test_it_works_after_init_and_needs_no_more_than_it_says(
    tmp_path: Path, prompt: tuple[str, ...]
) -> None:
    """The general instincts are its prompts, and the sentences of a prompt that there is."""
    rows = [f"letter {n} about oaks and elms,{('ham', 'spam')[n % 2]}" for n in range(60)]
    (tmp_path / "mine.csv").write_text("\n".join(["message,label", *rows]), "utf-8")
    made = pco("init", "--from", "mine.csv", "--yes", "--lm", "simulated", *prompt, cwd=tmp_path)
    assert made.code == 0, made.err
    found = pco("headroom", "--json", cwd=tmp_path)
    assert found.code == 0, found.err
    tried = found.json["tried"]
    assert len(tried) > 10
    if prompt:
        assert tried[:3] == [prompt[1], "Say yes.", "Be brief."]
