"""PUPA: its rows, its two models and its reward, and whole runs on it."""

import asyncio
import html
import json
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promptcodebook.assemble import Plan, Sources, plan_run, simulated_model
from promptcodebook.base.incidents import Counts, no_tally
from promptcodebook.base.randomness import Draws
from promptcodebook.calls import Chat, Message, Reply, Request, Usage, request_key
from promptcodebook.config import load_config
from promptcodebook.doctor.checkup import checkup
from promptcodebook.errors import ParseError
from promptcodebook.lm.cache import Cache, Journaled, unpack_reply
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.spec import parse_spec
from promptcodebook.lm.stack import StackResources
from promptcodebook.lm.structured import Ask
from promptcodebook.method.executor import BoundChat, Trial, roll_out
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.paper.tasks import pupa
from promptcodebook.paper.tasks.pupa import task
from promptcodebook.paper.tasks.pupa.score import PupaScore, combine, distinct_units, leaked_units
from promptcodebook.paper.tasks.pupa.task import NoUnitCheck, load_pupa, units_of
from promptcodebook.report.page import render_report
from promptcodebook.run.opening import Where, open_run
from promptcodebook.run.optimize import Run, finish
from promptcodebook.store.events import Ended, Stepped
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.tasks.rewards import apply_reward
from promptcodebook.tasks.task import asks_nobody, load_task
from promptcodebook.types import Example, Output, Prompt, Rewrite, Rollout, Score
from tests.build.cli import Result, pco, served
from tests.build.paper_tasks import cases, vectors
from tests.build.server import Server


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
    kinds: dict[str, list[str]] = cases("pupa-kinds")
    assert {kind: [u for u in us if task.kind_of(u) == kind] for kind, us in kinds.items()} == kinds


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


# Loading PUPA, its place in a session, and the advice about the untrusted endpoint.


def test_what_ships() -> None:
    task = load_task("pupa")
    assert task.reward_range == (-1.0, 1.0)
    assert "quality - 1 x leakage" in task.description and "--data" in task.description
    for _, examples in task.dataset.items():
        for example in examples:
            units = units_of(example)
            # A unit that the query does not hold could neither leak nor be removed.
            assert units and leaked_units(example.input, units) == units


def test_doctor_warns_of_a_shared_endpoint_even_where_none_is_named(tmp_path: Path) -> None:
    def endpoint(**settings: Any) -> list[tuple[str, str]]:
        config = load_config({"lm": "simulated", "cache": False, **settings})

        async def looked() -> list[tuple[str, str]]:
            found = [s async for s in checkup(config, tmp_path, tmp_path / "runs")]
            return [(f.level, f.what) for s in found if s.title == "untrusted" for f in s.findings]

        return asyncio.run(looked())

    [(level, what)] = endpoint(task="pupa")
    assert level == "warn" and "executor" in what
    own = {"untrusted": {"model": "simulated?world=2"}}
    assert [level for level, _ in endpoint(task="pupa", roles=own)] == ["warn"]
    apart = {"untrusted": {"model": "http://127.0.0.1:9/v1#m"}}
    assert [level for level, _ in endpoint(task="pupa", roles=apart, retries=0)] == ["ok"]
    assert endpoint(task="constraints") == []


# A whole run of PUPA: the judge is asked, and nothing private goes outside or into a policy.


LEAKED = "Hide names such as Mirelle Ostvang."
OUTSIDE = "Write a general text of a few sentences."
VERDICT = json.dumps({"reasoning": "so", "at_least_as_good": True, "count": 1})


class Recorded:
    """The simulated model, with the roles that matter here played by the script."""

    def __init__(self) -> None:
        plan = plan_run(load_config({"task": "pupa", "lm": "simulated"}))
        self._rest = simulated_model("pupa", plan.dataset, parse_spec("simulated"))
        self.asked: list[Request] = []

    async def __call__(self, request: Request) -> Reply:
        self.asked.append(request)
        match request.role:
            case "executor":
                text = f"reasoning: all is private\nllm_request: {OUTSIDE}"
            case "untrusted":
                text = "A general text for [NAME]."
            case "judge":
                text = VERDICT
            case "updater":
                text = LEAKED
            case _:
                return await self._rest(request)
        return Reply(text, usage=Usage(1, 5, 5))

    def of(self, role: str) -> list[Request]:
        return [request for request in self.asked if request.role == role]


