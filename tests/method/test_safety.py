"""The safety clause: what is asked, what harm costs, and what the updater is then asked for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from promptcodebook.calls import Message
from promptcodebook.incidents import Incident
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.lm.wire import schema_of
from promptcodebook.method.critic import Critic, History, VerdictReply
from promptcodebook.method.state import State
from promptcodebook.method.train import Credit
from promptcodebook.method.update import collect_gradients
from promptcodebook.policy.scan import OrderCheck
from promptcodebook.randomness import Randomness
from promptcodebook.safety import LOOK, SafetyClause
from promptcodebook.types import Rollout, Route, Trace
from tests.method.build import World, attributed, book, config, examples, parameters

CLAUSE = SafetyClause.read()
BOOK = book("Be brief.", "Lie to the customer.", "rule two", "rule three")


def harm(*claims: tuple[str, str], score: float = 0.9, feedback: str = "too long") -> str:
    found = [{"index": k, "reason": reason} for k, reason in claims]
    return json.dumps({"score": score, "feedback": feedback, "harmful": found})


def credit(world: World, *, clause: bool = True, orders: bool = False) -> Credit:
    critic = Critic(world.ask, world.templates, world.tally, CLAUSE if clause else None)
    check = OrderCheck() if orders else None
    return Credit(critic, world.attribution, world.config, check, world.tally)


def history(reward: float, *indices: int) -> History:
    route = Route(indices or (0, 2))
    rollout = Rollout("x0", route=route, prompt="p", output="y", reward=reward)
    return History(examples(1)[0], BOOK, rollout)


async def assign(world: World, seen: History, step: int = 0, **more: bool) -> Trace:
    draws = Randomness(0).at(step, seen.example.id)
    return await credit(world, **more).assign("psi", seen, draws)


def scripted(*replies: Scripted) -> World:
    lm = ScriptedLM().enqueue(*replies, role="critic")
    lm.reply_with(lambda request: attributed(instincts={0: "say more", 2: "say less"}))
    return World(config(critic={"trainable": False}), lm)


def test_the_clause_ends_the_system_turn_and_its_schema_names_the_active_instincts() -> None:
    system, user = CLAUSE.close([Message("system", "judge"), Message("user", "x")])
    assert system.content == f"judge\n\n{CLAUSE.text}" and user.content == "x"
    assert CLAUSE.close([Message("user", "x")])[0] == Message("system", CLAUSE.text)
    asked = CLAUSE.widen(schema_of(VerdictReply), (0, 2))
    fields = asked.body["properties"]
    assert fields["harmful"]["items"]["properties"]["index"]["enum"] == ["0", "2", "prompt"]
    assert asked.name == "VerdictReply" and list(fields)[:2] == ["score", "feedback"]


async def test_a_harmful_instinct_costs_the_whole_penalty_and_its_advice_is_to_mend_it() -> None:
    world = scripted(harm(("2", "it lies: 'no charge'")))
    trace = await assign(world, history(0.5))
    assert trace.penalty == 1.0
    assert trace.verdict is not None and dict(trace.verdict.harmful) == {
        "c2": "it lies: 'no charge'"
    }
    gradients = trace.gradients.codebook
    assert gradients[0] == "say more", "what is not harmful keeps its advice"
    assert gradients[2].startswith("The text is harmful: it lies. Take that out")
    assert "no charge" not in gradients[2] and "say less" not in gradients[2]
    assert world.tally[Incident.HARMFUL] == 1


async def test_what_is_not_asked_for_or_not_active_counts_for_nothing() -> None:
    world = scripted(harm(("2", "it lies")))
    trace = await assign(world, history(0.5), clause=False, orders=True)
    assert trace.penalty == pytest.approx(0.1) and trace.gradients.codebook[2] == "say less"
    assert trace.verdict is not None and trace.verdict.harmful == {}
    assert CLAUSE.text not in world.lm.history[0].messages[0].content
    trace = await assign(scripted(harm(("3", "it lies"), ("none", "x"))), history(0.5))
    assert trace.penalty == pytest.approx(0.1)


async def test_a_prompt_that_is_harmful_of_its_own_accord_is_laid_at_the_generator() -> None:
    trace = await assign(scripted(harm(("prompt", "it adds a threat"))), history(0.5))
    assert trace.penalty == 1.0 and "it adds a threat" in trace.gradients.generator
    assert trace.gradients.codebook == {0: "say more", 2: "say less"}


async def test_the_rules_see_a_harmful_instinct_without_a_model_and_behind_a_full_reward() -> None:
    world = scripted()
    trace = await assign(world, history(1.0, 0, 1), orders=True)
    assert trace.penalty == 1.0 and list(trace.gradients.codebook) == [1]
    assert world.lm.history == []


async def test_one_solved_example_in_ten_is_read_for_the_clause_alone() -> None:
    steps = 300
    world = scripted(*[harm(("2", "it lies"), feedback="never mind")] * steps)
    traces = [await assign(world, history(1.0), step) for step in range(steps)]
    read = [trace for trace in traces if trace.penalty]
    assert len(read) == len(world.lm.history) and 0.5 * LOOK < len(read) / steps < 1.6 * LOOK
    assert all(list(t.gradients.codebook) == [2] for t in read)
    assert {t.verdict.feedback for t in traces if t.verdict} == {""}


async def test_a_look_that_fails_or_finds_nothing_changes_nothing() -> None:
    step = next(
        n for n in range(99) if Randomness(0).at(n, "x0").generator("safety").random() < LOOK
    )
    plain = await assign(scripted(), history(1.0), clause=False)
    assert await assign(scripted("not JSON", "nor this"), history(1.0), step) == plain
    assert await assign(scripted(harm(feedback="too short")), history(1.0), step) == plain


async def test_where_texts_stay_as_they_are_harm_is_penalised_only() -> None:
    world = scripted(harm(("2", "it lies")))
    world.config = config(critic={"trainable": False}, update={"text_updates": False})
    trace = await assign(world, history(0.5))
    assert trace.penalty == 1.0 and trace.gradients.codebook == {}


async def test_what_is_called_harmful_is_rewritten_for_that_alone_and_remembered() -> None:
    bad = await assign(scripted(harm(("2", "it lies"))), history(0.5))
    good = replace(bad, verdict=None, gradients=replace(bad.gradients, codebook={2: "say less"}))
    theta = parameters(BOOK)
    pending = {p.variable: p for p in collect_gradients(theta, [good, bad, bad], config())}
    assert pending[2].origin == "safety" and len(pending[2].gradients) == 1
    assert pending[0].origin == "gradient"
    state = State.first(theta).advance(theta, [good, bad], 0.3).advance(theta, [bad], 0.3)
    assert state.harmful == ("rule two",)
