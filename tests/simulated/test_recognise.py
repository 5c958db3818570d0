"""A request's kind is told from its words: ours, the paper's, and templates nobody here knows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from promptcodebook.calls import ROLES, Message, Request
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.critic import reference
from promptcodebook.method.state import RoutingStatistics
from promptcodebook.method.templates import instinct_lines, load_templates
from promptcodebook.method.update import Pending
from promptcodebook.simulated.mind import understand
from promptcodebook.simulated.request import ChatRequest, from_request
from promptcodebook.simulated.world import World
from promptcodebook.tasks.constraints.task import reward
from promptcodebook.types import Codebook, Example, Instinct, Variable
from tests.method.build import World as Made
from tests.method.build import config

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

PARAPHRASES: list[tuple[str, str, str]] = [
    (
        "route",
        f"You are a dispatcher. Out of the numbered hints below, pick the 3 that suit the user's "
        f'message best. Reply as JSON: {{"indices": [..], "why": ".."}}\n\nHints:\n{_LISTED}',
        "{input}",
    ),
    (
        "route",
        "",
        f"# Question\n{{input}}\n\n# Available strategies\n{_BULLETED}\n\n"
        f"Choose exactly 3 of these strategies. Return only their numbers, separated by commas.",
    ),
    (
        "compose",
        "You merge pieces of advice into one system prompt.",
        f"Chosen directives:\n{_CHOSEN}\n\nUser request:\n{{input}}\n\n"
        "Weave the directives into a prompt of 2-4 sentences. Print the prompt only.",
    ),
    (
        "compose",
        "",
        f"## Selected guidelines\n{_CHOSEN}\n\n## Task\n{{input}}\n\n"
        "Please draft the instructions for another assistant, combining these guidelines.",
    ),
    (
        "critique",
        'You review prompts. Answer in JSON with "score" (0-1) and "feedback".',
        f"Question:\n{{input}}\n\nActive strategies:\n{_CHOSEN}\n\nPrompt used:\nBe brief.\n\n"
        "Answer:\nHello.\n\nExpected answer: none is known\nReward: 0.25\n"
        "Checker feedback: {report}",
    ),
    (
        "critique",
        "",
        "### Task input\n{input}\n\n### Composed prompt\nBe brief.\n\n### Output\nHello.\n\n"
        "### Score reached\n0.25\n\n### Checker feedback\n{report}\n\n"
        "Assess how good the prompt was. Return JSON with the keys "
        '{"rating": 0.0, "comments": "what went wrong"}.',
    ),
    (
        "critique_and_blame",
        'Judge the run, then say what is to blame. JSON: {"score": 0..1, "feedback": "...", '
        '"composition_errors": "...", "instinct_errors": {"index": "..."}, '
        '"routing_errors": "..."}',
        f"Input:\n{{input}}\n\nActive instincts:\n{_CHOSEN}\n\nComposed prompt:\nBe brief.\n\n"
        "Response:\nHello.\n\nReward: 0.25\nFeedback: {report}",
    ),
    (
        "critique_and_blame",
        "",
        f"Input: {{input}}\nSelected strategies:\n{_CHOSEN}\nPrompt: Be brief.\nResponse: Hello.\n"
        "Reward: 0.25\nFeedback: {report}\n\nRate the run and distribute the blame. Return JSON: "
        '{"grade": 0.5, "explanation": "..", "phrasing_faults": "..", "strategy_faults": "..", '
        '"selection_faults": ".."}',
    ),
    (
        "blame",
        "You assign credit. Partition the critique. JSON keys: "
        '{"wording": "...", "instinct_errors": "...", "routing_errors": "..."}',
        "Critique:\nThe response fails on bullets: use bullet points on lines of their own.",
    ),
    (
        "blame",
        "",
        "## Verdict\nIt fails on bullets: put bullet points on lines of their own.\n\n"
        f"## Active instincts\n{_CHOSEN}\n\n## Prompt\nBe brief.\n\n"
        "Apportion this verdict to whoever is responsible and reply in JSON: "
        '{"rendering_errors": "", "instinct_errors": {"0": ""}, "routing_errors": ""}',
    ),
    (
        "adversary",
        'You audit a critic. Say what its rubric overlooked. JSON: {"feedback": "..."}',
        "Rubric:\nBe strict.\n\nInput:\n{input}\n\nPrompt:\nBe brief.\n\nResponse:\nHello.\n\n"
        "Reward: 0.2\nFeedback: {report}\n\nCritic's verdict:\nscore 0.5: it is short.",
    ),
    (
        "adversary",
        "",
        "### Criteria\nBe strict.\n\n### Task\n{input}\n\n### Verdict\nIt is short.\n\n"
        "### Reward\n0.2\n\nWhich faults did the evaluator miss, or invent, because of its "
        'criteria? Reply with JSON {"gap": "..."}.',
    ),
    (
        "improve",
        "You edit prompts. Reply with the revised text only, at most 40 words.",
        "Current text:\nBe nice.\n\nComments:\n- Use bullet points on lines of their own.",
    ),
    (
        "improve",
        "",
        "An assistant works under this instruction:\n```\nBe nice.\n```\nHere are runs with "
        "feedback on each:\n```\n# Example 1\nThe answer has 2 bullet lines; exactly 4 were asked "
        "for.\n```\nWrite a new instruction for the assistant, within ``` marks.",
    ),
    (
        "split",
        'Break the user\'s prompt into standalone rules. JSON: {"rules": ["..."]}',
        "Prompt:\nBe nice. Count the words. Avoid commas.\n",
    ),
    (
        "split",
        "",
        "Decompose the following prompt into at most 5 directives, one JSON list under "
        '"directives".\n\nPrompt:\nBe nice. Count the words. Avoid commas.',
    ),
    ("instincts", "", 'Invent 6 short directives for any assistant. JSON: {"directives": [""]}'),
    ("instincts", "You write guidelines.", "Please come up with 8 different useful strategies."),
    (
        "judge",
        'Grade the answer against the reference. JSON: {"score": 0.0, "reason": ""}',
        "Question:\nWho wrote it?\n\nAnswer:\nMary Shelley\n\nReference:\nMary Shelley",
    ),
    (
        "judge",
        "",
        "## Question\nWho wrote it?\n## Response\nNobody\n## Gold answer\nMary Shelley\n\n"
        'Evaluate the response. Return JSON {"rating": 0.5, "explanation": ""}.',
    ),
    ("execute", "Count the words. Rewrite what is too long. Choose the best words.", "{input}"),
    ("execute", f"Follow these rules:\n{_LISTED}", "{input}"),
    ("execute", "", "{input}"),
    ("execute", "Give feedback in JSON.", "What is the capital of the country with most lakes?"),
]


def chat(system: str, user: str) -> ChatRequest:
    turns = [Message("system", system)] if system else []
    return ChatRequest((*turns, Message("user", user)), temperature=0.0)


@pytest.mark.parametrize(("kind", "system", "user"), PARAPHRASES)
def test_paraphrased_templates_are_recognised(
    world: World, examples: list[Example], kind: str, system: str, user: str
) -> None:
    for example in examples[:25]:
        report = reward(example, "hello").feedback
        filled = user.replace("{input}", example.input).replace("{report}", report)
        understood = understand(chat(system, filled), world)
        assert understood.kind == kind, example.input
        if "{input}" in user:
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
def test_our_templates_and_the_papers_are_recognised(
    world: World, examples: list[Example], templates: str, name: str
) -> None:
    for example in examples[:25]:
        messages = load_templates(templates)[name].fill(template_values(example, templates))
        understood = understand(ChatRequest(messages), world)
        assert understood.kind == EXPECTED[name], example.input


@pytest.mark.parametrize("variable", ["theta", "phi", "psi"])
def test_a_directive_to_be_rewritten_is_not_taken_for_an_order(
    world: World, examples: list[Example], variable: str
) -> None:
    texts = load_templates("default")
    values = {**template_values(examples[0], "default"), "text": texts.text(variable)}
    understood = understand(ChatRequest(texts["updater"].fill(values)), world)
    assert understood.kind == "improve"


async def test_a_rewrite_is_recognised_among_the_others_and_after_a_refusal(world: World) -> None:
    """What the updater asks, and asks once more, is read as text and feedback alike."""

    def refuse(variable: Variable, text: str, before: str, others: Sequence[str]) -> str:
        return f"72 words, over the cap of 25: {text}"

    made = Made(config(), ScriptedLM().enqueue("too long", "too long"), check=refuse)
    feedback = "use bullet points on lines of their own"
    pending = Pending(0, _BOOK[0], (feedback, "be brief"), tuple(_BOOK[1:]))
    await made.updater.rewrite_all([pending], 0)
    assert len(made.lm.history) == 2
    for request in made.lm.history:
        understood = understand(from_request(request), world)
        assert understood.kind == "improve"
        assert understood.reading.sections["text"] == _BOOK[0]
        assert understood.reading.sections["feedback"] == f"- {feedback}\n- be brief"


def test_a_second_try_is_read_as_the_request_it_repeats(
    world: World, examples: list[Example]
) -> None:
    messages = load_templates("default")["encoder"].fill(template_values(examples[3], "default"))
    again = Message("user", "Your reply cannot be used: 2 of 3 indices. Answer again, in JSON.")
    retried = ChatRequest((*messages, Message("assistant", "[1, 2]"), again))
    understood = understand(retried, world)
    assert (understood.kind, understood.input) == ("route", examples[3].input)
    assert understood.request.digest != ChatRequest(messages).digest


def test_the_role_of_a_request_is_never_seen(world: World, examples: list[Example]) -> None:
    messages = (Message("system", "Be brief."), Message("user", examples[0].input))
    seen = {from_request(Request(role, messages)) for role in ROLES}
    assert len(seen) == 1
    assert understand(seen.pop(), world).kind == "execute"