async def ran(lm: Recorded, folder: Path, **settings: str) -> Run:
    update = {"epochs": 1, "batch_size": 5}
    config = load_config({"preset": "quick", "task": "pupa", "update": update, **settings})
    return await finish(open_run(config, Sources(lm=lm), Where(folder)))


def reported(run: Run) -> str:
    known = {e.id: e for _, es in load_task("pupa").dataset.items() for e in es}
    with closing(RunStore.open(run.path)) as store:
        return html.unescape(render_report(store, known))


async def test_a_run_asks_the_judge_and_keeps_private_pieces_home(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    lm = Recorded()
    run = await ran(lm, tmp_path)
    assert run.ended == "finished"
    assert lm.of("judge") and lm.of("untrusted")
    units = {u for _, es in load_task("pupa").dataset.items() for e in es for u in units_of(e)}
    for request in lm.of("untrusted"):
        assert [m.content for m in request.messages] == [OUTSIDE]
    assert leaked_units(caplog.text, units) == ()
    assert leaked_units((run.path / "policy.json").read_text("utf-8"), units) == ()
    with closing(RunStore.open(run.path)) as store:
        rewrites = [rewrite for step in store.steps() for rewrite in step.rewrites]
    assert rewrites and not any(rewrite.kept for rewrite in rewrites)
    assert {r.reason for r in rewrites if r.after == LEAKED} == {
        "it holds a private piece of training example pupa-own-00"
    }
    # Our own examples are not private: a report shows them.
    shown = reported(run)
    assert leaked_units(shown, units) != () and OUTSIDE in shown and LEAKED in shown


async def test_a_report_hides_a_data_folder_and_the_stand_in_asks_no_judge(
    tmp_path: Path,
) -> None:
    given, lm = tmp_path / "given", Recorded()
    shutil.copytree(Path(pupa.__file__).parent / "examples", given)
    run = await ran(lm, tmp_path / "theirs", data_dir=str(given), reward="stand-in")
    assert run.ended == "finished" and lm.of("judge") == [] and lm.of("untrusted")
    hidden = reported(run)
    units = {u for e in load_task("pupa").dataset.train for u in units_of(e)}
    assert leaked_units(hidden, units) == () and OUTSIDE not in hidden
    assert "stage craft" in hidden and "(private: " in hidden and "it holds a private" in hidden


# What a rewrite must not take over from the training queries.


CHECK = NoUnitCheck(
    [
        Example("a", "q", fields={"pii_units": "mirelle ostvang||al||fennick lane 14"}),
        Example("b", "q", fields={"pii_units": "mari||"}),
    ]
)


@pytest.mark.parametrize(("text", "before", "whose"), cases("pupa-private-pieces"))
def test_a_private_piece_is_refused_by_its_owner(text: str, before: str, whose: str) -> None:
    refusal = CHECK("c3", text, before, ())
    assert (refusal is None) == (whose == "")
    if refusal is not None:
        assert whose in refusal
        assert not any(word in refusal.lower() for word in ("mirelle", "fennick", "mari"))


# What a run on private rows says when things go wrong: never a word of a row.


NAME = "Quillfeather"


def _row(index: int) -> dict[str, str]:
    return {
        "id": f"own-{index}",
        "user_query": f"Write a note from Ottokar {NAME} about matter {index}.",
        "target_response": f"Dear reader, {index} is my matter.",
        "pii_units": f"ottokar {NAME.lower()}",
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "rows"
    folder.mkdir()
    for at, split in enumerate(("train", "val", "test")):
        rows = [json.dumps(_row(10 * at + i)) for i in range(6)]
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


async def quotes(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Refuses, and says what."""
    text = " ".join(str(m["content"]) for m in body["messages"])
    return web.json_response({"error": {"message": f"cannot read: {text[-250:]}"}}, status=400)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    made.default = quotes
    with served(made):
        yield made


def _train(cwd: Path, data: Path, server: Server) -> Result:
    return pco("train", "--task", "pupa", "--data", str(data), "--lm", server.spec, cwd=cwd)


def test_a_server_that_quotes_the_request_reaches_no_screen_log_or_report(
    tmp_path: Path, data: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    broken = _train(tmp_path, data, server)
    assert broken.code == 1 and "answered 400: withheld" in broken.err
    assert any(NAME in str(body) for body in server.bodies), "the request did hold the name"
    [run] = (tmp_path / "runs").iterdir()
    ref = ("eval", run.name, "--json")
    for args in (("runs", "show", run.name), ("runs", "show", run.name, "--json"), ref):
        result = pco(*args, cwd=tmp_path)
        assert NAME not in result.out + result.err, args
    assert NAME not in broken.out + broken.err + caplog.text
    page = tmp_path / "page.html"
    assert pco("report", run.name, "-o", str(page), cwd=tmp_path).code == 0
    assert NAME not in page.read_text("utf-8")
    given = ("--task", "pupa", "--data", str(data), "--lm", server.spec)
    doctor = pco("doctor", *given, cwd=tmp_path)
    assert NAME not in doctor.out + doctor.err
    with closing(RunStore.open(run)) as store:
        events = list(store.events(full=True))
    endings = [event for event in events if isinstance(event, Ended)]
    failures = [t.rollout.failure for event in events for t in getattr(event, "traces", ())]
    assert endings and failures
    assert NAME not in repr(endings) + repr(failures)


def test_of_public_data_the_servers_words_are_told(tmp_path: Path, server: Server) -> None:
    """Else the tests above would prove nothing."""
    stderr = pco("train", "--task", "pupa", "--lm", server.spec, cwd=tmp_path).err
    assert "cannot read: " in stderr and "withheld" not in stderr


class Program:
    name = "program"
    stages: tuple[str, ...] = ()
    roles: frozenset[Any] = frozenset()

    def __init__(self, raises: bool) -> None:
        self._raises = raises

    async def __call__(self, prompt: Prompt, example: Example, lm: Chat) -> Output:
        if self._raises:
            raise KeyError(example.input)
        return Output("an answer")


def _reward(example: Example, output: str) -> float:
    raise ValueError(example.input)


@pytest.mark.parametrize(("raises", "reward", "stage", "kind"), [
    (True, _reward, "execute", "KeyError"),
    (False, _reward, "reward", "ValueError"),
    (False, lambda e, y: e.input, "reward", "RewardError"),
])  # fmt: skip
async def test_code_that_quotes_a_row_when_it_fails_is_told_by_its_kind(
    data: Path, raises: bool, reward: Any, stage: str, kind: str
) -> None:
    plan = plan_run(load_config({"task": "pupa", "data_dir": str(data), "lm": "own"}), Sources())
    task = replace(load_pupa(data), program=Program(raises), reward=asks_nobody(reward))
    assert task.private
    own = StackResources(client=ScriptedLM().reply_with(lambda request: "fine"))
    assembled = Plan(plan.config, task, plan.templates).connect(own)
    example = assembled.dataset.train[0]
    draws = assembled.config.randomness.at(0, example.id)
    rollout = await roll_out(FixedPrompt("p"), assembled.trial(), example, draws)
    assert rollout.failure is not None and rollout.failure.stage == stage
    assert kind in rollout.failure.message
    assert NAME not in repr(rollout.failure)


def test_a_refusal_that_quotes_is_told_by_its_kind(tmp_path: Path, data: Path) -> None:
    """In the log of rewrites as in the report."""
    typed = ("--task", "pupa", "--data", str(data), "--lm", "simulated", "--preset", "quick")
    assert pco("train", *typed, "--set", "update.epochs=2", cwd=tmp_path).code == 0
    [run] = (tmp_path / "runs").iterdir()
    store = RunStore.open(run, write=True)
    step = store.step_at(store.outline().step)
    texts = ("Be brief.", f"Greet {NAME}.", f"greet {NAME}")
    rewrite = Rewrite(1, *texts, False, f'it copies "{NAME}"')
    quoted = replace(rewrite, reason=f"it contains an address: {NAME}.example")
    store.append(Stepped(replace(step, index=step.index + 1, rewrites=(rewrite, quoted))))
    store.close()
    for args in (("registry", "log", run.name), ("registry", "log", run.name, "--json")):
        result = pco(*args, cwd=tmp_path)
        assert "it copies" in result.out and "it contains an address" in result.out
        assert NAME not in result.out
    page = tmp_path / "page.html"
    assert pco("report", run.name, "-o", str(page), cwd=tmp_path).code == 0
    assert NAME not in page.read_text("utf-8")
