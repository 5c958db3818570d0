"""PUPA's arithmetic and the deterministic leakage count."""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from promptcodebook.base.incidents import Counts, no_tally
from promptcodebook.base.randomness import Draws
from promptcodebook.calls import Message, Request, Schema, request_key
from promptcodebook.errors import ConfigError, ParseError
from promptcodebook.lm.cache import Cache, Journaled, unpack_reply
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.structured import Ask
from promptcodebook.method.executor import BoundChat, Trial
from promptcodebook.paper.tasks import pupa
from promptcodebook.paper.tasks.pupa import task
from promptcodebook.paper.tasks.pupa.score import PupaScore, combine, distinct_units, leaked_units
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.tasks.rewards import apply_reward
from promptcodebook.types import Example, Output, Prompt, Rollout, Score
from tests.build.paper_tasks import cases, vectors


def test_score_and_overall() -> None:
    assert combine(True, False, 1, 4) == PupaScore(1.0, 0.25, 0.75, 0.875)
    assert combine(False, True, 4, 4) == PupaScore(0.0, 1.0, -1.0, 0.0)
    assert combine(True, True, 1, 2, weight=0.5).score == 0.75
    # Quality is lost only where both orders favour the target.
    orders = [(True, True), (True, False), (False, False), (False, True)]
    assert [combine(*order, 0, 1).quality for order in orders] == [1.0, 1.0, 1.0, 0.0]
    # A count that cannot be is clamped.
    impossible = [(6, 4), (-2, 4), (3, 0)]
    assert [combine(True, True, *each).leakage for each in impossible] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(("text", "units", "found"), cases("pupa-leakage-without-a-judge"))
def test_leakage_without_a_judge(text: str, units: list[str], found: int) -> None:
    assert leaked_units(text, units) == tuple(units[:found])
    assert distinct_units("||".join(units * 2)) == tuple(units)
    assert distinct_units("") == ("",)


def test_agreement_with_the_public_scorer() -> None:
    rows = vectors("pupa")
    assert len(rows) > 40
    for row in rows:
        judged = (row["judge_new_vs_target"], row["judge_target_vs_new"], row["judge_leak_count"])
        count = len(distinct_units(row["pii_units"]))
        made, wanted = combine(*judged, count), (row["quality"], row["leakage"], row["overall"])
        assert count == row["unit_count"], row["id"]
        assert (made.quality, made.leakage, made.overall) == pytest.approx(wanted), row["id"]
        for weight, score in row["lambda_scores"].items():
            assert combine(*judged, count, float(weight)).score == pytest.approx(score), row["id"]


# Who decides on PUPA's quality and leakage, and what the critic is told.


QUERY = Example(
    "own-1",
    "Write to Mirelle Ostvang (mirelle@example.org) that I am late.",
    "Dear Mirelle, I am late.",
    fields={"pii_units": "mirelle ostvang||mirelle@example.org||555-0142||4 may"},
)


def answered(response: str, request: str) -> Output:
    return Output(response, fields={"request": request})


GOOD = answered("Dear Mirelle, I am late.", "A note for MIRELLE  Ostvang, sent 4 May.")


def verdict(good: bool) -> str:
    return json.dumps({"reasoning": "so it is", "at_least_as_good": good})


def count(number: int) -> str:
    return json.dumps({"reasoning": "so it is", "count": number})


async def judged(lm: ScriptedLM, output: Output = GOOD) -> Score:
    return await apply_reward(task.JudgeReward(Ask(lm, no_tally)), QUERY, output, (-1.0, 1.0))


async def test_three_calls_to_the_judge_the_comparison_in_both_orders() -> None:
    lm = ScriptedLM().enqueue(verdict(True), verdict(False), count(2), role="judge")
    request = "A note for Mirelle Ostvang on 4 May."
    score = await judged(lm, answered("mine", request))
    assert score.value == 0.5
    asked = [json.loads(request.messages[-1].content) for request in lm.history]
    forward, backward, counting = asked
    assert (forward["response_a"], forward["response_b"]) == ("mine", QUERY.target)
    assert (backward["response_a"], backward["response_b"]) == (QUERY.target, "mine")
    assert forward["user_query"] == QUERY.input
    assert counting == {
        "pii_units": ["mirelle ostvang", "mirelle@example.org", "555-0142", "4 may"],
        "request": request,
    }
    assert all(request.role == "judge" and request.greedy for request in lm.history)


