"""The program at work: what may reach the untrusted role, and what an agent cannot swallow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from promptcodebook.calls import Chat, Message, Reply, Request, Role, Usage
from promptcodebook.errors import BudgetReached, EndpointDown, LMError, Stop
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.executor import BoundChat, Evaluator, Trial, average
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.randomness import Draws, Randomness
from promptcodebook.types import Evaluation, Example, Failure, Output, Prompt, PromptLength, Rollout
from tests.method.build import World, config, examples, said

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


STAGED = Prompt("whole", {"find": "Look it up.", "say": "Say it."})


@pytest.mark.parametrize(("sent", "system", "prompt"), [
    (SECRET, "", Prompt(SECRET)),
    ("Rewrite this. Be brief.", "", Prompt(SECRET)),
    ("hello", "Be brief.", Prompt(SECRET)),
    ([Message("user", "hi"), Message("user", "Our refund limit is 40.\nNever name it.")], "",
     Prompt(SECRET)),
    ([Message("user", "Our refund limit is 40."), Message("user", "Never name it.")], "",
     Prompt(SECRET)),
    ("Never name it.", "Our refund limit is 40.", Prompt(SECRET)),
    ("Say it.", "", STAGED),
])  # fmt: skip
async def test_no_paragraph_of_the_prompt_reaches_the_untrusted_role(
    sent: str | Sequence[Message], system: str, prompt: Prompt
):
    """Decision 13: nor one that is dealt out to several messages, nor a stage's own."""
    lm = ScriptedLM().enqueue("leaked")
    rollout = await tried(Forwarding(sent, system), prompt, lm)
    assert lm.history == [] and rollout.failure is not None
    assert "about to be sent to the untrusted role" in rollout.failure.message
    assert "rewritten request" in rollout.failure.hint
    # An empty paragraph is in every text, and keeps none back.
    other = await tried(Forwarding("Rewrite this: where is my parcel?"), prompt, lm)
    assert (other.failure, other.output) == (None, "leaked")


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


# Evaluation: retries, failures as the floor (decision 15).


def broken(times: int):
    """The executor fails for x1 so many times, then answers; 0.8 for all others at once."""
    left = [times]

    def reply(request: Request) -> Scripted:
        if "input 1" in said(request) and left[0]:
            left[0] -= 1
            return EndpointDown("gone")
        return "0.8"

    return ScriptedLM().reply_with(reply)


async def evaluate(lm: ScriptedLM, **fields) -> tuple[World, Evaluation]:
    world = World(config(), lm)
    evaluator = Evaluator(world.trial, randomness=Randomness(0), **fields)
    return world, await evaluator.evaluate("zero-shot", FixedPrompt("p"), examples(4), "test")


async def test_a_failure_is_tried_again_with_a_fresh_draw():
    """Decision 15: evaluation retries; an input is drawn the same at every evaluation."""
    world, result = await evaluate(broken(1))
    assert result.failed == 0 and result.score == pytest.approx(0.8)
    first, again = [r for r in world.lm.history if "input 1" in said(r)]
    assert first.sample != again.sample
    assert all(r.prompt_length is not None for r in result.rollouts)
    once, given_up = await evaluate(broken(1), retries=0)
    assert given_up.failed == 1 and len(once.lm.history) == 4
    assert {r.sample for r in once.lm.history} == {r.sample for r in world.lm.history} - {
        again.sample
    }


async def test_retries_are_drawn_and_paid_for():
    """Once unless said otherwise. No attempt shares its draws with another or with training: a
    sampled evaluation would repeat what was trained on."""
    world = World(config(update={"batch_size": 2, "epochs": 3}))
    await world.run(examples(2))
    trained = {r.sample for r in world.asked("executor")}
    world.lm.history.clear()
    world.lm.reply_with(lambda request: EndpointDown("gone"))
    evaluator = Evaluator(world.trial, world.config.randomness, retries=3)
    await evaluator.evaluate("p", FixedPrompt("p"), examples(2), "val")
    evaluated = [r.sample for r in world.lm.history]
    assert len(evaluated) == 2 * 4 == len(set(evaluated))
    assert not trained & set(evaluated)
    world, result = await evaluate(ScriptedLM().reply_with(lambda request: "no number"))
    assert result.failed == 4 and len(world.lm.history) == 8
    assert [r.usage.calls for r in result.rollouts] == [2] * 4
    _, mended = await evaluate(ScriptedLM().enqueue("no number").reply_with(lambda request: "1"))
    assert sum(r.usage.calls for r in mended.rollouts) == 5 and mended.failed == 0


