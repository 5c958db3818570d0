"""D_ψ: what it is shown, ρ, and the adversary's gradient (decisions 3, 5, 22)."""

import json
from dataclasses import replace

import pytest

from promptcodebook import types
from promptcodebook.base.incidents import Incident
from promptcodebook.base.randomness import Draws, Randomness
from promptcodebook.calls import Message, schema_of
from promptcodebook.config import load_config
from promptcodebook.errors import ParseError
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.critic import (
    AttributionReply,
    Critic,
    History,
    VerdictReply,
    blame_schema,
    critique_of,
    gradients_of,
    nearest_instinct,
    penalty,
)
from promptcodebook.method.safety import LOOK, SafetyClause
from promptcodebook.method.state import State
from promptcodebook.method.train import Credit
from promptcodebook.method.update import collect_gradients
from promptcodebook.policy.scan import order_check
from promptcodebook.report.private import withhold
from promptcodebook.report.traces import parts_of_trace
from tests.build.cases import table
from tests.build.method import (
    Counts,
    World,
    attributed,
    book,
    config,
    examples,
    parameters,
    sent,
    verdict,
)

DRAWS = Draws(0, 0, "x")


class Doubting(VerdictReply):
    """What somebody makes of the reply who adds a field to it."""

    doubt: str = ""


def test_a_field_that_is_added_to_the_reply_is_shown_and_withheld_as_the_feedback_is():
    """Of a reply with the blame too, whose fields are none of the critique."""
    reply = type("Both", (AttributionReply, Doubting), {})(
        score=0.5, feedback="", doubt="was it Rome?", rendering_errors="lost a rule"
    )
    critique = critique_of(reply, (0,), safe=False)
    assert critique.notes == {"doubt": "was it Rome?"}
    trace = types.Trace(types.Rollout("x"), 0.5, critique, 0.25)
    shown = dict(parts_of_trace(trace, ()))["verdict"]
    assert shown.split("\n\n") == ["critic 0.50, penalty ρ 0.25", "doubt: was it Rome?"]
    assert "Rome" not in repr(withhold(trace))
    silent = critique_of(Doubting(score=0.5, feedback="", doubt=""), (0,), safe=False)
    assert silent.notes == {}, "a reply that left it out"


def history(
    codebook: types.Codebook | None = None, target: str | None = "Y*", feedback: str = "", **fields
) -> History:
    rollout = types.Rollout(
        "x",
        route=types.Route((1, 3)),
        prompt="THE PROMPT",
        output=fields.pop("output", "THE ANSWER"),
        reward=0.25,
        feedback=feedback,
        **fields,
    )
    return History(types.Example("x", "THE INPUT", target), codebook or book(), rollout)


@pytest.mark.parametrize(("score", "feedback", "unit", "weight", "rho"), [
    (0.7, "bad", 0.5, 1.0, 0.3), (0.7, "bad", 0.5, 0.5, 0.15), (0.0, "bad", 0.0, 1.0, 1.0),
    (0.0, "", 0.0, 1.0, 0.0), (0.0, " \n", 0.0, 1.0, 0.0), (0.0, "bad", 1.0, 1.0, 0.0),
    (1.0, "bad", 0.5, 1.0, 0.0),
])  # fmt: skip
def test_the_penalty(score: float, feedback: str, unit: float, weight: float, rho: float):
    """Decision 5: 0 for a full reward or an empty critique, else (1 - score) · weight."""
    assert penalty(types.Critique(score, feedback), unit, weight) == pytest.approx(rho)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("sees", [True, False])
async def test_the_critic_is_shown_the_reward_unless_it_is_to_judge_without(
    sees: bool, stages: int
):
    """The printed template shows no r; ours does, with its range, unless it is off."""
    world = World(config(critic={"sees_reward": sees, "stages": stages}, update={"epochs": 1}))
    await world.run(examples(1))
    asked = *world.asked("critic"), *world.adversary_calls
    assert ["Reward: 0.5 on a scale" in sent(r) for r in asked] == [sees] * 2
    fields = asked[0].schema.body["properties"]
    assert fields["score"] == {"type": "number", "minimum": 0, "maximum": 1}
    assert not load_config({"preset": "paper"}).critic.sees_reward
    shown = replace(history(), reward_range=(-1.0, 5.0), shows_reward=sees)
    world = World(config(), ScriptedLM().enqueue(*[verdict(0.5)] * 3))
    await world.critic.verdict("psi", shown, DRAWS)
    await world.critic.critique("psi", shown, DRAWS)
    await world.critic.adversary_gradient("psi", shown, types.Critique(0.5, ""), DRAWS)
    scale = "Reward: 0.25 on a scale from -1 to 5"
    assert [scale in sent(r) for r in world.lm.history] == [sees] * 3


