"""Worlds to test with: the shipped constraints task, and a few questions with gold answers."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.method.critic import reference
from promptcodebook.method.state import RoutingStatistics
from promptcodebook.method.templates import instinct_lines, load_templates
from promptcodebook.paper.simulated.mind import RecognisedRequest, from_request, understand
from promptcodebook.paper.simulated.model import answer
from promptcodebook.paper.simulated.world import SimulatedSettings, World
from promptcodebook.paper.tasks.constraints.task import constraints_of, load_constraints, reward
from promptcodebook.types import Codebook, Example, Instinct

examples = [e for _, split in load_constraints(None).dataset.items() for e in split]
world = World("constraints", examples)
_ASKED = (
    ("How many subsets of {1, ..., 8} have an even sum?", "128"),
    ("Find the remainder when 7^100 is divided by 13.", "9"),
    ("A circle of radius 5 is tangent to both legs of a right triangle. Find its area.", "75"),
    ("The probability that two dice show a sum of 8 is m/n in lowest terms. Find m+n.", "41"),
)
# Made-up problems in the manner of a competition.
problems = [Example(f"p{k}", text, gold) for k, (text, gold) in enumerate(_ASKED)]


_BOOK = (
    "Count the words of the draft.",
    "Use bullets for lists.",
    "Rewrite the prompt of the user in your head before you choose.",
    "Keep a friendly tone.",
    "Give feedback on your own answer and improve it.",
    "Select the best words.",
)


_LISTED = "\n".join(f"[{k}] {text} (success 0.{k + 2})" for k, text in enumerate(_BOOK))


_CHOSEN = "\n".join(f"[{k}] {_BOOK[k]}" for k in (0, 2, 4))


_BULLETED = "\n".join(f"{k}) {text} - worked {10 * k}%" for k, text in enumerate(_BOOK))


CASES = tomllib.loads(
    (Path(__file__).parents[1] / "paper" / "simulated" / "paraphrases.toml").read_text("utf-8")
)["case"]


def paraphrased(
    case: Mapping[str, str], example: Example, temperature: float = 0
) -> RecognisedRequest:
    """The request of a case about an example."""
    known = {"{listed}": _LISTED, "{chosen}": _CHOSEN, "{bulleted}": _BULLETED}
    values = {**known, "{input}": example.input, "{report}": reward(example, "hello").feedback}
    system, user = (case.get(name, "") for name in ("system", "user"))
    for mark, text in values.items():
        system, user = system.replace(mark, text), user.replace(mark, text)
    turns = [Message("system", system)] if system else []
    return RecognisedRequest((*turns, Message("user", user)), temperature)


def template_values(example: Example, templates: str) -> dict[str, object]:
    texts = load_templates(templates)
    book = Codebook(tuple(Instinct(text) for text in _BOOK))
    rates = (0.0, 0.5, 0.25, 1.0, 0.0, 0.0)
    statistics = RoutingStatistics(rates, rates, (0, 1, 1, 1, 1, 0))
    return {
        "theta": texts.text("theta"),
        "phi": texts.text("phi"),
        "psi": texts.text("psi"),
        "task": example.input,
        "select": 3,
        "size": 6,
        "last": 5,
        "cap": 60,
        "codebook": texts.lines.show(book, statistics),
        "instincts": instinct_lines(book, [0, 2, 4]),
        "route": "0, 2, 4",
        "prompt": "Be brief. Select good words.",
        "response": "Hello.",
        "reference": reference(example, reward(example, "hello").feedback),
        "reward": "0.25",
        "range": "0 to 1",
        "stages": "",
        "stage": "",
        "format": "Only the answer itself.",
        "score": "0.4",
        "verdict": "The response fails on bullets: use bullet points on lines of their own.",
        "variable": "the rubric of the critic, which judges how well a prompt worked",
        "text": texts.text("psi"),
        "gradient": "- Look at the score: use bullet points on lines of their own.",
        "others": "",
    }


EXACT = SimulatedSettings(
    encoder_noise=0.0,
    generator_drop=0.0,
    generator_idle=0.0,
    capacity=1.0,
    attribution_error=0.0,
    updater_loss=0.0,
    judge_noise=0.0,
)


BULLETS = "When bullet points are asked for, put each of the bullet points on a line with a dash."


def ask(
    messages: tuple[Message, ...], settings: SimulatedSettings = EXACT, world: World = world
) -> str:
    request = Request("executor", messages, sampling=Sampling(temperature=0.0))
    return answer(understand(from_request(request), world), world, settings)


def filled(example: Example, name: str, **values: Any) -> tuple[Message, ...]:
    return load_templates("default")[name].fill({**template_values(example, "default"), **values})


def json_of(text: str) -> dict[str, Any]:
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def failing(example: Example) -> str:
    return f"Feedback of the checker: {reward(example, 'hello').feedback}"


def with_kind(examples: list[Example], kind: str) -> Example:
    return next(e for e in examples if kind in {str(c["kind"]) for c in constraints_of(e)})


def verdict(example: Example, settings: SimulatedSettings = EXACT, world: World = world) -> str:
    """The critic's feedback on a run under "Go." that answered "hello"."""
    values = {"prompt": "Go.", "instincts": "[0] Be kind.", "reference": failing(example)}
    return str(json_of(ask(filled(example, "critic", **values), settings, world))["feedback"])
