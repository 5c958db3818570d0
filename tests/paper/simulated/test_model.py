"""The simulated model: needed orders help, orders out of place do harm, and words weigh."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.assemble import Sources, assemble
from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.config import load_config
from promptcodebook.errors import ConfigError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import roll_out
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.method.templates import load_templates
from promptcodebook.method.update import PendingUpdate
from promptcodebook.paper.simulated.executor import chance_of, obey, wrong_answer
from promptcodebook.paper.simulated.mind import RecognisedRequest, from_request, understand
from promptcodebook.paper.simulated.model import FaultPlan, SimulatedLM, answer
from promptcodebook.paper.simulated.orders import Skills, content_stems, read_skills
from promptcodebook.paper.simulated.world import FAULTS, Latency, SimulatedSettings, World
from promptcodebook.paper.tasks.constraints.checks import KINDS
from promptcodebook.paper.tasks.constraints.task import constraints_of, reward
from promptcodebook.tasks.task import load_task
from promptcodebook.types import Example, Variable
from tests.build import simulated
from tests.build.method import World as Made
from tests.build.method import config
from tests.build.paper_tasks import cases
from tests.build.simulated import (
    _BOOK,
    BULLETS,
    CASES,
    EXACT,
    ask,
    examples,
    failing,
    filled,
    json_of,
    paraphrased,
    template_values,
    verdict,
    with_kind,
    world,
)

SETTINGS = SimulatedSettings()


def all_advice() -> str:
    """Every lacking skill's order under its own condition, in one prompt."""
    return "\n".join(world.skills.say(k, k) for k in sorted(world.lacking))


def request(prompt: str, example: Example, temperature: float = 0.0, sample: int = 0) -> Request:
    system = (Message("system", prompt),) if prompt else ()
    messages = (*system, Message("user", example.input))
    return Request("executor", messages, sample=sample, sampling=Sampling(temperature))


def mean(
    examples: list[Example],
    prompt: str | Callable[[Example], str],
    settings: SimulatedSettings = SETTINGS,
) -> float:
    total = 0.0
    for example in examples:
        text = prompt if isinstance(prompt, str) else prompt(example)
        asked = understand(from_request(request(text, example)), world)
        total += reward(example, answer(asked, world, settings)).value
    return total / len(examples)


def chance(text: str, prompt: str, kind: str, **more: float) -> float:
    """The chance that a demand of this kind is met under a prompt."""
    skill = world.skills.place(kind)
    assert skill is not None
    problem = world.problem(text)
    settings = replace(SETTINGS, **more)
    return chance_of(frozenset((skill,)), problem.needs, obey(world, problem, prompt), settings)


def oracle(example: Example) -> str:
    """Just the orders that an input needs."""
    return " ".join(world.skills.say(k, None) for k in sorted(world.problem(example.input).needs))


def test_prompts_rank_as_the_documentation_says() -> None:
    nothing = mean(examples, "")
    best = mean(examples, oracle)
    free = mean(examples, all_advice(), replace(SETTINGS, load=0.0))
    assert 0.4 < nothing < 0.65
    assert best > 0.9
    assert nothing < mean(examples, all_advice()) < best - 0.05
    assert abs(free - best) < 0.05  # conditional orders do no harm where they do not apply


def test_contradictory_orders_both_fail() -> None:
    both = "Keep all of the text in lower case. Set all of the text in capital letters."
    lower, upper = "Use only lower case letters.", "Write everything in capital letters."
    for asked, kind in ((lower, "lowercase"), (upper, "uppercase")):
        assert chance(asked, both, kind) == SETTINGS.floor
        assert chance(asked, both.split(". ")[kind == "uppercase"], kind) > 0.9


def test_orders_without_conditions_do_harm_cue_words_nothing_and_words_weigh() -> None:
    orders = " ".join(world.skills.say(k, None) for k in sorted(world.lacking))
    free = replace(SETTINGS, load=0.0)
    assert mean(examples, orders, free) < mean(examples, "", free) - 0.1
    cues = "words limit trim count bullet dash title brackets sentences paragraph quote digits"
    free = replace(SETTINGS, load=0.0, shared=1.0)
    assert mean(examples, cues, free) == mean(examples, "", free)
    asked = "Say it in exactly 4 sentences."
    weights = [chance(asked, "so " * n, "sentences") for n in (10, 60, 400, 800)]
    assert weights[0] == weights[1] > weights[2] > weights[3]