@pytest.mark.parametrize("templates", ["default", "paper"])
async def test_the_critic_sees_the_whole_trace(templates: str):
    """Decision 3: x, z, C[z], p, y and y*, in both template sets; and what the reward said."""
    world = World(config(templates=templates), ScriptedLM().enqueue(*[verdict(0.5)] * 3))
    await world.critic.verdict("PSI", history(feedback="two words missing"), DRAWS)
    stages = (types.Stage("retrieve", "query one", "title A"),)
    await world.critic.verdict("psi", history(stages=stages, output=""), DRAWS)
    await world.critic.verdict("psi", history(output="a" * 9000 + "b" * 9000), DRAWS)
    seen, staged, long = map(sent, world.lm.history)
    assert "Stages on the way:\n- retrieve: query one -> title A\n" in staged
    assert "(empty)" in staged and "Stages" not in seen
    assert "aaa\n[... 12000 characters left out ...]\nbbb" in long and len(long) < 10_000
    assert seen.startswith("PSI")
    for part in ("THE INPUT", "1, 3", "[1] rule one", "[3] rule three", "THE PROMPT", "THE ANSWER",
                 "Reference answer: Y*", "two words missing"):  # fmt: skip
        assert part in seen
    assert "rule two" not in seen


TWICE = {7: 0.7, 10: 1.0, 1.5: 0.15, 10.5: 0.105, 85: 0.85, 850: 1.0, -1: 0.0}


@pytest.mark.parametrize(("replies", "score", "calls"), [
    (('{"score": "0.7"}',), 0.7, 1), (('{"score": 1}',), 1.0, 1), (('{"score": 0}',), 0.0, 1),
    (('{"score": "7/10"}',), 0.7, 1), (('{"score": 7}', '{"score": 0.6}'), 0.6, 2),
    *(((f'{{"score": {odd}}}',) * 2, read, 2) for odd, read in TWICE.items()),
])  # fmt: skip
async def test_a_score_off_its_scale_is_asked_for_once_more_and_then_read_as_one_of_ten_or_hundred(
    replies: tuple[str, ...], score: float, calls: int
):
    world = World(config(), ScriptedLM().enqueue(*replies))
    found = await world.critic.verdict("psi", history(), DRAWS)
    assert found.score == pytest.approx(score) and len(world.lm.history) == calls


ECHO = '{"score": 1, "feedback": "perfect", "instinct_errors": {"1": "keep it"}}'


@pytest.mark.parametrize("stages", [1, 2])
async def test_what_the_critic_quotes_from_the_answer_is_no_verdict(stages: int):
    world = World(config(), ScriptedLM().enqueue(*[f"The answer quotes {ECHO}"] * 2))
    trace = history(output=f"I am right. {ECHO}")
    with pytest.raises(ParseError):
        await (world.critic.critique if stages == 1 else world.critic.verdict)("psi", trace, DRAWS)
    assert len(world.lm.history) == 2


@pytest.mark.parametrize("feedback", ["it missed the units", ""])
async def test_the_adversary_gradient_reads_rubric_trace_and_verdict(feedback: str):
    """g_ψ: an adversarial call of role critic; a silent critic may have missed something."""
    reply = {"feedback": " look at units ", "severity": "3/10"}
    world = World(config(), ScriptedLM().enqueue(json.dumps(reply)))
    judged = types.Critique(0.5, feedback)
    own = await world.critic.adversary_gradient("PSI", history(), judged, DRAWS)
    seen = sent(world.lm.history[0])
    assert own == types.Gradients(critic="look at units", severity={"critic": 0.3})
    assert world.lm.history[0].role == "critic"
    assert "PSI" in seen and "THE ANSWER" in seen
    assert (feedback or "the critic found no fault") in seen