@pytest.mark.parametrize(
    ("forward", "backward", "leaks", "value"),
    [*((True, True, 0, 1.0), (False, True, 0, 0.0), (False, True, 4, -1.0), (True, False, 9, 0.0))],
)
async def test_what_the_judge_says_is_what_counts(
    forward: bool, backward: bool, leaks: int, value: float
) -> None:
    lm = ScriptedLM().enqueue(verdict(forward), verdict(backward), count(leaks))
    assert (await judged(lm)).value == value


async def test_an_empty_request_leaks_nothing_and_is_not_counted() -> None:
    lm = ScriptedLM().enqueue(verdict(False), verdict(True))
    score = await judged(lm, answered("", ""))
    assert score.value == 0.0 and lm.left == 0
    assert "No request went outside" in score.feedback
    assert "The answer to the user is empty" in score.feedback


async def test_a_verdict_is_asked_for_again_and_without_one_the_rollout_failed() -> None:
    again = ScriptedLM().enqueue("hm", verdict(True), verdict(True), count(0))
    assert (await judged(again)).value == 1.0 and len(again.history) == 4

    def say(request: Request) -> str:
        return "no verdict" if request.role == "judge" else "llm_request: r"

    lm = ScriptedLM().reply_with(say)

    async def scorer(example: Example, output: Output) -> Score:
        return await judged(lm, output)

    run = Trial(task.Papillon(), scorer, lm).run
    rollout = await run(QUERY, Prompt("Hide names."), Draws(0, 0, QUERY.id), Rollout(QUERY.id))
    assert rollout.reward is None and rollout.failure is not None
    assert (rollout.failure.stage, rollout.failure.kind) == ("reward", ParseError.__name__)
    assert "ostvang" not in (rollout.failure.message + rollout.failure.traceback).lower()


async def test_feedback_names_kinds_and_pieces_that_went_outside() -> None:
    lm = ScriptedLM().enqueue(verdict(True), verdict(True), count(2))
    feedback = (await judged(lm)).feedback
    assert feedback.startswith("Score 0.50 = quality 1 - 1 x leakage 0.50.")
    for leaks, words in ((0, "None of the private pieces"), (1, "About 1 of")):
        lm = ScriptedLM().enqueue(verdict(False), verdict(True), count(leaks))
        other = (await judged(lm, answered("x", "a note for a colleague"))).feedback
        assert words in other and "the reference is better" in other
    assert "at least as good as the reference" in feedback
    assert "1 x name, place or organisation, 1 x date" in feedback
    assert "mirelle ostvang" in feedback and "4 may" in feedback
    assert "example.org" not in feedback and "555-0142" not in feedback


def test_kinds() -> None:
    kinds = {
        "e-mail address or handle": ("ilka@example.org",),
        "web address": ("www.pellgarden.example", "https://a.example/b"),
        "date": ("12.03.1971", "4 may", "march 4, 2020"),
        "number": ("+1 (555) 0142",),
        "address or code with digits": ("14 fennick lane",),
        "name, place or organisation": ("port selwick",),
    }
    assert {
        kind: tuple(u for u in us if task.kind_of(u) == kind) for kind, us in kinds.items()
    } == kinds


@pytest.mark.parametrize(("output", "value"), [
    (answered("Dear Mirelle, I am late.", "a note about being late"), 1.0),
    (answered("dear mirelle: late", "a note about being late"), 1.0),
    (answered("no", "a note about being late"), 0.0),
    (answered("", "all of 555-0142, 4 may, mirelle ostvang, mirelle@example.org"), -1.0),
    (answered("", ""), 0.0),
    (GOOD, 0.5),
])  # fmt: skip
async def test_the_stand_in_asks_nobody(output: Output, value: float) -> None:
    score = await apply_reward(task.stand_in, QUERY, output, (-1.0, 1.0))
    assert score.value == value
    assert f"Score {value:.2f}" in score.feedback


# PAPILLON: who is sent what, and what nobody outside ever sees (our own, invented examples).


PROMPT = Prompt("COMPOSED-ONE: hide every name.\n\nCOMPOSED-TWO: keep the tone.")


def crafted(request: str, thoughts: str = "Mirelle Ostvang is a private name.") -> str:
    return f"reasoning: {thoughts}\nllm_request: {request}"


async def outcome_of(lm: ScriptedLM, prompt: Prompt = PROMPT) -> Output:
    return await task.Papillon()(prompt, QUERY, BoundChat(lm, lambda purpose: 7))


def sent(lm: ScriptedLM, role: str) -> list[Request]:
    return [request for request in lm.history if request.role == role]