def test_draws_are_shared_between_prompts_in_a_stated_part() -> None:
    """A word that says nothing changes some outcomes, and none where all draws are shared."""
    half, all_ = replace(SETTINGS, load=0.0), replace(SETTINGS, load=0.0, shared=1.0)

    def rewards(prompt: str, settings: SimulatedSettings) -> list[float]:
        return [mean([e], prompt, settings) for e in examples]

    assert rewards("Go.", all_) == rewards("Start.", all_)
    differ = [a != b for a, b in zip(rewards("Go.", half), rewards("Start.", half), strict=True)]
    assert 0.1 < sum(differ) / len(differ) < 0.7


def test_a_sample_seed_counts_only_at_temperature() -> None:
    def reply(example: Example, temperature: float, sample: int) -> str:
        asked = understand(from_request(request("Go.", example, temperature, sample)), world)
        return answer(asked, world, SETTINGS)

    for example in examples[:20]:
        assert reply(example, 0.0, 1) == reply(example, 0.0, 2)
        assert reply(example, 0.6, 1) == reply(example, 0.6, 1)
        assert reply(example, 0.6, 5) == reply(example, 0.6, 5 + 2**31)
    assert len({reply(examples[2], 0.6, seed) for seed in range(12)}) > 3


async def test_a_sample_without_a_seed_is_fresh_and_a_reply_is_cut_at_the_cap() -> None:
    lm = SimulatedLM(world)
    asked = request("Go.", examples[2], 0.6)
    assert len({(await lm.reply(asked, seeded=False)).text for _ in range(12)}) > 3
    assert len({(await lm.reply(asked)).text for _ in range(12)}) == 1
    asked = request("Go.", examples[0])
    capped = replace(asked, sampling=Sampling(temperature=0.0, max_tokens=5))
    whole, cut = await lm(asked), await lm(capped)
    assert whole.finish == "stop"
    assert (cut.finish, cut.usage.completion_tokens) == ("length", 5)
    assert whole.text.startswith(cut.text)


# Programs of several stages, and questions of other forms: right where all outcomes are.


def always(chance: int) -> str:
    return f"able={chance}&unable={chance}&floor={chance}&ceiling={chance}&load=0&judge_noise=0"


@pytest.mark.parametrize(("task", "digests"), cases("stages-digests"))
async def test_what_a_stage_says_follows_its_outcome(task: str, digests: list[str]) -> None:
    rewards: list[list[float | None]] = []
    found: list[str] = []
    for params in (always(1), always(0), "world=1"):
        config = load_config({"task": task, "lm": f"simulated?{params}", "cache": False})
        assembled = assemble(config, Sources())
        trial, outputs = assembled.trial(), list[str]()
        rewards.append([])
        for example in assembled.dataset.test[:6]:
            draws = config.randomness.at(0, example.id)
            rollout = await roll_out(FixedPrompt("Be exact. " * 60), trial, example, draws)
            assert rollout.failure is None
            rewards[-1].append(rollout.reward)
            outputs.append(rollout.output)
        await assembled.models.close()
        found.append(hashlib.sha256("\n".join(outputs).encode()).hexdigest()[:12])
    if task != "ifbench":  # few of its constraints are about a skill
        assert set(rewards[0]) == {1.0} and 1.0 not in rewards[1]
    assert found == digests, "figures depend on these texts"


@pytest.mark.parametrize("gold", ["no", "Both", "not stated", "unknown"])
def test_a_wrong_answer_is_never_the_right_one(gold: str) -> None:
    answers = {wrong_answer(gold, f"is it so, {k}?", k) for k in range(40)}
    assert len(answers) > 2 and gold.lower() not in answers


# A request's kind follows from its words: ours, the paper's, and templates that are not ours.


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["kind"])
def test_paraphrased_templates_are_recognised(case: Mapping[str, str]) -> None:
    for example in examples[:25]:
        understood = understand(paraphrased(case, example), world)
        assert understood.kind == case["kind"], example.input
        if "{input}" in case["user"]:
            assert understood.input == example.input


EXPECTED = cases("recognise-kinds")