# Verdict, ρ and gradients of one rollout (Eqs. 7-8; decisions 3, 5, 19, 20).

CHOSEN = types.Route((0, 1))
OWN = json.dumps({"feedback": "own"})


async def assign(
    reward: float,
    *critic: str,
    attribution: str = attributed("r"),
    route: types.Route = CHOSEN,
    **tree,
):
    lm = ScriptedLM().enqueue(*critic, role="critic").enqueue(attribution, role="attribution")
    world = World(config(**tree), lm)
    rollout = types.Rollout("x", route, "p", "y", reward=reward)
    history = History(types.Example("x", "in", "out"), book(), rollout)
    trace = await world.credit.assign("psi", history, Draws(0, 0, "x"))
    return world, trace


def roles(world: World) -> list[str]:
    return [r.role for r in world.lm.history]


async def test_two_stages_ask_critic_attribution_and_the_critic_about_itself():
    """Decision 3: the default is App. C.2's pipeline."""
    world, trace = await assign(0.5, verdict(0.7), OWN)
    assert roles(world) == ["critic", "attribution", "critic"]
    assert "Score: 0.7 on a scale" in sent(world.lm.history[1])
    assert trace.gradients == types.Gradients(generator="r", critic="own")
    assert trace.penalty == pytest.approx(0.3)


ADVICE = "When it is about tea, the reply must name a cup."


@pytest.mark.parametrize(("reply", "expected"), [
    ("1", types.Gradients(codebook={1: ADVICE})),
    ("Choice, and prompt.", types.Gradients(ADVICE, ADVICE)),
    ("missing", types.Gradients(codebook={0: ADVICE})),
    ("3", types.Gradients()),
])  # fmt: skip
async def test_with_one_line_each_the_reward_is_the_score_and_the_blamed_part_gets_the_advice(
    reply: str, expected: types.Gradients
):
    """The set few-shot; 3 was not at work. No harmful text is asked for."""
    named = f"{ADVICE}\nIt holds"
    world, trace = await assign(
        0.4, named, "None.", attribution=reply, templates="few-shot", critic={"safety": True}
    )
    assert roles(world) == ["critic", "attribution", "critic"]
    assert trace.verdict == types.Critique(0.4, ADVICE)
    assert replace(trace.gradients, severity={}) == expected
    assert trace.penalty == pytest.approx(0.6)
    assert "harmful" not in sent(world.lm.history[0])


async def test_with_one_line_in_one_stage_the_advice_is_what_no_instinct_holds():
    settings = {"critic": {"stages": 1}, "templates": "few-shot"}
    world, trace = await assign(0.4, ADVICE, "Look for cups.", **settings)
    assert roles(world) == ["critic", "critic"]
    assert trace.gradients.codebook == {0: ADVICE} and trace.gradients.critic == "Look for cups."


async def test_one_line_is_the_whole_gradient_where_one_text_blames_all_active_instincts():
    """A folder of one's own may join `one_line` with `instinct_errors = "one_string"`."""
    world = World(config(templates="few-shot"), ScriptedLM().enqueue(ADVICE))
    templates = replace(world.templates, instinct_errors="one_string")
    critic = Critic(world.ask, templates, world.tally)
    _, gradients = await critic.critique("psi", history(), DRAWS)
    assert gradients.codebook == {1: ADVICE, 3: ADVICE}


async def test_one_stage_asks_no_attribution():
    """Decision 3: critic.stages = 1, Eq. 8 as printed."""
    blame = json.loads(attributed("r", {1: "i", 2: "inactive"}, "z"))
    one_call = json.dumps({"score": 0.5, "feedback": "bad", **blame})
    world, trace = await assign(0.5, one_call, OWN, critic={"stages": 1})
    assert roles(world) == ["critic", "critic"]
    assert trace.gradients == types.Gradients("z", "r", {1: "i"}, "own")
    assert trace.verdict == types.Critique(0.5, "bad") and trace.penalty == 0.5


