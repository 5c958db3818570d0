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

_HERE = Path(__file__)
_TEXTS = tomllib.loads(_HERE.with_name("simulated.toml").read_text("utf-8"))
examples = [e for _, split in load_constraints(None).dataset.items() for e in split]
world = World("constraints", examples)
# Made-up problems in the manner of a competition.
problems = [Example(f"p{k}", text, gold) for k, (text, gold) in enumerate(_TEXTS["asked"])]


_BOOK = tuple(_TEXTS["book"])


_LISTED = "\n".join(f"[{k}] {text} (success 0.{k + 2})" for k, text in enumerate(_BOOK))


_CHOSEN = "\n".join(f"[{k}] {_BOOK[k]}" for k in (0, 2, 4))


_BULLETED = "\n".join(f"{k}) {text} - worked {10 * k}%" for k, text in enumerate(_BOOK))


_PARAPHRASES = _HERE.parents[1] / "paper" / "simulated" / "paraphrases.toml"
CASES = tomllib.loads(_PARAPHRASES.read_text("utf-8"))["case"]


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
    directives = {name: texts.text(name) for name in ("theta", "phi", "psi")}
    return {
        **_TEXTS["values"],
        **directives,
        "task": example.input,
        "codebook": texts.lines.show(book, statistics),
        "instincts": instinct_lines(book, [0, 2, 4]),
        "reference": reference(example, reward(example, "hello").feedback),
        "text": directives["psi"],
    }


EXACT = SimulatedSettings(**_TEXTS["exact"])


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
