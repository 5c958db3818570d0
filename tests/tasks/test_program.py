"""The modules of compound executors: what is sent, and how replies are read."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.calls import Chat, Message, Reply
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.tasks.program import ModuleReply, ask, make_output, outside, read_outputs, think
from promptcodebook.types import Prompt, Stage

LABELLED = "reasoning: the map says so\nanswer: Paris"


def chat(lm: ScriptedLM) -> Chat:
    return BoundChat(lm, lambda purpose: 7)


async def thought(lm: ScriptedLM, prompt: Prompt, stage: str = "answer") -> ModuleReply:
    return await think(
        chat(lm),
        prompt=prompt,
        stage=stage,
        instruction="Answer the question.",
        fields={"question": "Capital of France?"},
        outputs=("answer",),
    )


async def test_a_module_sends_its_own_prompt_instruction_and_form_and_keeps_its_stage() -> None:
    lm = ScriptedLM().enqueue(LABELLED, LABELLED)
    parts = Prompt("all of it", {"hop": "FOR HOP"})
    reply = await thought(lm, parts, "hop")
    assert reply == {"reasoning": "the map says so", "answer": "Paris"}
    assert reply.stage == Stage("hop", "<question>\nCapital of France?\n</question>", LABELLED)
    await thought(lm, parts, "answer")
    first, second = lm.history
    system, user = first.messages
    assert system.content.startswith("FOR HOP\n\nAnswer the question.\n\n")
    assert system.content.index("reasoning:") < system.content.index("answer:")
    assert "all of it" not in system.content
    assert user == Message("user", reply.stage.input) and first.role == "executor"
    assert second.messages[0].content.startswith("all of it\n\n")


async def test_a_plain_module_takes_the_whole_reply() -> None:
    lm = ScriptedLM().enqueue("  answer: is this a label?\nNo.\n")
    given = {"stage": "respond", "instruction": "Reply.", "fields": {"q": "x"}}
    reply = await ask(chat(lm), prompt=Prompt("P"), **given, output="response")
    assert reply == {"response": "answer: is this a label?\nNo."}
    assert lm.history[0].messages[0].content == "P\n\nReply."


async def test_the_untrusted_model_gets_the_message_and_nothing_else() -> None:
    lm = ScriptedLM().enqueue("outside says", role="untrusted")
    reply = await outside(chat(lm), stage="outside", message="a {bare} request", output="reply")
    assert reply == {"reply": "outside says"}
    (request,) = lm.history
    assert request.role == "untrusted"
    assert request.messages == (Message("user", "a {bare} request"),)
    # No other module can be pointed at that role, and `outside` takes no prompt.
    assert all("role" not in inspect.signature(f).parameters for f in (think, ask, outside))
    assert "prompt" not in inspect.signature(outside).parameters


@pytest.mark.parametrize("text", ["{question}", "%s {0} {fields[x]}", "$name <question>", "\\1"])
async def test_texts_are_data(text: str) -> None:
    lm = ScriptedLM().enqueue(LABELLED)
    given = {"question": text, "context": "{question}"}
    sent = {"stage": "s", "instruction": text, "fields": given, "outputs": ("answer",)}
    reply = await think(chat(lm), prompt=Prompt(text), **sent)
    system, user = lm.history[0].messages
    assert system.content.startswith(f"{text}\n\n{text}\n\n")
    wanted = f"<question>\n{text}\n</question>\n\n<context>\n{{question}}\n</context>"
    assert user.content == wanted and reply["answer"] == "Paris"


@pytest.mark.parametrize("reply", [
    "Reasoning: because\nAnswer: Paris",
    "**Reasoning:** because\n\n**Answer:** Paris",
    "**reasoning**: because\n**ANSWER**: Paris",
    "reasoning: because\n**Final answer:** Paris",
    "## Reasoning\nbecause\n\n## Answer\nParis\n",
    "[[ ## reasoning ## ]]\nbecause\n\n[[ ## answer ## ]]\nParis",
    "<reasoning>\nbecause\n</reasoning>\n<answer>\nParis\n</answer>",
    '{"reasoning": "because", "answer": "Paris"}',
    '```json\n{"Reasoning": "because", "Answer": " Paris "}\n```',
])  # fmt: skip
def test_labels_in_many_dresses(reply: str) -> None:
    assert read_outputs(reply, ("answer",)) == {"reasoning": "because", "answer": "Paris"}


BODY = "  one\n    two\n\nResponse: not a label\n**bold**"


@pytest.mark.parametrize(("text", "cut", "expected"), [
    ("Paris", False, {"answer": "Paris"}),
    ("Paris", False, {"answer": "", "city": ""}),
    ('{"other": 1}', False, {"answer": '{"other": 1}'}),
    ('{"answer": null}', False, {"answer": ""}),
    ('{"answer": 42, "titles": ["A", "Ä"]}', False, {"answer": "42", "titles": '["A", "Ä"]'}),
    ("reasoning: so Paris", False, {"answer": "so Paris"}),
    ("reasoning: so Par", True, {"answer": ""}),
    ("answer: Par", True, {"answer": "Par"}),
    ("answer: **Paris**", False, {"answer": "**Paris**"}),
    ("**Final Answer:** A\nmy-q: Q {x}", False, {"final_answer": "A", "my_q": "Q {x}"}),
    ("my q: Q", False, {"final_answer": "", "my_q": "Q"}),
    (f"reasoning: r\nresponse:\n{BODY}\n", False, {"response": BODY}),
])  # fmt: skip
def test_what_a_reply_gives(text: str, cut: bool, expected: dict[str, str]) -> None:
    read = read_outputs(text, tuple(expected), cut)
    assert read == {"reasoning": read["reasoning"], **expected}
    assert read_outputs("reasoning: r\nanswer: A", ("answer",))["reasoning"] == "r"


async def test_a_cut_reply_marks_the_output() -> None:
    lm = ScriptedLM().enqueue(LABELLED, Reply("answer: Par", finish="length"))
    steps = [await thought(lm, Prompt("P"), stage) for stage in ("one", "two")]
    assert [s.truncated for s in steps] == [False, True]
    output = make_output(steps[-1]["answer"], steps)
    assert output.text == "Par"
    assert output.truncated
    assert [s.name for s in output.trace] == ["one", "two"]
    assert not make_output("x", steps[:1]).truncated


@given(st.text(), st.booleans())
def test_any_reply_is_read(text: str, cut: bool) -> None:
    assert set(read_outputs(text, ("answer", "summary"), cut)) == {"reasoning", "answer", "summary"}
    assert isinstance(read_outputs(text, ("answer",), cut)["answer"], str)