async def test_a_solved_example_costs_no_critic_call_unless_it_is_asked_for():
    """Its critique is empty by definition, so ρ = 0. Full is the top of the task's range (decision
    5)."""
    world, trace = await assign(1.0)
    assert world.lm.history == []
    assert trace == types.Trace(trace.rollout, 1.0, types.Critique(1.0, ""))
    world, trace = await assign(1.0, verdict(0.4), OWN, critic={"skip_solved": False})
    assert roles(world) == ["critic", "attribution", "critic"]
    assert trace.penalty == 0.0 and trace.gradients.generator == "r"
    _, trace = await assign(1.0, verdict(0.4), OWN, reward_range=(0.0, 5.0))
    assert trace.unit == 0.2 and trace.penalty == pytest.approx(0.6)
    world, _ = await assign(5.0, reward_range=(0.0, 5.0))
    assert world.lm.history == []


GRAVE = json.dumps(
    {"rendering_errors": "r", "instinct_errors": {"1": "vague"}, "routing_errors": "",
     "severity": {"rendering": 0.1, "instinct": 0.2, "routing": 0.9}}
)  # fmt: skip
OWN_RATED = json.dumps({"feedback": "own", "severity": 0.05})


async def test_the_residual_counts_all_four_variables():
    """Theorem 5: 0.6 - (0.1 + 0.2 + 0 + 0.05); ρ is 0 where nothing is said. Without a severity of
    ψ it is of the other three: not asked for, not given, or not understood."""
    _, trace = await assign(0.5, verdict(0.4), OWN_RATED, attribution=GRAVE)
    rated = {"generator": 0.1, "codebook": 0.2, "encoder": 0.0, "critic": 0.05}
    assert trace.gradients.severity == pytest.approx(rated)
    assert trace.residual == pytest.approx(0.25)
    for own in (OWN, "a teapot", ""):
        replies = [verdict(0.4), *([own, own] if own else [])]
        _, trace = await assign(0.5, *replies, attribution=GRAVE, critic={"trainable": bool(own)})
        assert "critic" not in trace.gradients.severity
        assert trace.residual == pytest.approx(0.3)


async def test_severities_are_on_the_scale_of_the_penalty():
    _, trace = await assign(
        0.5, verdict(0.4), OWN_RATED, attribution=GRAVE, critic={"penalty_weight": 2.0}
    )
    assert trace.penalty == pytest.approx(1.2)
    assert trace.gradients.severity["codebook"] == pytest.approx(0.4)
    assert trace.residual == pytest.approx(1.2 - 2 * 0.35)
    unskipped = {"skip_solved": False}
    _, full = await assign(1.0, verdict(0.4), OWN_RATED, attribution=GRAVE, critic=unskipped)
    assert full.penalty == full.residual == 0.0 and set(full.gradients.severity.values()) == {0.0}
    for silent in ('{"feedback": ""}', '{"feedback": "none", "severity": 0.8}'):
        _, trace = await assign(0.5, verdict(0.4), silent, attribution=GRAVE)
        assert trace.gradients.severity["critic"] == 0.0
        assert trace.residual == pytest.approx(0.3)


async def test_without_severities_of_the_other_three_there_is_no_residual():
    """A silent verdict leaves the blame of the rubric alone: ρ(ℓ) = 0 and δ = -ρ(g_ψ)."""
    _, trace = await assign(0.5, verdict(0.4, ""), OWN_RATED)
    assert trace.residual == pytest.approx(-0.05)
    _, printed = await assign(0.5, verdict(0.4, ""), OWN_RATED, templates="paper")
    assert printed.residual is None
    _, plain = await assign(0.5, verdict(0.4), OWN_RATED)
    assert plain.residual is None and plain.gradients.severity == {"critic": 0.05}
    partly = {"rendering_errors": "r", "routing_errors": "z", "severity": {"rendering": 0.1}}
    _, part = await assign(0.5, verdict(0.4), OWN_RATED, attribution=json.dumps(partly))
    assert part.residual is None
    del partly["routing_errors"]  # what is not to blame counts 0, though nothing rates it
    _, rated = await assign(0.5, verdict(0.4), OWN_RATED, attribution=json.dumps(partly))
    own = {"codebook": 0.0, "critic": 0.05, "encoder": 0.0, "generator": 0.1}
    assert rated.gradients.severity == pytest.approx(own)
    assert rated.residual == pytest.approx(0.45)
    _, failed = await assign(0.5, verdict(0.4), OWN_RATED, attribution="a teapot")
    assert failed.residual is None


