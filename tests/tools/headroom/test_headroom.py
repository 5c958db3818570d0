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
from promptcodebook.tools.headroom.cli import Design, at_hand, measure
from promptcodebook.tools.headroom.split import SOURCES, Headroom, TriedPrompts, split
from tests.build.cli import pco, served
from tests.build.project import PROJECT
from tests.build.router import keeping
from tests.build.server import Server, says

TOPICS = ("refund", "invoice", "cancel", "address")
PROMPTS = ("Answer.", *(f"Is it about a {topic}? Use form {topic}." for topic in TOPICS))


def world(kind: str, number: int, *, greedy: bool, n: int = 24) -> TriedPrompts:
    """Right answers are coin tosses: even everywhere (noise), mostly right under one prompt for
    all (shared), or under the prompt of the input's topic (routing)."""
    draw = random.Random(f"{kind} {number} {greedy}")
    topics = [draw.choice(TOPICS) for _ in range(n)]
    texts = {f"x{i}": f"about my {topic}, letter {i}" for i, topic in enumerate(topics)}

    def chance(i: int, k: int) -> float:
        if kind == "noise":
            return 0.5
        right = k == 2 if kind == "shared" else k == 1 + TOPICS.index(topics[i])
        return 0.9 if right else 0.1

    def answers(rows: int) -> list[list[float]]:
        return [[float(draw.random() < chance(i, k)) for k in range(5)] for i in range(rows)]

    return TriedPrompts(texts, PROMPTS, answers(n), [] if greedy else answers(n // 4))


def answers(kind: str, worlds: int, *, greedy: bool) -> Counter[str]:
    return Counter(split(world(kind, w, greedy=greedy)).answer for w in range(worlds))


@pytest.mark.parametrize("greedy", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kind", "answer"), [("shared", "one prompt"), ("routing", "routing"), ("noise", "nothing")]
)
def test_what_there_is_to_win_is_seen(kind: str, answer: str, greedy: bool) -> None:
    """Fixed before the first run: in at least 4 of 5 worlds."""
    assert answers(kind, 5, greedy=greedy)[answer] >= 4


@pytest.mark.slow
def test_the_variance_is_that_of_which_a_world_was_made() -> None:
    """Effects of known variance; each interval holds its share in at least 8 of 10 worlds. The
    oracle of answers that are noise alone gains next to nothing once the noise is taken off."""
    made = dict(zip(SOURCES, (0.3, 0.2, 0.3, 0.2), strict=True))
    inside, drawn = Counter[str](), random.Random(3)
    for number in range(10):
        own = [drawn.gauss(0, 0.3**0.5) for _ in range(40)]
        of_prompt = [x * 0.2**0.5 for x in (-1.26, -0.63, 0.0, 0.63, 1.26)]
        both = [[drawn.gauss(0, 0.3**0.5) for _ in range(5)] for _ in own]
        rows = [
            [
                [a + b + both[i][k] + drawn.gauss(0, 0.2**0.5) for k, b in enumerate(of_prompt)]
                for i, a in enumerate(own)
            ]
            for _ in range(2)
        ]
        inputs = {f"x{i}": f"letter {i}" for i in range(40)}
        found = split(TriedPrompts(inputs, PROMPTS, rows[0], rows[1][:10]), seed=number).shares
        inside.update(name for name in SOURCES if found[name].low <= made[name] <= found[name].high)
    assert min(inside[name] for name in SOURCES) >= 8, inside
    noise = [split(world("noise", w, greedy=False)) for w in range(10)]
    assert sum(found.oracle.mean for found in noise) / 10 < 0.15
    assert not noise[0].greedy and noise[0].shares["noise"].mean > 0.7


def on_task(task: str, model: Any, **settings: Any) -> Headroom:
    tree = {
        "task": task,
        "preset": "small",
        "roles": {"executor": {"temperature": 0.0}},
        **settings,
    }
    plan = plan_run(load_config(tree), Sources(lm=ScriptedLM().reply_with(model)))
    design = Design.of(plan, [plan.present_prompt, *plan.task.seeds], 300, "train")
    assert len(design.prompts) * len(design.examples) + design.twice <= 300
    return run_sync(measure(plan.connect(), design)).headroom


@pytest.mark.slow
def test_on_houserules_routing_pays_and_a_greedy_executor_has_no_noise() -> None:
    """A model that keeps the one rule in its prompt (simulated), against one that is deaf."""
    found = on_task("houserules_six", keeping)
    assert found.answer == "routing" and found.greedy
    assert found.shares["noise"].mean == 0.0
    assert found.router.mean > 0.3 and "up to" in found.sentence

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
        assert not done.json["headroom"]["greedy"]

        short = ("--lm", server.spec, "--preset", "quick", "--set", "update.epochs=1")
        shown = pco("estimate", *short, "--set", "reward=exact", cwd=folder)
        assert shown.out.startswith("Nothing to win was seen"), shown.out + shown.err
        settings = load_config({"data": {"path": "data.jsonl"}, "reward": "f1", "lm": server.spec})
        assert "another reward" in at_hand(plan_run(settings, Sources(folder)))
        assert server.calls == done.json["rollouts"], "no model is asked"


def test_what_cannot_be_measured_says_what_to_type(folder: Path) -> None:
    few = ("headroom", "--lm", "simulated", "--rollouts", "30", "--prompts", "prompts")
    pco(*few, cwd=folder).error(2, "30 rollouts for 3 prompts", "--rollouts 75")
    assert not (folder / "headroom.json").exists()
    none = pco("headroom", "--lm", "simulated", "--prompts", "nowhere", cwd=folder)
    none.error(2, "for 1 prompt", "--prompts DIR")
