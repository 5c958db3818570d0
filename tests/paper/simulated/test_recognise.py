"""A request's kind is told from its words: ours, the paper's, and templates nobody here knows."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from promptcodebook.calls import ROLES, Message, Request
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.critic import reference
from promptcodebook.method.state import RoutingStatistics
from promptcodebook.method.templates import instinct_lines, load_templates
from promptcodebook.method.update import PendingUpdate
from promptcodebook.paper.simulated.mind import RecognisedRequest, from_request, understand
from promptcodebook.paper.tasks.constraints.task import reward
from promptcodebook.types import Codebook, Example, Instinct, Variable
from tests.method.build import World as Made
from tests.method.build import config
from tests.paper.simulated.made import examples, world

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

CASES = tomllib.loads(Path(__file__).with_name("paraphrases.toml").read_text("utf-8"))["case"]


def paraphrased(
    case: Mapping[str, str], example: Example, temperature: float = 0
) -> RecognisedRequest:
    """The request of a case about an example."""
    known = {"{listed}": _LISTED, "{chosen}": _CHOSEN, "{bulleted}": _BULLETED}
    said = {**known, "{input}": example.input, "{report}": reward(example, "hello").feedback}
    system, user = (case.get(name, "") for name in ("system", "user"))
    for mark, text in said.items():
        system, user = system.replace(mark, text), user.replace(mark, text)
    turns = [Message("system", system)] if system else []
    return RecognisedRequest((*turns, Message("user", user)), temperature)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["kind"])
def test_paraphrased_templates_are_recognised(case: Mapping[str, str]) -> None:
    for example in examples[:25]:
        understood = understand(paraphrased(case, example), world)
        assert understood.kind == case["kind"], example.input
        if "{input}" in case["user"]:
            assert understood.input == example.input


EXPECTED = {
    "encoder": "route",
    "generator": "compose",
    "critic": "critique",
    "critic_one": "critique_and_blame",
    "attribution": "blame",
    "adversary": "adversary",
    "updater": "improve",
    "merge": "improve",
    "revive": "improve",
    "split": "split",
    "from_prompt": "split",
    "random": "instincts",
}


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


@pytest.mark.parametrize("templates", ["default", "paper"])
@pytest.mark.parametrize("name", list(EXPECTED))
def test_our_templates_and_the_papers_are_recognised(templates: str, name: str) -> None:
    for example in examples[:25]:
        messages = load_templates(templates)[name].fill(template_values(example, templates))
        understood = understand(RecognisedRequest(messages), world)
        assert understood.kind == EXPECTED[name], example.input


@pytest.mark.parametrize("variable", ["theta", "phi", "psi"])
def test_a_directive_to_be_rewritten_is_not_taken_for_an_order(variable: str) -> None:
    texts = load_templates("default")
    values = {**template_values(examples[0], "default"), "text": texts.text(variable)}
    understood = understand(RecognisedRequest(texts["updater"].fill(values)), world)
    assert understood.kind == "improve"


async def test_a_rewrite_is_recognised_among_the_others_and_after_a_refusal() -> None:
    """What the updater asks, and asks once more, is read as text and feedback alike."""

    def refuse(variable: Variable, text: str, before: str, others: Sequence[str]) -> str:
        return f"72 words, over the cap of 25: {text}"

    made = Made(config(), ScriptedLM().enqueue("too long", "too long"), check=refuse)
    feedback = "use bullet points on lines of their own"
    pending = PendingUpdate(0, _BOOK[0], (feedback, "be brief"), tuple(_BOOK[1:]))
    await made.updater.rewrite_all([pending], 0)
    assert len(made.lm.history) == 2
    for request in made.lm.history:
        understood = understand(from_request(request), world)
        assert understood.kind == "improve"
        assert understood.reading.sections["text"] == _BOOK[0]
        assert understood.reading.sections["feedback"] == f"- {feedback}\n- be brief"


def test_a_second_try_is_read_as_the_request_it_repeats() -> None:
    messages = load_templates("default")["encoder"].fill(template_values(examples[3], "default"))
    again = Message("user", "Your reply cannot be used: 2 of 3 indices. Answer again, in JSON.")
    retried = RecognisedRequest((*messages, Message("assistant", "[1, 2]"), again))
    understood = understand(retried, world)
    assert (understood.kind, understood.input) == ("route", examples[3].input)
    assert understood.request.digest != RecognisedRequest(messages).digest


def test_the_role_of_a_request_is_never_seen() -> None:
    messages = (Message("system", "Be brief."), Message("user", examples[0].input))
    seen = {from_request(Request(role, messages)) for role in ROLES}
    assert len(seen) == 1
    assert understand(seen.pop(), world).kind == "execute"


# Whole trainings: what each request was taken for, beside the role that sent it.