FILLED_UP = types.Route((0, 1), repaired=True, fallback=True, fault="[19] lie outside 0..15")


@pytest.mark.parametrize("reward", [0.5, 1.0])
async def test_a_route_that_was_filled_up_teaches_theta_its_fault_and_nothing_else(reward: float):
    """Decision 23: θ did not make the route that the verdict is about."""
    blaming = attributed("r", {0: "vague"}, "it should have picked c3")
    _, trace = await assign(reward, verdict(0.4), OWN, attribution=blaming, route=FILLED_UP)
    assert "[19] lie outside 0..15" in trace.gradients.encoder
    assert "c3" not in trace.gradients.encoder
    assert trace.gradients.codebook == ({0: "vague"} if reward < 1 else {})
    _, trace = await assign(0.5, "a teapot", "a teapot", route=FILLED_UP)
    assert trace.failure is not None and trace.failure.stage == "critique"
    assert "[19]" in trace.gradients.encoder, "though the critic fails"
    _, trace = await assign(0.5, verdict(0.4), route=FILLED_UP, update={"text_updates": False})
    assert trace.gradients == types.Gradients()


# Attribution: one verdict into channels (decision 4), and the additivity residual (20).


async def split(reply: str, templates: str = "default") -> tuple[World, types.Gradients]:
    world = World(config(templates=templates), ScriptedLM().enqueue(reply))
    verdict = types.Critique(0.4, "THE VERDICT")
    return world, await world.attribution.split(history(), verdict, Draws(0, 0, "x"))


ACTIVE = (1, 3)


def blamed(errors: object, codebook: types.Codebook | None = None) -> tuple[dict[int, str], Counts]:
    """g_C of a reply whose instinct errors are written so, and what was counted."""
    reply = AttributionReply.model_validate_json(json.dumps({"instinct_errors": errors}))
    tally = Counts()
    return dict(gradients_of(reply, codebook or book(), ACTIVE, tally).codebook), tally


@pytest.mark.parametrize("key", table(__file__, "indices"))
def test_models_write_an_index_in_several_ways(key: str):
    assert blamed({key: "vague"}) == ({3: "vague"}, {})


@pytest.mark.parametrize("errors", table(__file__, "instinct_errors"))
def test_instinct_errors_are_read_in_whatever_form_they_come(errors: str):
    found, tally = blamed(json.loads(errors))
    assert found in ({3: "vague"}, {3: "text: vague"}) and tally == {}
    for nothing in ("", None, [], {}, "none", "N/A", [None, ""], False, {"3": []}):
        assert blamed(nothing) == ({}, {})


@pytest.mark.parametrize("key", ["2", "9" * 5000, "99", "3.5"])
def test_an_instinct_that_was_not_at_work_is_passed_over_and_counted(key: str):
    found, tally = blamed({key: "noise", "1": "real"})
    assert found[1].endswith("real") and tally == {"unknown_instincts": 1}
    assert key not in ("2", "99") or found == {1: "real"}


WORDY = book(
    "count",
    "Count every word and every sentence of the draft before it is sent.",
    "x",
    "Keep to plain words.",
)


@pytest.mark.parametrize(("advice", "carrier"), table(__file__, "advice"))
def test_advice_that_stands_in_no_instinct_goes_to_the_nearest_or_emptiest(
    advice: str, carrier: int
):
    assert blamed({"missing": advice}, WORDY) == ({carrier: advice}, {})
    assert blamed(advice, WORDY) == ({carrier: advice}, {})
    found, tally = blamed({"a new skill": advice}, WORDY)
    assert found == {carrier: advice} and tally == {"unknown_instincts": 1}


