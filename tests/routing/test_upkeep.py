"""Maintenance of the codebook: what is found, what is written, and what it leaves behind."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from promptcodebook import types
from promptcodebook.calls import Request
from promptcodebook.errors import BudgetReached, EndpointDown
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.method.update import AllChecks, LengthCheck, near_copy
from promptcodebook.routing.upkeep import Twins, count_things, find_dead, find_twins, tidied
from tests.build.method import (
    ENCODED,
    Shuffled,
    World,
    book,
    config,
    examples,
    parameters,
    routed,
    sent,
    talkative,
)

BAG = "Count every word of the draft; name all the sources, and answer in formal Spanish."
OTHER_BAG = "Look at edge cases first; keep numbers exact, and show each calculation."
COUNT = "Always count all words before sending the answer"
COUNTS = "Before sending your answer count words always"
TEXTS = (
    "Mind the tone of it",
    "Give the units asked for",
    "Cite the page of each fact",
    "Be brief",
)


def state(
    *texts: str,
    ema: Sequence[float] | None = None,
    selected: Sequence[int] | None = None,
    frozen: Sequence[int] = (),
) -> State:
    codebook = book(*texts, frozen=frozen)
    rates = tuple(ema or [0.5] * len(codebook))
    picks = tuple(selected or [9] * len(codebook))
    known = RoutingStatistics(rates, rates, picks, (0.8,) * len(codebook))
    return State(7, types.Parameters("theta", "phi", codebook, "psi"), known)


def trace(*route: int, feedback: str = "", unit: float = 0.5, blamed: bool = False) -> types.Trace:
    rollout = types.Rollout("x", types.Route(tuple(route)), reward=unit)
    gradients = types.Gradients(codebook={route[0]: "sharpen it"} if blamed else {})
    return types.Trace(rollout, unit, types.Critique(0.5, feedback), gradients=gradients)


def picked(*routes: tuple[int, ...], times: int = 8) -> list[types.Trace]:
    return [trace(*route) for route in routes for _ in range(times)]


def parts(*texts: str) -> str:
    return json.dumps({"instincts": list(texts)})


CHECKS = AllChecks([(LengthCheck(config().update), None), (near_copy, None)])


async def maintain(at: State, recent: Sequence[types.Trace], *replies: Scripted, **tree):
    world = World(config(**tree), ScriptedLM().enqueue(*replies), check=CHECKS)
    return world, await world.learner.upkeep.maintain(at, recent, 9)


# --- what is found


@pytest.mark.parametrize(("text", "things"), [
    (BAG, 3),
    ("Count words. Name sources. Be formal.", 0),  # two words make no directive
    ("Count the words and name the sources as well as dates of them", 3),
    ("List every requirement of the input before answering, and check each at the end.", 2),
    ("Keep order, headings or list marks where they help.", 1),
    ("Handle brandy in sandy bands with care", 1),
])  # fmt: skip
def test_things_are_counted_between_stops_and_joining_words(text: str, things: int):
    """No shipped instinct is taken for a grab-bag."""
    assert count_things(text) == things
    general = World(config()).templates.text("instincts").splitlines()
    assert all(count_things(each) < 3 for each in general)


LOW = (0.5, 0.2, 0.5, 0.4)  # the mean is 0.4
TRIED = (10, 10, 10, 10)


@pytest.mark.parametrize(("known", "recent", "dead"), [
    ({}, picked((0, 1)), [2, 3]),  # 16 picks for 4 entries
    ({}, [*picked((0, 1)), types.Trace(types.Rollout("x"))], [2, 3]),  # one was not routed
    ({}, picked((0, 1), times=7), []),
    ({}, picked((0, 1), (2, 3)), []),
    ({"frozen": [2]}, picked((0, 1)), [3]),
    # The lowest r̄ by a margin after tries.
    ({"ema": LOW, "selected": TRIED}, picked((0, 1), (2, 3)), [1]),
    ({"ema": LOW, "selected": (10, 9, 10, 10)}, picked((0, 1), (2, 3)), []),
    ({"ema": (0.5, 0.36, 0.5, 0.4), "selected": TRIED}, picked((0, 1), (2, 3)), []),
    ({"ema": (0.6, 0.4, 0.5, 0.5), "selected": TRIED}, picked((0, 1), (2, 3)), [1]),  # by 0.1
    ({"ema": LOW, "selected": TRIED, "frozen": [1]}, picked((0, 1), (2, 3)), []),
    ({"ema": LOW, "selected": TRIED}, picked((0, 1), (0, 2)), [3, 1]),
    ({"ema": LOW, "selected": TRIED}, picked((0, 2), (0, 3)), [1]),
])  # fmt: skip
def test_dead_is_what_nobody_picks_and_what_has_the_lowest_r_bar(known, recent, dead):
    assert find_dead(state(*TEXTS, **known), recent) == dead


def test_twins_say_the_same_in_other_words_and_the_frozen_one_the_better_or_the_first_stays():
    """Half of their words are in common."""
    found = find_twins(state(TEXTS[0], COUNT, TEXTS[1], COUNTS, ema=(0, 0.2, 0, 0.3)), [])
    assert found == Twins(3, 1, pytest.approx(6 / 7))
    assert find_twins(state(*TEXTS), []) is None
    assert find_twins(state("count words", "count words before sending"), []) == Twins(0, 1, 0.5)
    assert find_twins(state("count words", "count words before sending drafts"), []) is None

    def stays(**known) -> Twins | None:
        return find_twins(state(COUNT, COUNTS, **known), [])

    assert stays(ema=(0.2, 0.3), frozen=[0]) == Twins(0, 1, pytest.approx(6 / 7))
    assert stays(ema=(0.2, 0.3)) == Twins(1, 0, pytest.approx(6 / 7))
    assert stays(ema=(0.2, 0.2)) == Twins(0, 1, pytest.approx(6 / 7))
    assert stays(ema=(0.3, 0.2), frozen=[1]) == Twins(1, 0, pytest.approx(6 / 7))
    assert stays(frozen=[0, 1]) is None


FIVE = picked((0, 1), times=5)


@pytest.mark.parametrize(("recent", "twins"), [
    ([], False), (FIVE[:4], False), (FIVE, True),
    ([*FIVE, trace(0, 3), trace(1, 4)], True),
    ([*FIVE, *picked((0, 3), (1, 3), times=2)], False),
    ([*picked((0, 1)), *picked((0, 3), (1, 3), times=2)], True),  # four of five
    ([*FIVE, *picked((0, 3), times=40)], True),
])  # fmt: skip
def test_related_entries_are_twins_if_they_are_picked_together(recent, twins: bool):
    """Less in common, 3 words of 8: it takes the routes to say that one is enough."""
    at = state("count words before sending", "check words before sending anything twice", *TEXTS)
    assert find_twins(at, recent) == (Twins(0, 1, pytest.approx(3 / 7)) if twins else None)


# --- what is written


async def test_an_instinct_of_a_tool_stays_with_its_tool():
    assert find_twins(state(f"tool:find: {COUNT}", f"tool:send: {COUNTS}"), []) is None
    assert find_twins(state(f"tool:find: {COUNT}", f"tool:find: {COUNTS}"), []) is not None
    at = state(TEXTS[0], f"tool:find: {BAG}", TEXTS[1])
    _, made = await maintain(at, picked((0, 1)), parts("Count words", "tool:send: Name sources"))
    assert [r.after for r in made] == ["tool:find: Count words", "tool:find: Name sources"]


async def test_a_grab_bag_is_split_into_the_places_of_the_dead():
    at = state(TEXTS[0], BAG, TEXTS[1], TEXTS[2])
    reply = parts("Count every word of the draft.", '"Name all the sources."', "Answer in Spanish.")
    world, made = await maintain(at, picked((0, 1)), reply)
    (asked,) = world.lm.history
    assert BAG in sent(asked) and "at most 3 instincts of at most 25 words" in sent(asked)
    assert (
        asked.schema is not None and asked.schema.body["properties"]["instincts"]["maxItems"] == 3
    )  # type: ignore[index]
    assert made == tuple(
        types.Rewrite(k, old, new, f"- {BAG}", True, "c1 held 3 things", origin="split")
        for k, old, new in (
            (1, BAG, "Count every word of the draft."),
            (2, TEXTS[1], "Name all the sources."),
            (3, TEXTS[2], "Answer in Spanish."),
        )
    )
    again = parts("", "Name all the sources", "Answer in Spanish")
    for first, fault in (
        (parts("a b", "c d", "e f", "g h"), "instincts: 4 parts, 3 at the most"),
        (parts("", " "), "instincts: none is given"),
    ):
        world, made = await maintain(at, picked((0, 1)), first, again)
        assert fault in sent(world.lm.history[1])
        assert [r.after for r in made] == ["Name all the sources", "Answer in Spanish"]
    many = state("Greet them", BAG, *TEXTS[:3])
    world, made = await maintain(many, picked((0, 1), times=10), parts("Name it", "Do it", "So it"))
    assert "at most 3 instincts" in sent(world.lm.history[0]), "two of the dead in one round"
    assert [r.variable for r in made] == [1, 2, 3]


async def test_a_round_is_drawn_by_seed_and_step():
    at = state(BAG, OTHER_BAG, TEXTS[0], TEXTS[1])
    bags, asked = list[int](), list[Request]()
    for seed in (0, 0, 1, 2, 3, 4):
        world, made = await maintain(at, picked((0, 1)), parts("Be kind to all"), seed=seed)
        bags.extend(r.variable for r in made if isinstance(r.variable, int))
        asked.append(world.lm.history[0])
    assert bags[0] == bags[1] and set(bags) == {0, 1} and {r.role for r in asked} == {"updater"}
    assert asked[0].sample == asked[1].sample != asked[2].sample


TWO = "Count every word of the draft, and name all the sources"


@pytest.mark.parametrize(("at", "recent"), [
    (state(TEXTS[0], BAG, *TEXTS[1:3]), picked((0, 1), (2, 3))),  # no place is free
    (state(TEXTS[0], TWO, *TEXTS[1:3]), picked((0, 1))),  # two things are no grab-bag
    (state(TEXTS[0], BAG, *TEXTS[1:3], frozen=[1]), picked((0, 1))),
    (state(*TEXTS[:3], BAG), picked((0, 1), (0, 2))),  # its place is spoken for already
    (state(*TEXTS), picked((0, 1))),  # no failure asks for another text
    (state(COUNT, TEXTS[0], COUNTS, TEXTS[1]), picked((0, 1), (2, 3))),
])  # fmt: skip
async def test_where_there_is_nothing_to_do_nobody_is_asked(at: State, recent: list[types.Trace]):
    assert count_things(TWO) == 2
    world, made = await maintain(at, recent)
    assert made == () and world.lm.history == []


@pytest.mark.parametrize(("reply", "reason"), [
    (parts(BAG), "the model holds it to be about one thing"),
    (parts("Mind the tone of it!", "Name sources"), "a near-copy of another instinct"),
    (parts("Name the sources", "Name the sources."), "a near-copy of another instinct"),
    (parts("a " * 26, "Name the sources"), "26 words, over the cap of 25"),
    (EndpointDown("gone"), "EndpointDown: gone"),
])  # fmt: skip
async def test_a_split_that_is_refused_changes_nothing_and_says_why(reply: Scripted, reason: str):
    at = state(TEXTS[0], BAG, TEXTS[1], TEXTS[2])
    world, made = await maintain(at, picked((0, 1)), reply)
    (refused,) = made
    assert (refused.variable, refused.kept, refused.reason) == (1, False, reason)
    assert world.tally["rewrites_refused"] == 1
    given = "\n".join(json.loads(reply)["instincts"]) if isinstance(reply, str) else ""
    failure = refused.failure
    assert (failure and failure.stage) == ("update" if given == "" else None)
    assert refused == types.Rewrite(
        1, BAG, given.replace(" \n", "\n"), "", False, reason, failure=failure, origin="split"
    )
    assert tidied(at, made) == at


async def test_the_dead_are_revived_from_failures_that_no_instinct_is_blamed_for():
    recent = [
        *picked((0, 1)),
        trace(0, 1, feedback="dates were left out"),
        trace(0, 1, feedback="wrong tone", blamed=True),
        trace(0, 1, feedback="solved, so no failure", unit=1.0),
    ]
    world, made = await maintain(state(*TEXTS), recent, "Here is the instinct: Date each event")
    (asked,) = world.lm.history
    assert "- dates were left out" in sent(asked)
    assert "wrong tone" not in sent(asked) and "solved" not in sent(asked)
    assert f"- {TEXTS[0]}\n- {TEXTS[1]}\n- {TEXTS[3]}\n" in sent(asked)  # all but the dead one
    assert made == (
        types.Rewrite(2, TEXTS[2], "Date each event", "- dates were left out", True,
                "c2 was free, and 1 failures spoke for another", origin="revive"),
    )  # fmt: skip
    recent = [*picked((0, 1)), trace(0, 1, feedback="wrong tone", blamed=True)]
    world, made = await maintain(state(*TEXTS), recent, "Ask for the tone first")
    assert "- wrong tone" in sent(world.lm.history[0]) and made[0].kept


async def test_twins_are_merged_once_the_place_of_one_has_a_new_text():
    at = state(COUNT, TEXTS[0], COUNTS, TEXTS[1], ema=(0.6, 0.5, 0.4, 0.5))
    recent = [*picked((0, 1), (2, 3)), trace(0, 1, feedback="dates were left out")]
    merged = "Count all words before you answer"
    world, made = await maintain(at, recent, "Date each event", merged)
    assert [(r.variable, r.origin, r.kept) for r in made] == [
        (2, "revive", True), (0, "merge", True),
    ]  # fmt: skip
    asked = sent(world.lm.history[1])
    assert COUNT in asked and f"- {COUNTS}" in asked
    assert "- Date each event" in asked  # what stands in the other's place is told already
    assert made[1].reason == "c2 said much the same (86% of their words)"
    after = tidied(at, made)
    assert after.parameters.codebook.texts == (merged, TEXTS[0], "Date each event", TEXTS[1])
    # Two that say the same are better than one and a gap. A frozen one stays, and the other goes.
    _, made = await maintain(at, recent, TEXTS[0], TEXTS[1])
    assert [(r.variable, r.kept) for r in made] == [(2, False)]
    assert made[0].reason == "a near-copy of another instinct"
    world, made = await maintain(
        state(COUNT, TEXTS[0], COUNTS, TEXTS[1], frozen=[0]), recent, "Date each event"
    )
    assert [(r.variable, r.origin) for r in made] == [(2, "revive")]
    assert len(world.lm.history) == 1
    bags = (f"{BAG} Always.", f"{BAG} Ever.", *TEXTS[:2])
    _, made = await maintain(state(*bags), recent, "Date each event", "Count and name it all")
    assert [(r.variable, r.origin) for r in made] == [(1, "revive"), (0, "merge")], "no split"


async def test_new_texts_begin_without_a_past_and_a_merged_one_keeps_half_its_evidence():
    """A split fills the place of a twin before failures do."""
    at = state(COUNT, BAG, COUNTS, TEXTS[1], ema=(0.6, 0.5, 0.4, 0.3), selected=(4, 3, 2, 1))
    recent = [*picked((0, 1), (2, 3)), trace(0, 1, feedback="dates were left out")]
    split = parts("Name all the sources", "Answer in Spanish")
    world, made = await maintain(at, recent, split, "Count all of the words")
    origins = [(1, "split"), (2, "split"), (0, "merge")]
    assert [(r.variable, r.origin) for r in made] == origins
    assert "at most 2 instincts" in sent(world.lm.history[0])
    # A twin that stays is no free place, though no route picks it.
    both, dead = await maintain(at, picked((1, 3)), split, "Count all of it")
    assert "at most 2 instincts" in sent(both.lm.history[0])
    assert [(r.variable, r.origin) for r in dead] == origins
    after = tidied(at, made)
    assert after.statistics == RoutingStatistics(
        (0.6, 0.0, 0.0, 0.3), (0.6, 0.0, 0.0, 0.3), (4, 0, 0, 1), (0.4, 0.0, 0.0, 0.8)
    )
    assert (after.step, len(after.parameters.codebook)) == (at.step, 4)


# --- in training


def tidy_up(request: Request) -> Scripted:
    """The talkative model, which takes every instinct apart into two."""
    if request.schema is not None and request.schema.name == "InstinctsReply":
        return parts("Say it first thing", "Say it last thing")
    return f"rule{request.sample}" if request.role == "updater" else talkative(request)


def settings(every: int = 2, **update):
    update = {"batch_size": 5, "epochs": 4, "maintain_every": every, **update}
    return config(update=update, explore=ENCODED, critic={"trainable": False})


async def test_it_comes_every_so_many_steps_and_looks_back_on_all_since():
    """0 and 1 are always picked; 2 and 3 have had their chances after two steps of five. Online it
    comes after as many examples."""
    world = World(settings(), ScriptedLM().reply_with(tidy_up))
    steps = await world.run(examples(20), parameters(book(*TEXTS)))
    tidy = [[r for r in s.rewrites if r.origin != "gradient"] for s in steps]
    assert [len(made) for made in tidy] == [0, 1, 0, 1]
    assert [r.origin for made in tidy for r in made] == ["revive", "revive"]
    assert [r.variable for made in tidy for r in made] == [2, 2]
    assert steps[1].parameters.codebook[2].text == tidy[1][0].after
    assert not steps[1].reverted
    feedback = [sent(r) for r in world.asked("updater") if "runs that failed" in sent(r)]
    assert all(s.count("- could be better") == 8 for s in feedback)
    update = {"batch_size": 5, "epochs": 2, "mode": "online"}
    world = World(settings(**update), ScriptedLM().reply_with(tidy_up))
    steps = await world.run(examples(20))
    assert [s.index for s in steps if any(r.origin != "gradient" for r in s.rewrites)] == [9]
    # It is off by default and without text updates.
    assert config().update.maintain_every == 0
    for tree in (settings(every=0), settings(text_updates=False)):
        steps = await World(tree, ScriptedLM().reply_with(tidy_up)).run(examples(20))
        assert all(r.origin == "gradient" for s in steps for r in s.rewrites)


async def test_taken_up_in_between_it_tidies_alike():
    """The traces since the last round come from the store; all else is in the step."""
    data = examples(20)
    whole = await World(settings(), ScriptedLM().reply_with(tidy_up)).run(data)
    for done in (1, 2, 3):
        world, state = (
            World(settings(), ScriptedLM().reply_with(tidy_up)),
            State.after(whole[done - 1]),
        )
        rest = await world.run(data, state=state, traces=lambda k: whole[k].traces)
        assert rest == whole[done:]


# θ must go on routing (decisions 23, 28): a rewritten θ is on trial on the next batch's routes.

DRIFTED = "Tell the encoder to write prose."
BATCH = 5


def drifting(
    broken: Callable[[Request], Scripted | None], theta: str = DRIFTED
) -> Callable[[Request], Scripted]:
    """A model that rewrites θ to `theta`; of its routes under it, `broken` says which are odd."""

    def reply(request: Request) -> Scripted:
        if request.role == "updater" and "directive of the encoder" in sent(request):
            return theta
        if request.role == "encoder" and sent(request).startswith(theta):
            odd = broken(request)
            return routed(0, 1) if odd is None else odd
        return talkative(request)

    return reply


def about(count: int, reply: Scripted) -> Callable[[Request], Scripted | None]:
    """Odd routes for the first `count` inputs."""
    names = [f"input {i}" for i in range(count)]
    return lambda request: reply if any(n in sent(request) for n in names) else None


def guarded(most: float = 0.2, steps: int = 2, explore: dict[str, Any] = ENCODED, **tree: Any):
    update = {"batch_size": BATCH, "epochs": steps, "shared_by": 1, **tree}
    return config(explore=explore, encoder={"max_fallback": most}, update=update)


async def run(
    broken: Callable[[Request], Scripted | None], **tree: Any
) -> tuple[World, list[types.Step]]:
    """Step 0 rewrites θ to one that drifts; the steps after it try that."""
    world = World(guarded(**tree), ScriptedLM().reply_with(drifting(broken)))
    return world, await world.run(examples(BATCH))


def of_theta(step: types.Step) -> types.Rewrite:
    (rewrite,) = [r for r in step.rewrites if r.variable == "encoder"]
    return rewrite


def fallbacks(step: types.Step) -> list[bool]:
    return [t.rollout.route.fallback for t in step.traces if t.rollout.route]


@pytest.mark.parametrize(("odd", "most", "passes"), [
    (0, 0.2, True), (1, 0.2, True), (2, 0.2, False), (5, 0.2, False), (2, 0.4, True),
])  # fmt: skip
async def test_theta_is_taken_back_when_more_than_a_fifth_of_its_first_routes_fall_back(
    odd: int, most: float, passes: bool
):
    """1 of 5 is a fifth; 2 of 5 is more. Then that batch is routed again under the old one."""
    world, (first, second) = await run(about(odd, "I would rather talk."), most=most)
    assert of_theta(first).kept and first.parameters.encoder == DRIFTED
    assert first.trial == types.ThetaTrial("theta 0")
    assert sum(fallbacks(second)) == (odd if passes else 0)
    counted = world.tally["route_fallbacks"], world.tally["route_repairs"]
    assert counted == (sum(fallbacks(second)),) * 2, "what was routed in vain is none of the run's"
    assert world.tally["encoder_refused"] == (not passes)
    # The trial takes no call of its own; what is taken back is asked once more, and routed again.
    assert len(world.asked("encoder")) == 2 * BATCH + odd + (0 if passes else BATCH)
    if passes:
        return
    reason = f"{odd} of 5 routes fell back with it, more than 20%"
    back = types.Rewrite("encoder", DRIFTED, "theta 0", "", True, reason, origin="trial")
    assert of_theta(second) == back, "and no other rewrite of θ in that step"
    assert second.parameters.encoder == "theta 0" and second.trial is None
    assert len([r for r in second.rewrites if r.kept]) > 1, "the others stay"


@pytest.mark.parametrize("odd", [3, 5])
async def test_theta_goes_on_being_on_trial_while_all_routes_are_explored(odd: int):
    """At the start of a run they are; θ may not drift unseen, and is tried when it first routes."""
    first = {"epsilon": 1.0, "epsilon_min": 0.0, "gamma": 0.0}
    more = {"steps_per_epoch": 2, "encoder_on_explored": True}
    _, steps = await run(about(odd, "prose"), explore=first, **more)
    assert [s.trial for s in steps[:2]] == [types.ThetaTrial("theta 0")] * 2
    assert steps[2].parameters.encoder == "theta 0" and not any(fallbacks(steps[2]))


@pytest.mark.parametrize(("odd", "kept"), [(3, True), (4, False), (5, False)])
async def test_a_theta_that_routes_badly_may_be_rewritten_to_one_that_routes_less_badly(
    odd: int, kept: bool
):
    """Four of five fall back under θ as it is: three of five is better, four or five are not."""

    def reply(request: Request) -> Scripted:
        under_old = request.role == "encoder" and sent(request).startswith("theta 0")
        if under_old:
            return about(4, "prose")(request) or talkative(request)
        return drifting(about(odd, "prose"))(request)

    first, second = await World(guarded(), ScriptedLM().reply_with(reply)).run(examples(BATCH))
    assert first.trial == types.ThetaTrial("theta 0", share_before=0.8)
    assert (of_theta(second).origin == "trial") == (not kept)


async def test_one_fallback_takes_no_theta_back_in_online_mode_and_two_do():
    """There a batch is one example, of which one fallback is more than a fifth."""
    for odd, reasons in ((1, []), (3, ["2 of "])):
        _, steps = await run(about(odd, "prose"), mode="online", steps=1)
        back = [r.reason[:5] for s in steps for r in s.rewrites if r.origin == "trial"]
        assert back == reasons


async def test_an_input_that_could_not_be_routed_counts_on_neither_side():
    lost = drifting(lambda r: EndpointDown("gone") if "input 0" in sent(r) else None)
    _, second = await World(guarded(), ScriptedLM().reply_with(lost)).run(examples(BATCH))
    failed = [t.rollout.failure for t in second.traces if t.rollout.failure is not None]
    assert [f.kind for f in failed] == ["EndpointDown"]
    assert all(r.origin != "trial" for r in second.rewrites)
    with pytest.raises(BudgetReached):
        await run(about(1, BudgetReached("spent")))


async def test_a_run_whose_encoder_drifts_goes_on_routing_and_the_same_wherever_it_was_stopped():
    """Unguarded, θ drifts in the first step and every later route is a fallback."""
    _, free = await run(about(5, "prose"), most=1.0, steps=4)
    assert [any(fallbacks(s)) for s in free] == [False, True, True, True]
    world, steps = await run(about(5, "prose"), steps=4)
    assert not any(any(fallbacks(s)) for s in steps)
    for done in range(1, 4):
        state = State.after(steps[done - 1])
        lm = Shuffled(ScriptedLM().reply_with(drifting(about(5, "prose"))), seed=done)
        again = World(world.config, wrap=lambda _, lm=lm: lm)
        assert await again.run(examples(BATCH), state=state) == steps[done:]
