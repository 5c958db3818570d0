from __future__ import annotations

import pytest

from promptcodebook.config import Config, RoleSettings
from promptcodebook.errors import ConfigError
from promptcodebook.lm.base import Request, Sampling, request_key
from promptcodebook.lm.dispatch import Dispatch
from promptcodebook.lm.roles import Roles
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.types import Message

HI = (Message("user", "hi"),)


def roles(lm: ScriptedLM, **settings: RoleSettings) -> Roles:
    return Roles(lm, {**Config().roles, **settings}, "http://h/v1#shared")


async def test_model_and_sampling_come_from_the_role():
    lm = ScriptedLM().reply_with(lambda r: "ok")
    own = RoleSettings(model="openai/x", temperature=0.3, top_p=0.8, max_tokens=9, extra={"k": 1})
    asked = roles(lm, critic=own)
    await asked(Request("critic", HI, sample=4))
    await asked(Request("generator", HI, sample=4))
    critic, generator = lm.history
    assert critic.model == "openai/x"
    assert critic.sampling == Sampling(0.3, 0.8, 9, {"k": 1})
    assert critic.sample == 4
    assert generator.model == "http://h/v1#shared"
    assert generator.sampling.temperature == 0.6
    assert asked.model_of("critic") == "openai/x"
    assert asked.model_of("untrusted") == "http://h/v1#shared"


async def test_equal_greedy_requests_share_one_key():
    lm = ScriptedLM().reply_with(lambda r: "ok")
    asked = roles(lm)
    for sample in (1, 2):
        await asked(Request("executor", HI, sample=sample, greedy=True))
        await asked(Request("encoder", HI, sample=sample))
    assert len({request_key(r) for r in lm.history if r.role == "executor"}) == 1
    assert len({request_key(r) for r in lm.history if r.role == "encoder"}) == 1
    for request in lm.history:
        assert (request.sampling.temperature, request.sampling.top_p) == (0.0, None)


async def test_drawn_requests_keep_their_sample():
    lm = ScriptedLM().reply_with(lambda r: "ok")
    asked = roles(lm)
    for sample in (1, 2):
        await asked(Request("executor", HI, sample=sample))
    assert len({request_key(r) for r in lm.history}) == 2


async def test_dispatch_goes_by_the_models_spec():
    a, b = ScriptedLM().enqueue("from a"), ScriptedLM().enqueue("from b")
    lm = Dispatch({"openai/a": a, "openai/b": b})
    assert (await lm(Request("executor", HI, model="openai/b"))).text == "from b"
    with pytest.raises(ConfigError, match="openai/c") as caught:
        await lm(Request("executor", HI, model="openai/c"))
    assert "openai/a" in caught.value.hint
