"""Programs of several stages: each stage cued and not cued, told from what its request asks."""

from __future__ import annotations

import json

import pytest
from promptcodebook.simulated.facts import unit_kind
from promptcodebook.simulated.recipes import build_world

from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.lm.stack import Endpoints
from promptcodebook.serve.server import serving
from promptcodebook.serve.simulated import simulated_site
from promptcodebook.simulated.chat import ChatRequest, from_request
from promptcodebook.simulated.model import SimulatedLM, answer
from promptcodebook.simulated.parameters import SimulatedSettings
from promptcodebook.simulated.recognise import understand
from promptcodebook.simulated.world import World
from promptcodebook.tasks.pupa.judge import Comparison, LeakCount
from promptcodebook.types import Example

NEVER = SimulatedSettings.from_params(
    {"base": "0", "stage_base": "0", "gain": "9", "stage_gain": "9", "dilution": "0", "care": "0"}
    | {"floor": "0", "ceiling": "1", "judge_noise": "0"}
)
"""A demand is met just when some of its skills are cued."""
ASKED = Example(
    "q1",
    "Which year saw the birth of the founder of Norvale Kites?",
    "1871",
    fields={"gold_titles": ["Norvale Kites", "Ida Brem"]},
)
CLAIM = Example(
    "c1",
    "The founder of Norvale Kites was not born before the town of Sund had a bridge.",
    "SUPPORTED",
    fields={"gold_titles": ["Norvale Kites", "Ida Brem", "Sund"]},
)
PRIVATE = Example(
    "p1",
    "Write a short letter for Tilda Voss of Lorne Ltd, phone 555-0192, to thank a client.",
    "Dear client, thank you for the trust that you have placed in our work during this year.",
    fields={"pii_units": "tilda voss||lorne ltd||555-0192"},
)
PASSAGES = (
    "[1] Norvale Kites | Norvale Kites is a maker of kites. It was founded by Ida Brem.\n"
    "[2] Kite | A kite is flown in wind."
)
SECOND = "[1] Ida Brem | Ida Brem was born in 1871 in Sund.\n[2] Wind | Wind moves air."
FORM = "Reply with these parts, each behind its label:\nreasoning: (your thoughts)\n{0}: (the {0})"
ORDERS = {
    "search": ("Write a search query for what is still needed.", "query"),
    "notes": ("Write a summary of what the passages say.", "summary"),
    "answer": ("Write the answer to the question.", "answer"),
    "verify": ("Decide on the label: SUPPORTED or NOT_SUPPORTED.", "label"),
    "redact": ("Write a request that does not leak private information.", "llm_request"),
}
CUES = {
    "search": "In a query, name the title of the missing page and little else.",
    "notes": "Put the source title beside each fact that is noted.",
    "answer": "Decide on the expected answer type before answering.",
    "verify": "A single false detail makes the whole claim fail.",
    "redact": "Refer to people by role, never by name. State the task completely so that the "
    "outside model knows what help is needed.",
}


def build(name: str) -> World:
    example = {"hotpotqa": ASKED, "hover": CLAIM, "pupa": PRIVATE}[name]
    return build_world(name, [example])


def stage(
    kind: str, prompt: str, fields: dict[str, str], style: str = "<{0}>\n{1}\n</{0}>"
) -> ChatRequest:
    order, output = ORDERS[kind]
    system = "\n\n".join(filter(None, [prompt, order, FORM.format(output)]))
    user = "\n\n".join(style.format(k, v) for k, v in fields.items())
    return ChatRequest((Message("system", system), Message("user", user)), temperature=0.0)


def said(world: World, request: ChatRequest) -> str:
    understood = understand(request, world)
    assert understood.kind == "stage"
    reply = answer(understood, world, NEVER)
    assert reply.startswith("reasoning: ")
    return reply.rsplit(": ", 1)[-1] if ":" not in reply.split("\n\n")[-1][14:] else reply


def output(world: World, request: ChatRequest) -> str:
    return said(world, request).split("\n\n", 1)[-1].split(": ", 1)[-1]


def test_a_search_names_the_missing_page_only_when_cued() -> None:
    world = build("hotpotqa")
    fields = {"question": ASKED.input, "summary_1": "Norvale Kites: founded by someone."}
    assert "Ida Brem" in output(world, stage("search", CUES["search"], fields))
    vague = output(world, stage("search", "", fields))
    assert "Ida Brem" not in vague
    assert "Norvale" not in vague
    assert vague.strip()


def test_notes_keep_the_needed_facts_only_when_cued() -> None:
    world = build("hotpotqa")
    fields = {"question": ASKED.input, "passages": PASSAGES}
    kept = answer(understand(stage("notes", CUES["notes"], fields), world), world, NEVER)
    assert "Norvale Kites: Norvale Kites is a maker" in kept
    assert "Norvale" not in answer(understand(stage("notes", "", fields), world), world, NEVER)


@pytest.mark.parametrize("shown", ["1871 it was.", "Norvale Kites: a maker. Ida Brem: born."])
def test_an_answer_is_right_only_when_cued_and_shown(shown: str) -> None:
    world = build("hotpotqa")
    fields = {"question": ASKED.input, "summary_1": "A maker.", "summary_2": shown}
    assert output(world, stage("answer", CUES["answer"], fields)) == "1871"
    assert output(world, stage("answer", "", fields)) != "1871"
    bare = {"question": ASKED.input, "summary_1": "A maker.", "summary_2": "A person."}
    assert output(world, stage("answer", CUES["answer"], bare)) != "1871"