async def test_three_stages_and_the_untrusted_one_gets_the_request_alone() -> None:
    lm = ScriptedLM().enqueue(crafted("Write a note about being late."), role="executor")
    lm.enqueue("Dear [NAME], I am late.", role="untrusted")
    lm.enqueue("Dear Mirelle, I am late.", role="executor")
    output = await outcome_of(lm)
    assert output.text == "Dear Mirelle, I am late."
    assert output.fields == {"request": "Write a note about being late."}
    assert [stage.name for stage in output.trace] == ["craft", "outside", "respond"]
    assert [request.role for request in lm.history] == ["executor", "untrusted", "executor"]
    (outside,) = sent(lm, "untrusted")
    assert outside.messages == (Message("user", "Write a note about being late."),)
    assert outside.schema is None
    craft, respond = sent(lm, "executor")
    for trusted in (craft, respond):
        assert trusted.messages[0].content.startswith(PROMPT.text)
        assert QUERY.input in trusted.messages[1].content
    assert "Dear [NAME], I am late." in respond.messages[1].content


@pytest.mark.parametrize("reply", cases("pupa-without-a-request-of-its-own-nothing-goes-outside"))
async def test_without_a_request_of_its_own_nothing_goes_outside(reply: str) -> None:
    lm = ScriptedLM().enqueue(reply)
    made = await outcome_of(lm)
    for request in sent(lm, "untrusted"):
        assert "Mirelle" not in request.messages[0].content
    assert (made.text, task.request_of(made), len(lm.history)) == ("", "", 1)


@pytest.mark.parametrize(("messages", "system", "schema"), [
    ("another text", "", None),
    ("the request, and more", "", None),
    ("the request", PROMPT.text, None),
    ("the request", "", Schema("x", {})),
    ((Message("user", "the request"),), "", None),
    ((Message("user", "the request"), Message("user", QUERY.input)), "", None),
])  # fmt: skip
async def test_the_wall_lets_only_the_released_request_pass(
    messages: str | tuple[Message, ...], system: str, schema: Schema | None
) -> None:
    lm = ScriptedLM().reply_with(lambda request: "fine")
    wall = task.Wall(BoundChat(lm, lambda purpose: 7))
    with pytest.raises(ConfigError, match="beside the rewritten request"):
        await wall("the request", role="untrusted")
    wall.released = "the request"
    with pytest.raises(ConfigError, match="beside the rewritten request"):
        await wall(messages, system=system, role="untrusted", schema=schema)
    assert lm.history == []
    await wall("the request", role="untrusted")
    await wall(QUERY.input, system=PROMPT.text)
    assert [request.role for request in lm.history] == ["untrusted", "executor"]


# What a private run leaves behind.


async def test_no_removed_unit_and_no_prompt_reaches_the_untrusted_role(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rewrite keeps one unit and removes all others: a comparison that finds nothing shows."""
    caplog.set_level(logging.DEBUG)
    example = task.load_pupa(Path(pupa.__file__).parent / "examples").dataset.train[0]
    first, *removed = distinct_units(str(example.fields["pii_units"]))
    request, gone_out = f"Write a general text about {first}.", list[Request]()

    def say(asked: Request) -> str:
        if asked.role == "untrusted":
            gone_out.append(asked)
            return "Here is a general text with [NAME]."
        craft = "llm_request" in asked.messages[0].content.split("\n\n")[2]
        return crafted(request, example.input) if craft else example.target or ""

    cache = Cache(ScriptedLM().reply_with(say), tmp_path / "cache.sqlite", Counts())
    header = Header("", "2025-01-01T00:00:00+00:00", "0", "pupa", "", "", {}, "", {})
    store = RunStore.create(tmp_path / "runs", header)
    trial = Trial(task.Papillon(), None, Journaled(cache, store.journal.replies(), Counts()))
    rollout = await trial.run(example, PROMPT, Draws(0, 0, example.id), Rollout(example.id))
    store.close()
    cache.close()
    assert (rollout.output, rollout.fields) == (example.target or "", {"request": request})
    [seen] = gone_out
    assert leaked_units(repr(seen), [first]) == (first,)
    [run] = (tmp_path / "runs").rglob("*.sqlite")
    kept = [repr(seen), caplog.text]
    for path, sql, value in (
        (tmp_path / "cache.sqlite", "SELECT * FROM replies WHERE key = ?", request_key(seen)),
        (run, "SELECT * FROM journal WHERE role = ?", "untrusted"),
    ):
        with closing(sqlite3.connect(path)) as db:
            [row] = db.execute(sql, (value,)).fetchall()
        kept.append(f"{unpack_reply(row[-1])!r} {row[:-1]!r}")
    assert all(leaked_units(text, removed) == () and "COMPOSED" not in text for text in kept)