@pytest.mark.parametrize("templates", ["default", "paper"])
@pytest.mark.parametrize("name", list(EXPECTED))
def test_our_templates_and_the_papers_are_recognised(templates: str, name: str) -> None:
    for example in examples[:25]:
        messages = load_templates(templates)[name].fill(template_values(example, templates))
        understood = understand(RecognisedRequest(messages), world)
        assert understood.kind == EXPECTED[name], example.input


@pytest.mark.parametrize("variable", ["theta", "phi", "psi"])
def test_a_directive_to_be_rewritten_is_not_taken_for_an_order(variable: str) -> None:
    texts = load_templates("default")
    values = {**template_values(examples[0], "default"), "text": texts.text(variable)}
    understood = understand(RecognisedRequest(texts["updater"].fill(values)), world)
    assert understood.kind == "improve"


async def test_a_rewrite_is_recognised_among_the_others_and_after_a_refusal() -> None:
    """What the updater asks, and asks once more, is read as text and feedback alike."""

    def refuse(variable: Variable, text: str, before: str, others: Sequence[str]) -> str:
        return f"72 words, over the cap of 25: {text}"

    made = Made(config(), ScriptedLM().enqueue("too long", "too long"), check=refuse)
    feedback = "use bullet points on lines of their own"
    pending = PendingUpdate(0, _BOOK[0], (feedback, "be brief"), tuple(_BOOK[1:]))
    await made.updater.rewrite_all([pending], 0)
    assert len(made.lm.history) == 2
    for request in made.lm.history:
        understood = understand(from_request(request), world)
        assert understood.kind == "improve"
        assert understood.reading.sections["text"] == _BOOK[0]
        assert understood.reading.sections["feedback"] == f"- {feedback}\n- be brief"


def test_a_second_try_is_read_as_the_request_it_repeats() -> None:
    messages = load_templates("default")["encoder"].fill(template_values(examples[3], "default"))
    again = Message("user", "Your reply cannot be used: 2 of 3 indices. Answer again, in JSON.")
    retried = RecognisedRequest((*messages, Message("assistant", "[1, 2]"), again))
    understood = understand(retried, world)
    assert (understood.kind, understood.input) == ("route", examples[3].input)
    assert understood.request.digest != RecognisedRequest(messages).digest


# The learning roles, each through its request and its reply as any caller sees them.


def test_the_critic_and_all_that_follows_never_see_what_the_executor_lacks() -> None:
    here = World("constraints", simulated.examples, SimulatedSettings(world=1))
    there = World("constraints", simulated.examples, SimulatedSettings(world=2))
    assert here.lacking != there.lacking
    default = SimulatedSettings()
    for example in simulated.examples[:40]:
        found = simulated.verdict(example, default, world=here)
        assert found == simulated.verdict(example, default, world=there)
        for name in ("attribution", "updater", "adversary", "encoder", "generator"):
            values = {"verdict": found, "gradient": found, "reference": simulated.failing(example)}
            messages = simulated.filled(example, name, **values)
            assert simulated.ask(messages, default, world=here) == simulated.ask(
                messages, default, world=there
            ), name


def test_another_optimizers_reflection_is_the_same_function() -> None:
    """Raw reports instead of advice, fences asked for: the advice must be found, and can be."""
    example = simulated.with_kind(simulated.examples, "bullets")
    text = (
        "An assistant works under this instruction:\n```\nBe nice.\n```\nHere are runs with "
        f"feedback on each:\n```\n# Example 1\n{reward(example, 'hello').feedback}\n```\n"
        "Write a new instruction for the assistant, within ``` marks."
    )
    found = simulated.ask((Message("user", text),))
    assert found.startswith("```\nBe nice.")
    assert simulated.world.skills.orders(found.strip("`\n"))
    wrong = simulated.ask((Message("user", text),), replace(simulated.EXACT, capacity=0.0))
    assert wrong != found


def test_what_every_role_says_stays_as_it_is() -> None:
    """Requests may be worded in any way: each role uses, places and loses advice as before."""
    wild = SimulatedSettings(capacity=0.5, attribution_error=0.5, generator_drop=0.5, judge_noise=1)
    found: dict[str, str] = {}
    for settings in (simulated.EXACT, SimulatedSettings(), wild):
        for example in simulated.examples[:25]:
            for case in simulated.CASES:
                asked = understand(simulated.paraphrased(case, example, 0.7), simulated.world)
                reply = answer(asked, simulated.world, settings)
                found[asked.kind] = found.get(asked.kind, "") + reply
    digests = {kind: hashlib.sha256(text.encode()).hexdigest()[:8] for kind, text in found.items()}
    assert digests == DIGESTS, "figures depend on these texts"


