"""The scripted model, and the chat that an executor asks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from promptcodebook.calls import Chat, Message, Reply, Request, Schema, Usage
from promptcodebook.errors import LMError, ServerFault
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.wire import estimate_tokens
from promptcodebook.method.executor import BoundChat
from promptcodebook.randomness import keyed_int

HI = (Message("user", "hello there"),)
ASK = Request("executor", HI)


async def test_a_roles_own_queue_comes_before_the_common_one_and_the_function():
    lm = ScriptedLM().enqueue("common").enqueue("critic's", role="critic")
    lm.reply_with(lambda request: f"for {request.role}")
    said = [(await lm(Request(role, HI))).text for role in ("critic", "critic", "encoder")]
    assert said == ["critic's", "common", "for encoder"]
    assert [request.role for request in lm.history] == ["critic", "critic", "encoder"]
    assert lm.left == 0


async def test_what_is_in_the_script_is_raised_replied_as_it_is_or_estimated():
    paid = Reply("x", usage=Usage(calls=1, prompt_tokens=99), finish="length")
    lm = ScriptedLM().enqueue(ServerFault("oops"), paid, "12345678")
    with pytest.raises(ServerFault):
        await lm(ASK)
    assert await lm(ASK) == paid
    reply = await lm(ASK)
    assert reply.estimated
    assert reply.usage == Usage(calls=1, prompt_tokens=3, completion_tokens=2)
    with pytest.raises(LMError, match=r"no reply for call 4 \(role executor\): 'hello there'"):
        await lm(ASK)


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("abcde", 2), ("éééé", 2), ("\ud800", 1)])
def test_estimates_count_bytes(text: str, tokens: int):
    assert estimate_tokens(text) == tokens


# The chat


def chat(lm: ScriptedLM, greedy: bool = False) -> BoundChat:
    return BoundChat(lm, lambda name: keyed_int("e1", name), greedy)


async def test_a_string_is_one_user_message_behind_the_system_prompt():
    lm = ScriptedLM().enqueue("a", "b", "c")
    bound: Chat = chat(lm)
    schema = Schema("S", {"type": "object"})
    await bound("x {y}", system="p", schema=schema)
    await bound([Message("user", "1"), Message("assistant", "2"), Message("user", "3")])
    await bound("x", role="untrusted")
    assert lm.history[0].messages == (Message("system", "p"), Message("user", "x {y}"))
    assert [m.content for m in lm.history[1].messages] == ["1", "2", "3"]
    assert [request.role for request in lm.history] == ["executor", "executor", "untrusted"]
    assert [request.schema for request in lm.history] == [schema, None, None]


async def test_samples_differ_by_call_and_repeat_by_purpose():
    runs: list[list[int]] = []
    for _ in range(2):
        lm = ScriptedLM().reply_with(lambda request: "x")
        bound = chat(lm)
        for purpose in ("", "", "query", "answer", "query"):
            await bound("same", purpose=purpose)
        runs.append([request.sample for request in lm.history])
    assert runs[0] == runs[1] and len(set(runs[0])) == 5
    named = [keyed_int("e1", name) for name in ("0", "1", "query")]
    assert runs[0][:3] == named, "numbered without a name"


async def test_usage_and_cuts_are_summed_and_greedy_is_passed_on():
    lm = ScriptedLM().enqueue("a", Reply("b", finish="length"), "c")
    bound = chat(lm, greedy=True)
    seen: list[bool] = []
    for _ in range(3):
        await bound("x")
        seen.append(bound.truncated)
    assert seen == [False, True, True]
    assert bound.usage.calls == 3
    assert all(request.greedy for request in lm.history)


async def test_thoughts_are_no_part_of_the_answer():
    lm = ScriptedLM().enqueue("<think>2+2 {hm}</think> 4", "so \\frac{1}{2}</think>5", "a <b> c ")
    bound = chat(lm)
    assert [(await bound("x")).text for _ in range(3)] == ["4", "5", "a <b> c "]


async def test_a_cut_counts_when_it_is_paid_for_and_not_again():
    cut = Reply("b", finish="length")
    lm = ScriptedLM().enqueue(cut, replace(cut, source="journal"))
    counted: list[str] = []
    bound = BoundChat(lm, lambda _: 0, tally=lambda name, count=1: counted.append(name))
    assert [(await bound("x")).text for _ in range(2)] == ["b", "b"]
    assert counted == ["truncated"]
