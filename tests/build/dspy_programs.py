"""A DSPy program of two predictors, and a model whose answers are right where the prompt says how.

Each topic has a rule of its own, and K instincts say one each: no single one of them is right for
all inputs. As a script it loads a saved program in a process of its own and answers:

    python -m tests.build.dspy_programs FILE
"""

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import dspy

from promptcodebook.calls import Request
from promptcodebook.lm.scripted import ScriptedLM
from tests.build.method import routed, talkative

TOPICS = ("rivers", "bridges", "clocks", "bread")
RULES = tuple(f"About {topic}: say {topic.upper()}." for topic in TOPICS)
CONFIG: dict[str, Any] = {
    "size": 4,
    "select": 1,
    "init": {"instincts": RULES},
    "compose": "verbatim",
    "encoder": {"max_fallback": 1.0},
    "explore": {"policy": "none"},
    "update": {"epochs": 1, "batch_size": 4, "text_updates": False},
    "validation": {"every": 1, "subset": 4},
}


class TwoSteps(dspy.Module):
    """Plans, then answers."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = dspy.Predict("question -> plan")
        self.say = dspy.ChainOfThought(
            dspy.Signature("question, plan -> answer", "Answer in capitals.")
        )

    def forward(self, question: str) -> Any:
        plan = self.plan(question=question).plan
        return self.say(question=question, plan=plan)

    async def aforward(self, question: str) -> Any:
        plan = (await self.plan.acall(question=question)).plan
        return await self.say.acall(question=question, plan=plan)


def rows(count: int) -> list[Any]:
    pairs = [(f"{k}: what are {topic}?", topic.upper()) for k in range(9) for topic in TOPICS]
    made = [dspy.Example(question=question, answer=answer) for question, answer in pairs[:count]]
    return [row.with_inputs("question") for row in made]


def metric(example: Any, prediction: Any, trace: object = None) -> Any:
    right = prediction.answer == example.answer
    return dspy.Prediction(score=float(right), feedback="" if right else "SAY IT LOUD")


def reply(request: Request) -> Any:
    """Routes to the rule of the topic; as the program's model it obeys the rules that it reads."""
    text = request.messages[-1].content
    topics = [topic for topic in TOPICS if f"what are {topic}?" in text]
    if request.role == "encoder":
        return routed(TOPICS.index(topics[-1]))
    if request.role != "executor":
        return talkative(request)
    system = request.messages[0].content
    if "`answer`" not in system:
        return "[[ ## plan ## ]]\nthink\n\n[[ ## completed ## ]]"
    words = re.findall(r"say ([A-Z]+)\.", system)
    return f"[[ ## reasoning ## ]]\nhm\n\n[[ ## answer ## ]]\n{' '.join(words) or 'no idea'}\n"


def model(function: Callable[[Request], Any] = reply) -> ScriptedLM:
    return ScriptedLM().reply_with(function)


def main(path: str) -> None:
    from promptcodebook.integrations.dspy import ComposedProgram

    lm = model()
    program = ComposedProgram(TwoSteps(), lm)
    program.load(path)
    questions = [f"9: what are {topic}?" for topic in TOPICS]
    answers = [program(question=question).answer for question in questions]
    told = [r.messages[0].content for r in lm.history if r.role == "executor"]
    demos = len(program.student.plan.demos)
    sys.stdout.write(json.dumps({"answers": answers, "told": told, "demos": demos}))


if __name__ == "__main__":
    main(sys.argv[1])
