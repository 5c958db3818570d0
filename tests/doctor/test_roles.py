"""Which roles a model can carry, as the rehearsal finds out by asking it."""

from __future__ import annotations

import json

from promptcodebook.assemble import Sources, plan_run
from promptcodebook.calls import Request
from promptcodebook.config import Config
from promptcodebook.doctor.probe import Section
from promptcodebook.doctor.roles import rehearse
from promptcodebook.lm.scripted import ScriptedLM

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
        case _:
            return "no"


async def rehearsed(model: ScriptedLM, **settings: object) -> dict[str, Section]:
    config = Config.model_validate({"task": "constraints", **settings})
    plan = plan_run(config, Sources(lm=model)).require_training()
    return {section.title: section for section in await rehearse(plan)}


async def test_an_able_model_carries_every_role() -> None:
    found = (await rehearsed(ScriptedLM().reply_with(able)))[TITLE]
    levels = {each.name: each.level for each in found.findings}
    assert levels == dict.fromkeys(
        ("role encoder", "role generator", "role critic", "role attribution", "role updater"), "ok"
    ), found


async def test_a_weak_one_is_told_role_by_role_and_what_to_do() -> None:
    found = (await rehearsed(ScriptedLM().reply_with(weak)))[TITLE]
    said = {each.name: each.what for each in found.findings}
    assert "right for 1 of 4 plain inputs" in said["role encoder"]
    assert "keeps 0 of 4 instincts" in said["role generator"]
    assert "repeats the words it was asked with" in said["role critic"]
    assert "blames no part" in said["role attribution"]
    assert "its rewrite is refused" in said["role updater"]
    assert found.ok, "a weak model is no reason not to run"
    step = found["roles"].next_step
    assert "--preset small" in step
    assert "--set roles.critic.model=SPEC" in step


async def test_where_only_a_teacher_is_weak_a_stronger_model_is_named_first() -> None:
    def poor_critic(request: Request) -> str:
        return weak(request) if request.role == "critic" else able(request)

    found = (await rehearsed(ScriptedLM().reply_with(poor_critic)))[TITLE]
    assert found["role encoder"].level == found["role updater"].level == "ok"
    assert found["roles"].next_step.startswith("name a stronger model: --set roles.critic.model=")


async def test_roles_that_no_run_asks_are_not_weighed() -> None:
    model = ScriptedLM().reply_with(weak)
    found = await rehearsed(
        model, compose="verbatim", encoder={"mode": "none"}, update={"text_updates": False}
    )
    assert TITLE not in found
    assert "updater" not in {each.role for each in model.history}
