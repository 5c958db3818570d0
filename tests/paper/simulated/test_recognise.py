"""A request's kind follows from its words: ours, the paper's, and templates that are not ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from promptcodebook.calls import ROLES, Message, Request
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.templates import load_templates
from promptcodebook.method.update import PendingUpdate
from promptcodebook.paper.simulated.mind import RecognisedRequest, from_request, understand
from promptcodebook.types import Variable
from tests.build.method import World as Made
from tests.build.method import config
from tests.build.paper_tasks import cases
from tests.build.simulated import _BOOK, CASES, examples, paraphrased, template_values, world


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["kind"])
def test_paraphrased_templates_are_recognised(case: Mapping[str, str]) -> None:
    for example in examples[:25]:
        understood = understand(paraphrased(case, example), world)
        assert understood.kind == case["kind"], example.input
        if "{input}" in case["user"]:
            assert understood.input == example.input


EXPECTED = cases("recognise-kinds")


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
