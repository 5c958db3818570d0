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


async def test_a_roles_own_queue_comes_before_the_common_one_and_the_function():
    lm = ScriptedLM().enqueue("common").enqueue("critic's", role="critic")
    lm.reply_with(lambda request: f"for {request.role}")
    said = [(await lm(Request(role, HI))).text for role in ("critic", "critic", "encoder")]
    assert said == ["critic's", "common", "for encoder"]
    assert [request.role for request in lm.history] == ["critic", "critic", "encoder"]
    assert lm.left == 0


async def test_exceptions_are_raised_and_replies_kept_as_they_are():
    paid = Reply("x", usage=Usage(calls=1, prompt_tokens=99), finish="length")
    lm = ScriptedLM().enqueue(ServerFault("oops"), paid)
    with pytest.raises(ServerFault):
        await lm(Request("executor", HI))
    assert await lm(Request("executor", HI)) == paid


async def test_tokens_are_estimated_and_named_so():
    reply = await ScriptedLM().enqueue("12345678")(Request("executor", HI))
    assert reply.estimated
    assert reply.usage == Usage(calls=1, prompt_tokens=3, completion_tokens=2)


async def test_running_out_says_what_was_asked():
    with pytest.raises(LMError, match=r"no reply for call 1 \(role executor\): 'hello there'"):
        await ScriptedLM()(Request("executor", HI))


def test_estimates_count_bytes():
    assert estimate_tokens("") == 0
    assert estimate_tokens("abcde") == 2
    assert estimate_tokens("éééé") == 2
    assert estimate_tokens("\ud800") == 1


# .


def chat(lm: ScriptedLM, greedy: bool = False) -> BoundChat:
    return BoundChat(lm, lambda name: keyed_int("e1", name), greedy)


async def test_a_string_is_one_user_message_behind_the_system_prompt():
    lm = ScriptedLM().enqueue("a", "b", "c")
    bound: Chat = chat(lm)
    await bound("x {y}", system="p")
    await bound([Message("user", "1"), Message("assistant", "2"), Message("user", "3")])
    await bound("x", role="untrusted")
    assert lm.history[0].messages == (Message("system", "p"), Message("user", "x {y}"))
    assert [m.content for m in lm.history[1].messages] == ["1", "2", "3"]
    assert [request.role for request in lm.history] == ["executor", "executor", "untrusted"]


async def test_a_call_asks_for_the_schema_it_is_given_and_for_none_without():
    lm = ScriptedLM().enqueue("{}", "x")
    bound = chat(lm)
    await bound("x", schema=Schema("S", {"type": "object"}))
    await bound("x")
    assert [request.schema for request in lm.history] == [Schema("S", {"type": "object"}), None]


async def test_samples_differ_by_call_and_repeat_by_purpose():
    def seeds(lm: ScriptedLM) -> list[int]:
        return [request.sample for request in lm.history]

    runs = []
    for _ in range(2):
        lm = ScriptedLM().reply_with(lambda request: "x")
        bound = chat(lm)
        for purpose in ("", "", "query", "answer", "query"):
            await bound("same", purpose=purpose)
        runs.append(seeds(lm))
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 5
    assert runs[0][2] == keyed_int("e1", "query")
    assert runs[0][:2] == [keyed_int("e1", "0"), keyed_int("e1", "1")], "numbered without a name"


async def test_usage_and_cuts_are_summed_and_greedy_is_passed_on():
    lm = ScriptedLM().enqueue("a", Reply("b", finish="length"), "c")
    bound = chat(lm, greedy=True)
    await bound("x")
    assert not bound.truncated
    await bound("x")
    await bound("x")
    assert bound.truncated
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
    first = (await bound("x")).text
    assert counted == ["truncated"]
    assert (await bound("x")).text == first and counted == ["truncated"]