DIGESTS = cases("roles-digests")


# Worlds in which one part of the loop could matter: that each has the property it claims, looked
# at directly, through requests and replies.

UPPERCASE = world.skills.names.index("uppercase")
SMALL = [e for e in examples if UPPERCASE not in world.problem(e.input).shown]
# An input with bullets and without capitals.
BULLETED = with_kind(SMALL, "bullets")
UPPER = "Set all of the text in capital letters."


def improved(text: str, gradient: str, settings: Any = EXACT) -> str:
    return ask(filled(BULLETED, "updater", text=text, gradient=f"- {gradient}"), settings)


def test_an_obedient_updater_does_what_it_is_told_even_where_that_is_wrong() -> None:
    told = replace(EXACT, obedient=True)
    advice = "Its text must say: When commas are ruled out, write short clauses without a comma."
    assert BULLETS in improved(BULLETS, advice)
    assert BULLETS not in improved(BULLETS, advice, told)
    assert "without a comma" in improved(BULLETS, advice, told)
    harm = f"It works against such inputs by: {UPPER.lower()}"
    assert improved(BULLETS, harm) == BULLETS
    assert not world.skills.orders(improved(BULLETS, harm, told))


def test_an_anonymous_critic_names_no_culprit_and_attribution_can_still_find_it() -> None:
    own = f"[3] {BULLETS}\n[5] {UPPER}"
    shown = {"instincts": own, "prompt": UPPER, "reference": failing(BULLETED)}
    for anonymous in (False, True):
        settings = replace(EXACT, anonymous=anonymous)
        feedback = json_of(ask(filled(BULLETED, "critic", **shown), settings))["feedback"]
        assert ("Active instinct 5 works against" in feedback) is not anonymous
        found = json_of(ask(filled(BULLETED, "attribution", **shown, verdict=feedback), settings))
        assert "capital" in found["instinct_errors"]["5"]
        assert "3" not in found["instinct_errors"] or "capital" not in found["instinct_errors"]["3"]


def test_a_critic_that_is_not_told_needs_its_rubric_and_only_the_adversary_can_write_it() -> None:
    settings = replace(EXACT, unsaid=1.0)
    here = World("constraints", examples, settings)
    assert len(here.unsaid) == len(here.skills)
    assert not here.skills.orders(verdict(BULLETED, settings, here))
    shown = {"prompt": "Go.", "instincts": "[0] Be kind.", "reference": failing(BULLETED)}
    psi = filled(BULLETED, "adversary", **shown, verdict="score 0.4: ", psi="Judge it.")
    asked = str(json_of(ask(psi, settings, here))["feedback"])
    [order] = here.skills.orders(asked)
    assert order.skill in here.problem(BULLETED.input).shown
    messages = filled(BULLETED, "critic", **shown, psi=f"Judge it.\n{asked}")
    feedback = str(json_of(ask(messages, settings, here))["feedback"])
    assert order.skill in {o.skill for o in here.skills.orders(feedback)}
    rest = filled(BULLETED, "adversary", **shown, verdict="score 0.4: ", psi=asked)
    again = here.skills.orders(str(json_of(ask(rest, settings, here))["feedback"]))
    assert order.skill not in {o.skill for o in again}, "the rubric has it now"


def test_a_misled_encoder_avoids_what_is_needed_until_a_directive_names_it() -> None:
    settings = replace(EXACT, misled=1.0)
    here = World("constraints", examples, settings)
    plain = (f"[{k}] Think about {k} other things." for k in range(1, 9))
    book = "\n".join([f"[0] {BULLETS}", *plain])

    def chosen(theta: str, settings: Any, world: World) -> list[int]:
        values = {
            "codebook": book,
            "theta": theta,
            "select": 2,
            "size": 9,
            "last": 8,
            "most": "exactly",
        }
        reply = ask(filled(BULLETED, "encoder", **values), settings, world)
        return json_of(reply)["selected_indices"]

    assert 0 in chosen("Choose.", EXACT, world)
    assert 0 not in chosen("Choose.", settings, here)
    assert 0 in chosen(f"Choose. Choose the instinct that says so: {BULLETS}", settings, here)


