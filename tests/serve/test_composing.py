"""A prompt within its time: what stands in for a model that fails or is slow, and what is kept."""

from __future__ import annotations

import asyncio

import pytest

from promptcodebook.calls import Reply, Request
from promptcodebook.errors import EndpointDown
from promptcodebook.policy.file import PolicyFile
from promptcodebook.serve.composing import Composing, Patience
from tests.method.build import talkative
from tests.policy.test_policy import RANKING, file_of
from tests.serve.proxied import deployed, one_call, three_call

QUICK = Patience(route_s=0.2, compose_s=0.2)


class Failing:
    """A model whose role fails: 'error', 'timeout' (it says nothing for long) or 'reply' (it says
    what is of no use)."""

    def __init__(self, role: str = "", how: str = "") -> None:
        self.history: list[Request] = []
        self._role = role
        self._how = how

    async def __call__(self, request: Request) -> Reply:
        self.history.append(request)
        if self._role not in (request.role, "any"):
            said = talkative(request)
            assert isinstance(said, str)
            return Reply(said)
        if self._how == "error":
            raise EndpointDown("nothing answers")
        if self._how == "timeout":
            await asyncio.sleep(30)
        return Reply("")


def composing(
    file: PolicyFile, role: str = "", how: str = "", kept: int = 100
) -> tuple[Composing, Failing]:
    lm = Failing(role, how)
    patience = Patience(QUICK.route_s, QUICK.compose_s, kept)
    return Composing(deployed(file, lm), "sha256:0", patience), lm


@pytest.mark.parametrize("how", ["error", "timeout", "reply"])
async def test_an_encoder_that_fails_is_stood_in_for_by_the_best_rated(how: str) -> None:
    made, lm = composing(three_call(), "encoder", how)
    composed = await made.compose("Where is it?")
    assert composed.fallbacks == (f"encoder:{how}",)
    # r̄ of the four entries is 0.1, 0.4 and twice untried, which stand at the mean.
    assert composed.route.indices == made.policy.spare_route().indices == (1, 2)
    asked = len(lm.history)
    assert (await made.compose("Where is it?")).cached == "", "a failure is never kept"
    assert len(lm.history) > asked


@pytest.mark.parametrize("how", ["error", "timeout", "reply"])
async def test_a_generator_that_fails_is_stood_in_for_by_the_instincts(how: str) -> None:
    made, _ = composing(three_call(base_prompt="Base."), "generator", how)
    composed = await made.compose("Where is it?")
    assert composed.fallbacks == (f"generator:{how}",)
    texts = [made.policy.codebook[k].text for k in composed.route.indices]
    assert composed.prompt.startswith("Base.\n\n" + "\n".join(texts))
    assert (await made.compose("Where is it?")).cached == ""


async def test_both_may_fail() -> None:
    made, _ = composing(three_call(), "any", "error")
    composed = await made.compose("Where is it?")
    assert composed.fallbacks == ("encoder:error", "generator:error") and composed.prompt


async def test_no_text_needs_no_model() -> None:
    made, lm = composing(three_call())
    composed = await made.compose(" \n")
    assert composed.fallbacks == ("input:empty",) and composed.prompt and not lm.history


@pytest.mark.parametrize(
    ("file", "mode"),
    [
        (three_call(), "three-call"),
        (file_of(compose="verbatim"), "two-call"),
        (file_of(ranking=RANKING), "two-call"),
        (one_call(), "one-call"),
    ],
)
async def test_the_mode_says_how_many_calls_an_answer_takes(file: PolicyFile, mode: str) -> None:
    made, lm = composing(file)
    composed = await made.compose("Where is it?")
    assert made.mode == mode and not composed.fallbacks
    assert len(lm.history) + 1 == ["one-call", "two-call", "three-call"].index(mode) + 1
    assert composed.prompt == await deployed(file, Failing()).aprompt("Where is it?"), (
        "the prompts that were judged"
    )


async def test_a_generator_that_never_sees_the_input_is_asked_once_a_route() -> None:
    file = file_of(ranking=RANKING)
    text = file.templates.generator.replace("{task}", "any")
    blind = file.templates.model_copy(update={"generator": text})
    made, lm = composing(file.model_copy(update={"templates": blind}))
    first, other = [await made.compose(text) for text in ("Where is it?", "When does it come?")]
    assert (first.cached, other.cached, len(lm.history)) == ("", "route", 1)
    assert first.prompt == other.prompt


async def test_no_more_prompts_are_kept_than_allowed() -> None:
    made, lm = composing(three_call(), kept=2)
    for text in ("a", "b", "a", "c", "b", "a"):
        await made.compose(text)
    # a, b, (a), c instead of b, b instead of a, a instead of c
    assert len(lm.history) == 2 * 5
