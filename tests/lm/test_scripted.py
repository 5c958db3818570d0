from __future__ import annotations

import pytest

from promptcodebook.calls import Message, Reply, Request, Usage
from promptcodebook.errors import LMError, ServerFault
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.wire import estimate_tokens

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