def test_a_bare_generator_drops_conditions_until_its_directive_keeps_them() -> None:
    settings = replace(EXACT, bare=1.0)
    other = "When capitals are asked for, set all of the text in capital letters."

    def broken(phi: str, settings: Any) -> frozenset[int]:
        values = {"instincts": f"[3] {BULLETS}\n[5] {other}", "phi": phi}
        prompt = ask(filled(BULLETED, "generator", **values), settings)
        return obey(world, world.problem(BULLETED.input), prompt).broken

    keep = "Keep this in the prompt: every order of the chosen strategies with its condition."
    sound = broken("Write.", EXACT)
    assert world.skills[UPPERCASE].breaks - sound
    assert broken("Write.", settings) >= world.skills[UPPERCASE].breaks
    assert broken(f"Write. {keep}", settings) == sound
    shown = {"instincts": f"[3] {BULLETS}\n[5] {other}", "prompt": f"{BULLETS} {UPPER}"}
    shown["reference"] = failing(BULLETED)
    feedback = str(json_of(ask(filled(BULLETED, "critic", **shown), settings))["feedback"])
    found = json_of(ask(filled(BULLETED, "attribution", **shown, verdict=feedback), settings))
    assert keep in found["rendering_errors"]
    assert improved("Write.", keep, settings) == f"Write. {keep}"


# Orders: what is one, when it is obeyed, and that a list of cue words is none.

TABLES = ("constraints", "general")


@pytest.fixture(scope="module")
def skills() -> Skills:
    return read_skills("constraints")


@pytest.mark.parametrize("table", TABLES)
def test_every_way_of_saying_a_skill_is_one_order_about_it(table: str) -> None:
    skills = read_skills(table)
    for k in range(len(skills)):
        for phrase in range(len(skills[k].do)):
            (bare,) = skills.orders(skills.say(k, None, phrase))
            assert bare.skill == k
            for condition in range(len(skills)):
                (order,) = skills.orders(skills.say(k, condition, phrase))
                assert (order.skill, order.against) == (k, False)
                assert order.when is not None
                assert order.when.skills == {condition}


def test_the_demands_of_the_shipped_inputs_show() -> None:
    skills = read_skills("constraints")
    assert set(skills.names) == set(KINDS)
    for example in examples:
        shown = {skills.names[k] for k in skills.shown_in(example.input)}
        assert shown == {str(c["kind"]) for c in constraints_of(example)}


def test_a_list_of_cue_words_is_no_order(skills: Skills) -> None:
    words = chain.from_iterable(skills[k].do for k in range(len(skills)))
    cues = sorted({w for text in words for w in content_stems(text)})
    for text in (
        *(joint.join(cues) for joint in (" ", ", ", "\n", "; ")),
        "Count words, trim words, dash lines, bullet points, title brackets.",
        "Words limit sentences paragraphs bullets title JSON quotes digits.",
    ):
        assert skills.orders(text) == ()


@pytest.mark.parametrize(("text", "obeyed", "passed_over"), [
    ("Put a title in double angle brackets.", ("Give it a title.", "Hello."), ()),
    ("When a title is asked for, put one title on top.", ("Give it a title.",), ("Hello.",)),
    ("Put a title on top if a title is asked for.", ("Give it a title.",), ("Hello.",)),
    ("Write the bullets as asked.", ("Use 4 bullets in total.",), ("Hello.",)),
    ("If it is about gardens, put a title on top.", ("Describe gardens.",), ("Hello.",)),
])  # fmt: skip
def test_a_condition_decides_where_an_order_is_obeyed(
    skills: Skills, text: str, obeyed: tuple[str, ...], passed_over: tuple[str, ...]
) -> None:
    (order,) = skills.orders(text)
    for given in obeyed:
        assert order.applies(skills.shown_in(given), content_stems(given)), given
    for given in passed_over:
        assert not order.applies(skills.shown_in(given), content_stems(given)), given


def test_what_forbids_is_told_from_what_orders(skills: Skills) -> None:
    (against,) = skills.orders("Do not put a title on top of it.")
    assert against.against
    (no_commas,) = skills.orders("Do not use a comma in the text.")
    assert not no_commas.against
    (numbered,) = skills.orders("Write exactly 3 sentences in the answer.")
    assert numbered.number == 3


