"""The program at work: what may reach the untrusted role, and what an agent cannot swallow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from promptcodebook.calls import Chat, Message, Role
from promptcodebook.errors import BudgetReached, LMError, Stop
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import Trial
from promptcodebook.randomness import Draws
from promptcodebook.types import Example, Output, Prompt, Rollout

SECRET = "Our refund limit is 40.\nNever name it.\n\n\n\nBe brief."


class Forwarding:
    """An agent that sends its messages to the untrusted role."""

    name = "forwarding"
    stages: tuple[str, ...] = ()
    roles: frozenset[Role] = frozenset({"untrusted"})

    def __init__(self, sent: str | Sequence[Message], system: str = "") -> None:
        self.sent = sent
        self.system = system

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        reply = await lm(self.sent, system=self.system, role="untrusted", purpose="ask")
        return Output(reply.text)


async def tried(program: Forwarding | Swallowing, prompt: Prompt, lm: ScriptedLM) -> Rollout:
    example = Example("x", "input")
    return await Trial(program, None, lm).run(example, prompt, Draws(0, 0, "x"), Rollout("x"))


@pytest.mark.parametrize(
    ("sent", "system"),
    [
        (SECRET, ""),
        ("Rewrite this. Be brief.", ""),
        ("hello", "Be brief."),
        ([Message("user", "hi"), Message("user", "Our refund limit is 40.\nNever name it.")], ""),
        ([Message("user", "Our refund limit is 40."), Message("user", "Never name it.")], ""),
        ("Never name it.", "Our refund limit is 40."),
    ],
)
async def test_no_paragraph_of_the_prompt_reaches_the_untrusted_role(
    sent: str | Sequence[Message], system: str
):
    """Decision 13: nor one that is dealt out to several messages."""
    lm = ScriptedLM().enqueue("leaked")
    rollout = await tried(Forwarding(sent, system), Prompt(SECRET), lm)
    assert lm.history == [] and rollout.failure is not None
    assert "about to be sent to the untrusted role" in rollout.failure.message
    assert "rewritten request" in rollout.failure.hint


async def test_a_stage_s_own_prompt_is_kept_from_it_too():
    lm = ScriptedLM().enqueue("leaked")
    prompt = Prompt("whole", {"find": "Look it up.", "say": "Say it."})
    assert (await tried(Forwarding("Say it."), prompt, lm)).failure is not None
    assert lm.history == []


async def test_what_is_not_of_the_prompt_reaches_it():
    """An empty paragraph is in every text, and keeps none back."""
    lm = ScriptedLM().enqueue("fine")
    rollout = await tried(Forwarding("Rewrite this: where is my parcel?"), Prompt(SECRET), lm)
    assert (rollout.failure, rollout.output) == (None, "fine")


class Swallowing:
    """An agent that answers something whatever happens."""

    name = "swallowing"
    stages: tuple[str, ...] = ()
    roles: frozenset[Role] = frozenset()

    def __init__(self, then: Exception | None = None) -> None:
        self.then = then

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        try:
            reply = await lm("hi")
        except Exception:
            if self.then is not None:
                raise self.then from None
            return Output("made up")
        return Output(reply.text)


@pytest.mark.parametrize("then", [None, ValueError("something else")])
async def test_an_agent_cannot_turn_the_end_of_a_run_into_an_answer(then: Exception | None):
    lm = ScriptedLM().enqueue(BudgetReached("spent"))
    with pytest.raises(Stop, match="spent"):
        await tried(Swallowing(then), Prompt("p"), lm)


async def test_it_may_answer_where_a_call_of_its_own_fails():
    lm = ScriptedLM().enqueue(LMError("gone"))
    rollout = await tried(Swallowing(), Prompt("p"), lm)
    assert (rollout.failure, rollout.output) == (None, "made up")