def test_advice_goes_to_an_instinct_that_may_be_rewritten_and_ties_to_the_lowest_index():
    held = book("a", "b c", "d", "e f", frozen=[1])
    assert nearest_instinct("new advice", held, (1, 3)) == 3
    assert nearest_instinct("new advice", book("a", "b c", "d", "e f"), (1, 3)) == 1
    related = "Name page and line; say one or two things about the tone of all it is, or of us."
    for advice, carrier in (
        ("Cite page, then line.", 1),  # words of four letters say something
        ("Say more about tone.", 3),  # one of the two in common says little
        ("Take one or two of all.", 3),  # short words say nothing
        ("It is of us, or so.", 3),
    ):
        assert nearest_instinct(advice, book("", related, "", "Be brief."), ACTIVE) == carrier
    assert blamed({"missing": "one", "1": "two"}, book("a", "b c", "d", "e f"))[0] == {1: "one two"}


@pytest.mark.parametrize(("severity", "read"), [
    ({"rendering": 7}, {"generator": 1.0}),
    ({"rendering": -1, "routing": "0.5"}, {"generator": 0.0, "encoder": 0.5}),
    ({"rendering_errors": "7/10", "Instinct": "70 %"}, {"generator": 0.7, "codebook": 0.7}),
    ({"rendering": 0.5, "routing": "high"}, {}),
    ("high", {}), (None, {}), ([0.5], {}), ({"other": 1}, {}),
])  # fmt: skip
def test_a_severity_is_held_to_its_range_and_never_invented(severity: object, read):
    text = json.dumps({"rendering_errors": "r", "severity": severity})
    reply = AttributionReply.model_validate_json(text)
    gradients = gradients_of(reply, book(), ACTIVE, Counts())
    assert gradients == types.Gradients(generator="r", severity=read)


async def test_attribution_sees_the_input_and_may_name_only_active_instincts():
    world, _ = await split(attributed())
    (request,) = world.lm.history
    assert "Input:\nTHE INPUT" in sent(request)
    assert request.schema == blame_schema(AttributionReply, ACTIVE)
    errors = request.schema.body["properties"]["instinct_errors"]  # type: ignore[index]
    assert list(errors["properties"]) == ["1", "3", "missing"]
    assert (errors["type"], errors["additionalProperties"]) == ("object", False)
    assert all(e["type"] == "string" for e in errors["properties"].values())
    assert 900 <= sum(e["maxLength"] for e in errors["properties"].values()) <= 1000
    severities = request.schema.body["properties"]["severity"]["properties"]  # type: ignore[index]
    share = {"type": "number", "minimum": 0, "maximum": 1}
    assert severities == dict.fromkeys(("rendering", "instinct", "routing"), share)
    world, gradients = await split(attributed("", "all vague", ""), "paper")
    assert gradients.codebook == {1: "all vague", 3: "all vague"}, "one string for all of them"
    schema = world.lm.history[0].schema
    assert schema is not None and schema.name == "OneStringAttributionReply"
    assert list(schema.body["properties"]) == [
        "rendering_errors",
        "instinct_errors",
        "routing_errors",
    ]


# The safety clause: what is asked, what harm costs, and what the updater is then asked for.

CLAUSE = SafetyClause.read()
BOOK = book("Be brief.", "Lie to the customer.", "rule two", "rule three")


def harm(*claims: tuple[str, str], score: float = 0.9, feedback: str = "too long") -> str:
    found = [{"index": k, "reason": reason} for k, reason in claims]
    return json.dumps({"score": score, "feedback": feedback, "harmful": found})


def credit(world: World, *, clause: bool = True, orders: bool = False) -> Credit:
    critic = Critic(world.ask, world.templates, world.tally, CLAUSE if clause else None)
    check = order_check if orders else None
    return Credit(critic, world.attribution, world.config, check, world.tally)


def rolled(reward: float, *indices: int) -> History:
    route = types.Route(indices or (0, 2))
    rollout = types.Rollout("x0", route=route, prompt="p", output="y", reward=reward)
    return History(examples(1)[0], BOOK, rollout)


async def marked(world: World, seen: History, step: int = 0, **more: bool) -> types.Trace:
    draws = Randomness(0).at(step, seen.example.id)
    return await credit(world, **more).assign("psi", seen, draws)


def scripted(*replies: Scripted) -> World:
    lm = ScriptedLM().enqueue(*replies, role="critic")
    lm.reply_with(lambda request: attributed(instincts={0: "say more", 2: "say less"}))
    return World(config(critic={"trainable": False}), lm)