def test_the_skills_were_written_apart_from_the_seed_instincts() -> None:
    for task in ("constraints", "hotpotqa", "pupa", "aime"):
        seeds = " ".join(load_task(task).seeds).lower()
        for table in map(read_skills, TABLES):
            for skill in map(table.__getitem__, range(len(table))):
                assert not any(text.lower() in seeds for text in (*skill.do, skill.when))


# The parameters a spec can set, and the refusals of what it cannot.


def test_a_spec_sets_every_kind_of_parameter() -> None:
    found = SimulatedSettings.from_params(
        {
            "load": "0.05",
            "world": "7",
            "heeds_tools": "1",
            "latency": "uniform:0.05-0.3",
            "latency_seed": "3",
            "faults": "429:0.1,500:0.05,drop:0.05,json:0.05,truncate:0.02,routes:0.05",
        }
    )
    assert (found.load, found.world, found.heeds_tools) == (0.05, 7, True)
    assert found.latency == Latency("uniform", 0.05, 0.3, 3)
    assert found.faults == dict(zip(FAULTS, (0.1, 0.05, 0.05, 0.05, 0.02, 0.05), strict=True))


@pytest.mark.parametrize(
    ("params", "message"), cases("parameters-what-it-cannot-read-is-refused-with-a-hint")
)
def test_what_it_cannot_read_is_refused_with_a_hint(params: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        SimulatedSettings.from_params(params)
    assert caught.value.hint


def test_every_parameter_can_be_set_and_is_listed_with_what_it_means() -> None:
    """The page renders the settings, and leaves out a field without a line of its own."""
    page = Path(__file__).parents[3].joinpath("docs", "simulated.md").read_text("utf-8")
    assert "\n::: promptcodebook.paper.simulated.world.SimulatedSettings\n" in page
    assert all(f"`{fault}`" in page for fault in FAULTS)
    _, _, listed = (SimulatedSettings.__doc__ or "").partition("Args:\n")
    described = re.findall(r"^        (\w+): ", listed, re.MULTILINE)
    assert described == [field.name for field in fields(SimulatedSettings)]
    for name in described[:-2]:
        assert float(getattr(SimulatedSettings.from_params({name: "1"}), name)) == 1.0


# Faults on demand: seeded, one at a time, mended by a retry, and counted.


ALL = SimulatedSettings(faults=dict.fromkeys(FAULTS, 0.1))
ROUTING = (
    "Choose exactly 2 different instincts by index.\n\nCodebook:\n[0] Be kind.\n[1] Stay calm.\n"
    '[2] Smile.\n\nAnswer with JSON: {"constraints": [], "selected_indices": [], "analysis": ""}'
)


def routing(example: Example, sample: int = 0) -> Request:
    messages = (Message("system", ROUTING), Message("user", example.input))
    return Request("encoder", messages, sample=sample, sampling=Sampling(temperature=0.5))


def test_a_fault_depends_on_how_often_the_request_came_and_on_no_other_request() -> None:
    keys = [str(k).encode() for k in range(40)]

    def fates(plan: FaultPlan, order: list[bytes]) -> dict[bytes, list[object]]:
        found: dict[bytes, list[object]] = {k: [] for k in keys}
        for key in order:
            found[key].append(plan.strike(key, is_json=True, is_route=True))
        return found

    straight = fates(FaultPlan(1, ALL.faults), keys * 5)
    assert straight == fates(FaultPlan(1, ALL.faults), [k for k in keys[::-1] for _ in range(5)])
    assert straight != fates(FaultPlan(2, ALL.faults), keys * 5)
    assert all(None in fate for fate in straight.values())
    assert any(fate[0] is not None for fate in straight.values())


async def test_repeated_counts_finished_replies_asked_for_again() -> None:
    lm = SimulatedLM(world)
    for example in (*examples[:5], *examples[:2]):
        await lm(routing(example))
    await lm(routing(examples[0], sample=9))
    assert (lm.stats.replies, lm.stats.repeated) == (8, 2)
    assert lm.stats.as_dict()["kinds"] == {"route": 8}
    lm.stats.reset()
    assert lm.stats.as_dict()["requests"] == 0