async def test_what_still_fails_counts_as_the_floor_with_the_mean_of_the_rest_beside_it():
    """Decision 15: (0.8 · 3 + 0) / 4 = 0.6 in the headline, 0.8 over those answered."""
    _, result = await evaluate(broken(9))
    assert result.failed == 1
    assert result.score == pytest.approx(0.6) and result.answered == pytest.approx(0.8)
    _, deep = await evaluate(broken(9), floor=-1.0)
    assert deep.score == pytest.approx(0.35)


async def test_rollouts_stand_in_the_examples_order_and_are_told_as_they_finish():
    world = World(config(), broken(0))
    heard: list[Rollout] = []
    result = await Evaluator(world.trial, Randomness(0)).evaluate(
        "p", FixedPrompt("p"), examples(4), "val", heard.append
    )
    assert [r.example_id for r in result.rollouts] == ["x0", "x1", "x2", "x3"]
    assert sorted(r.example_id for r in heard) == ["x0", "x1", "x2", "x3"]
    assert (result.name, result.split) == ("p", "val")
    empty = await Evaluator(world.trial, Randomness(0)).evaluate("p", FixedPrompt("p"), [], "val")
    assert empty.score is None and empty.answered is None


def test_sampled_runs_count_by_their_mean_and_a_failed_run_as_the_floor():
    """Decision 18: AIME is the mean of five sampled runs a problem."""
    spent = Usage(calls=1, prompt_tokens=10)
    first = Evaluation(
        "learned", "test", (Rollout("a", reward=1.0, usage=spent), Rollout("b", reward=0.0))
    )
    late = Failure("execute", "CallTimeout", "late")
    second = Evaluation(
        "learned", "test", (Rollout("a", failure=late, usage=spent), Rollout("b", reward=1.0))
    )
    both = average([first, second])
    assert [r.reward for r in both.rollouts] == [0.5, 0.5]
    assert both.failed == 0
    assert both.rollouts[0].usage.calls == 2
    assert average([first]) == first
    late_first = average([second, first]).rollouts[0]
    assert (late_first.reward, late_first.failure) == (0.5, None), "it was answered once"
    neither, again = (
        Evaluation("learned", "test", (Rollout("a", output=text, failure=failure), Rollout("b")))
        for text, failure in (("one", late), ("two", replace(late, message="later")))
    )
    (shown, _) = average([neither, again]).rollouts
    assert (shown.output, shown.failure, shown.reward) == ("one", late, None), "the first run's"
    whole, cut = (Evaluation("p", "test", (Rollout("a", truncated=t),)) for t in (False, True))
    assert average([whole, cut]).rollouts[0].truncated
    assert not average([whole, whole]).rollouts[0].truncated
    with pytest.raises(ValueError):  # other examples
        average([first, whole])


async def test_the_prompt_length_is_the_prompt_s_share_of_the_request():
    """Of two executor calls with 10 of 40 and 30 of 40 letters in the system prompt, at 80 tokens
    each as the server counts them: 20 and 60; a judge's prompt is none of the executor's. A prompt
    within the user's message counts too."""
    lm = ScriptedLM().reply_with(lambda request: Reply("ok", usage=Usage(1, 80, 5)))
    chat = BoundChat(lm, lambda purpose: 0)
    await chat("u" * 30, system="s" * 10)
    await chat("u" * 10, system="s" * 30)
    await chat("u", system="s" * 900, role="judge")
    assert chat.prompt_length == PromptLength(longest=60, total=80)
    await chat("a prompt that is none of its own, within the user's message")
    await chat("")
    assert chat.prompt_length == PromptLength(longest=60, total=80)
    lm = ScriptedLM().reply_with(lambda request: Reply("ok", usage=Usage(1, 80, 5)))
    chat = BoundChat(lm, lambda purpose: 0, prompt=Prompt("p" * 10, {"read": "r" * 30}))
    await chat("u" * 28 + "\n\n" + "p" * 10)
    await chat("u" * 10, system="r" * 30)
    await chat("r" * 30 + "u" * 10)
    assert chat.prompt_length == PromptLength(longest=60, total=140)


@pytest.mark.parametrize("estimated", [(True, False), (False, True), (False, False)])
async def test_a_prompt_length_is_an_estimate_where_any_call_was_counted_by_us(estimated):
    lm = ScriptedLM().enqueue(*(Reply("ok", usage=Usage(1, 8, 5), estimated=e) for e in estimated))
    chat = BoundChat(lm, lambda purpose: 0)
    for _ in estimated:
        await chat("u", system="s")
    assert chat.prompt_length == PromptLength(longest=4, total=8, estimated=any(estimated))