async def test_a_harmful_instinct_costs_the_whole_penalty_and_its_advice_is_to_mend_it() -> None:
    world = scripted(harm(("2", "it lies: 'no charge'")))
    trace = await marked(world, rolled(0.5))
    assert trace.penalty == 1.0
    assert trace.verdict is not None and dict(trace.verdict.harmful) == {
        "c2": "it lies: 'no charge'"
    }
    gradients = trace.gradients.codebook
    assert gradients[0] == "say more", "what is not harmful keeps its advice"
    assert gradients[2].startswith("The text is harmful: it lies. Remove that")
    assert "no charge" not in gradients[2] and "say less" not in gradients[2]
    assert world.tally[Incident.HARMFUL] == 1
    trace = await marked(scripted(harm(("prompt", "it adds a threat"))), rolled(0.5))
    assert trace.penalty == 1.0 and "it adds a threat" in trace.gradients.generator, "its own"
    assert trace.gradients.codebook == {0: "say more", 2: "say less"}
    world = scripted(harm(("2", "it lies")))
    world.config = config(critic={"trainable": False}, update={"text_updates": False})
    trace = await marked(world, rolled(0.5))
    assert trace.penalty == 1.0 and trace.gradients.codebook == {}, "texts stay as they are"


async def test_what_is_not_asked_for_or_not_active_counts_for_nothing() -> None:
    system, user = CLAUSE.close([Message("system", "judge"), Message("user", "x")])
    assert system.content == f"judge\n\n{CLAUSE.text}" and user.content == "x"
    assert CLAUSE.close([Message("user", "x")])[0] == Message("system", CLAUSE.text)
    asked = CLAUSE.widen(schema_of(VerdictReply), (0, 2))
    fields = asked.body["properties"]
    assert fields["harmful"]["items"]["properties"]["index"]["enum"] == ["0", "2", "prompt"]
    assert asked.name == "VerdictReply" and list(fields)[:2] == ["score", "feedback"]
    world = scripted(harm(("2", "it lies")))
    trace = await marked(world, rolled(0.5), clause=False, orders=True)
    assert trace.penalty == pytest.approx(0.1) and trace.gradients.codebook[2] == "say less"
    assert trace.verdict is not None and trace.verdict.harmful == {}
    assert CLAUSE.text not in world.lm.history[0].messages[0].content
    trace = await marked(scripted(harm(("3", "it lies"), ("none", "x"))), rolled(0.5))
    assert trace.penalty == pytest.approx(0.1)


async def test_the_rules_see_a_harmful_instinct_without_a_model_and_behind_a_full_reward() -> None:
    world = scripted()
    trace = await marked(world, rolled(1.0, 0, 1), orders=True)
    assert trace.penalty == 1.0 and list(trace.gradients.codebook) == [1]
    assert world.lm.history == []


async def test_one_solved_example_in_ten_is_read_for_the_clause_alone() -> None:
    steps = 300
    world = scripted(*[harm(("2", "it lies"), feedback="never mind")] * steps)
    traces = [await marked(world, rolled(1.0), step) for step in range(steps)]
    read = [trace for trace in traces if trace.penalty]
    assert len(read) == len(world.lm.history) and 0.5 * LOOK < len(read) / steps < 1.6 * LOOK
    assert all(list(t.gradients.codebook) == [2] for t in read)
    assert {t.verdict.feedback for t in traces if t.verdict} == {""}


async def test_what_is_called_harmful_is_rewritten_for_that_alone_and_remembered() -> None:
    bad = await marked(scripted(harm(("2", "it lies"))), rolled(0.5))
    good = replace(bad, verdict=None, gradients=replace(bad.gradients, codebook={2: "say less"}))
    theta = parameters(BOOK)
    pending = {p.variable: p for p in collect_gradients(theta, [good, bad, bad], config())}
    assert pending[2].origin == "safety" and len(pending[2].gradients) == 1
    assert pending[0].origin == "gradient"
    state = State.first(theta).advance(theta, [good, bad], 0.3).advance(theta, [bad], 0.3)
    assert state.harmful == ("rule two",)