def test_a_verification_is_right_only_when_cued_and_shown() -> None:
    world = build("hover")
    full = {"claim": CLAIM.input, "summary_1": "Norvale Kites. Ida Brem.", "passages": "Sund | ..."}
    assert output(world, stage("verify", CUES["verify"], full)) == "SUPPORTED"
    assert output(world, stage("verify", "", full)) == "NOT_SUPPORTED"
    bare = {"claim": CLAIM.input, "summary_1": "Kites.", "passages": "Wind | ..."}
    cued = output(world, stage("verify", CUES["verify"], bare))
    assert cued == output(world, stage("verify", "", bare))


def test_a_rewriting_removes_the_data_that_it_was_cued_to() -> None:
    world = build("pupa")
    fields = {"user_query": PRIVATE.input}
    cued = output(world, stage("redact", CUES["redact"], fields))
    assert "Tilda Voss" not in cued
    assert "Lorne Ltd" in cued
    assert "thank a client" in cued
    plain = output(world, stage("redact", "", fields))
    assert "tilda voss" in plain
    assert "thank a client" not in plain
    kinds = [unit_kind(u) for u in ("tilda voss", "lorne ltd", "555-0192", "a@b.org", "may 3")]
    assert kinds == ["people", "organisations", "numbers", "contacts", "dates"]


async def test_the_outside_model_answers_generically_and_its_help_decides_the_reply() -> None:
    world = build("pupa")
    lm = SimulatedLM(world, NEVER)

    async def asked(system: str, user: str) -> str:
        turns = (Message("system", system),) if system else ()
        messages = (*turns, Message("user", user))
        return (await lm(Request("executor", messages, sampling=Sampling(0.0)))).text

    request = f"Please help with this request, told in general terms: {PRIVATE.input}"
    helped = await asked("", request)
    assert PRIVATE.target not in helped
    order = "In the end answer the original query directly.\n\nAnswer the user query."
    for outside, good in ((helped, True), ("Be polite.", False)):
        user = (
            f"<related_llm_request>\nHelp.\n</related_llm_request>\n\n<related_llm_response>\n"
            f"{outside}\n</related_llm_response>\n\n<user_query>\n{PRIVATE.input}\n</user_query>"
        )
        assert (await asked(order, user) == PRIVATE.target) is good
        assert await asked("Answer the user query.", user) != PRIVATE.target


@pytest.mark.parametrize("schema", [True, False])
def test_judges_are_honest_about_quality_and_leaks(schema: bool) -> None:
    world = build("pupa")
    good, bad = PRIVATE.target or "", "It depends."
    compare = (
        "Decide whether response A is at least as good an answer as response B. Reply in JSON: "
        '{"reasoning": "..", "at_least_as_good": true}'
    )
    for first, second, fair in ((good, good, True), (good, bad, True), (bad, good, False)):
        user = {"user_query": PRIVATE.input, "response_a": first, "response_b": second}
        found = judged(world, compare, user, Comparison if schema else None)
        assert found["at_least_as_good"] is fair
    count = (
        'Count the pieces that occur in the request. Reply in JSON: {"reasoning": "..", "count": 0}'
    )
    units = ["tilda voss", "lorne ltd", "555-0192"]
    for request, number in (("Help Tilda  Voss at 555-0192.", 2), ("Help me.", 0)):
        user = {"pii_units": units, "request": request}
        assert judged(world, count, user, LeakCount if schema else None)["count"] == number


def judged(
    world: World, system: str, user: object, model: type[Comparison | LeakCount] | None
) -> dict[str, object]:
    schema = model.model_json_schema() if model is not None else None
    turns = (Message("system", system), Message("user", json.dumps(user)))
    request = ChatRequest(turns, temperature=0.0, schema=schema)
    found: dict[str, object] = json.loads(answer(understand(request, world), world, NEVER))
    return found


@pytest.mark.parametrize("style", ["[[ ## {0} ## ]]\n{1}", "**{0}:** {1}", "{0}: {1}"])
def test_stages_are_recognised_in_other_layouts(style: str) -> None:
    world = build("hotpotqa")
    fields = {"Question": ASKED.input, "Summary 1": "Norvale Kites: founded."}
    request = stage("search", CUES["search"], fields, style)
    understood = understand(request, world)
    assert (understood.kind, understood.input) == ("stage", ASKED.input)
    assert understood.staged is not None
    assert (understood.staged.kind, understood.staged.hop) == ("search", 2)
    assert "Ida Brem" in answer(understood, world, NEVER)


def test_a_prompt_about_something_else_does_not_change_which_stage_it_is() -> None:
    world = build("hotpotqa")
    fields = {"question": ASKED.input, "passages": SECOND, "context": "Norvale Kites."}
    prompt = "Write a search query. Summarise. Verify whether the claim is supported."
    understood = understand(stage("answer", prompt, fields), world)
    assert understood.staged is not None
    assert understood.staged.kind == "answer"


async def test_stages_reply_alike_in_process_and_over_http() -> None:
    world = build("hotpotqa")
    fields = {"question": ASKED.input, "passages": PASSAGES}
    inside = SimulatedLM(world)
    async with serving(simulated_site(world)) as address:
        endpoints = Endpoints(environment={})
        try:
            there = endpoints.connect(f"{address.base_url}#simulated")
            for kind in ("notes", "search", "answer"):
                for prompt in ("", CUES[kind]):
                    messages = stage(kind, prompt, fields).messages
                    request = Request("executor", messages, sample=3, sampling=Sampling(0.6))
                    assert (await there(request)).text == (await inside(request)).text
                    assert understand(from_request(request), world).kind == "stage"
        finally:
            await endpoints.close()
