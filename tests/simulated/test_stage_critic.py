"""A critic tells from report and trace which stage failed; livebench_math answers as asked."""

from __future__ import annotations

import json

import pytest
from promptcodebook.simulated.recipes import build_world

from promptcodebook.method.critic import stage_lines
from promptcodebook.method.templates import load_templates
from promptcodebook.simulated.chat import ChatRequest
from promptcodebook.simulated.model import answer
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.recognise import understand
from promptcodebook.tasks.hotpotqa.pipeline import INSTRUCTIONS as HOTPOT
from promptcodebook.tasks.hover.pipeline import INSTRUCTIONS as HOVER
from promptcodebook.tasks.ifbench.task import INSTRUCTIONS as IFBENCH
from promptcodebook.tasks.livebench_math.score import score
from promptcodebook.types import Example, Stage
from tests.simulated.test_stages import ASKED, PRIVATE

SURE = SimulatedSettings.from_params({"capacity": "1", "dilution": "0"})
WRONG = "The answer 'x' is wrong; the right answer is '1871'."
NOTED = "reasoning: so\n\nsummary: Norvale Kites: a maker. Ida Brem: born."


def verdict(world_name: str, example: Example, report: str, noted: str, reward: str) -> set[str]:
    world = build_world(world_name, [example])
    texts = load_templates("default")
    values: dict[str, object] = {
        "psi": texts.text("psi"),
        "task": example.input,
        "route": "0",
        "instincts": "[0] Be kind.",
        "prompt": "Be kind.",
        "stages": stage_lines([Stage("s", f"<question>\n{example.input}\n</question>", noted)]),
        "response": '{"answer": "x"}',
        "reference": f"Reference answer: {example.target}\nFeedback of the checker: {report}",
        "reward": reward,
        "range": "0 to 1",
    }
    understood = understand(ChatRequest(texts["critic"].fill(values), temperature=0.0), world)
    assert understood.kind == "critique"
    feedback = json.loads(answer(understood, world, SURE))["feedback"]
    advised = {world.skills[k].name for k in world.lexicon.cued_in(feedback)}
    problem = world.problem(example.input)
    found = {
        d.stage or d.key
        for d in problem.demands
        if advised & {world.skills[k].name for k in d.skills}
    }
    return found


@pytest.mark.parametrize(
    ("report", "noted", "stage"),
    [
        (f"{WRONG} Hop 1 found 'Norvale Kites'. Never retrieved: 'Ida Brem'.", NOTED, "search"),
        (f"{WRONG} Hop 1 found 'Norvale Kites', 'Ida Brem'. All needed pages were retrieved.",
         "summary: Other things.", "notes"),
        (f"{WRONG} Hop 1 found 'Norvale Kites', 'Ida Brem'. All needed pages were retrieved.",
         NOTED, "answer"),
    ],
)  # fmt: skip
def test_the_stage_that_failed_is_the_one_that_gets_advice(
    report: str, noted: str, stage: str
) -> None:
    assert verdict("hotpotqa", ASKED, report, noted, "0") == {stage}


def test_a_leaked_piece_gets_advice_on_its_kind() -> None:
    report = "Readable in the request sent outside (1 x number): number: 555-0192."
    assert verdict("pupa", PRIVATE, report, "llm_request: Help.", "0.6") == {"unit:555-0192"}


@pytest.mark.parametrize(
    ("subtask", "gold"),
    [
        ("amc_12a_2023", "D"),
        ("aime_i_2024", "042"),
        ("usamo", "3,1,2,5,4"),
        ("amps_hard_derivative", "6 x+5"),
    ],
)
def test_livebench_answers_are_right_just_when_met(subtask: str, gold: str) -> None:
    world = build_world("livebench_math", [Example("l", "What is the value?", gold)])
    problem = world.problem("What is the value?")
    right = world.writer(problem, frozenset({"answer"}), 1)
    wrong = world.writer(problem, frozenset(), 1)
    assert score(problem.input, gold, subtask, right) == 1.0
    assert score(problem.input, gold, subtask, wrong) < 1.0


@pytest.mark.parametrize(
    ("name", "orders"), [("hotpotqa", HOTPOT), ("hover", HOVER), ("ifbench", IFBENCH)]
)
def test_a_stages_own_order_brings_no_skill_out(name: str, orders: dict[str, str]) -> None:
    world = build_world(name, [])
    cued = {stage: world.lexicon.cued_in(order) for stage, order in orders.items()}
    assert set(cued.values()) == {frozenset()}
