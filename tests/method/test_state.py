"""The averages of routing, the schedule, and routing figures (Theorem 3)."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.base.randomness import Randomness
from promptcodebook.config.schema import Update
from promptcodebook.errors import ConfigError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.init import Earlier, Initialiser, check_seeds
from promptcodebook.method.policy import repair_route
from promptcodebook.method.state import (
    RoutingStatistics,
    Schedule,
    State,
    average_success,
    entropy,
    utilisation,
)
from promptcodebook.method.templates import instinct_lines
from promptcodebook.types import Failure, Instinct, Parameters, Ranking, Rollout, Route, Trace
from tests.build.cases import table
from tests.build.method import World, config, examples, parameters, sent


def trace(unit: float | None, rho: float, *indices: int) -> Trace:
    failure = Failure("execute", "E", "m") if unit is None else None
    return Trace(Rollout("x", Route(indices), reward=unit, failure=failure), unit, penalty=rho)


def test_two_averages_are_kept():
    """Decision 5: from 0 on, r̄ of r - ρ may be negative, success of r may not. α = 0.3; success is
    divided by its weight, 0.3 (decision 25). A failed rollout joins neither (15)."""
    first = State.first(parameters())
    assert first.statistics == RoutingStatistics((0.0,) * 4, (0.0,) * 4, (0,) * 4, (0.0,) * 4)
    traces = [trace(None, 0.0, 0, 1), trace(0.2, 0.7, 0, 3)]
    state = first.advance(parameters(), traces, 0.3)
    assert state.statistics.ema == pytest.approx((-0.15, 0, 0, -0.15))
    assert state.statistics.success == pytest.approx((0.2, 0, 0, 0.2))
    assert state.statistics.evidence == pytest.approx((0.3, 0, 0, 0.3))
    assert state.statistics.selected == (1, 0, 0, 1) and state.step == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0.01, 1))
def test_success_is_the_ema_of_r_without_the_weight_of_its_start(
    rewards: list[float], alpha: float
):
    """Decision 25: an EMA from 0 has the weight 1 - (1 - α)^n after n trials; failures are none."""
    state, plain = State.first(parameters()), 0.0
    for k, reward in enumerate(rewards):
        state = state.advance(parameters(), [trace(reward, 0.0, 0), trace(None, 0.0, 0)], alpha)
        plain += alpha * (reward - plain)
        weight = 1 - (1 - alpha) ** (k + 1)
        assert state.statistics.success[0] == pytest.approx(plain / weight)
        assert state.statistics.known[0] == pytest.approx(weight)
    assert min(rewards) - 1e-9 <= state.statistics.success[0] <= max(rewards) + 1e-9


def test_what_was_known_of_an_instinct_counts_half_once_it_is_rewritten():
    """Decision 25: the next trial weighs 0.3 / 0.405 instead of 0.3 / 0.51."""
    tried = State.first(parameters()).advance(parameters(), [trace(0.2, 0.0, 0, 1)], 0.3)
    new = replace(parameters(), codebook=parameters().codebook.reword(0, "reworded"))
    rewritten = tried.advance(new, [], 0.3)
    assert rewritten.statistics.success == tried.statistics.success
    assert rewritten.statistics.evidence == pytest.approx((0.15, 0.3, 0, 0))
    after = rewritten.advance(new, [trace(1.0, 0.0, 0, 1)], 0.3).statistics
    assert after.success[0] == pytest.approx((0.2 * 0.15 * 0.7 + 0.3) / 0.405)
    assert after.success[1] == pytest.approx((0.2 * 0.3 * 0.7 + 0.3) / 0.51)
    assert after.ema[0] == after.ema[1], "r̄ stays the paper's"


def test_entries_of_version_01_go_on_as_they_were_and_are_known_by_their_selections():
    old = RoutingStatistics((0.1, 0, 0, 0), (0.4, 0, 0, 0), (2, 0, 0, 0))
    after = State(3, parameters(), old).advance(parameters(), [trace(1.0, 0.0, 0, 1)], 0.3)
    assert after.statistics.success[:2] == pytest.approx((0.4 + 0.3 * 0.6, 1.0))
    old = RoutingStatistics((0.1, 0.2), (0.4, 0.5), (2, 3)).pick([1, None])
    assert old == RoutingStatistics((0.2, 0.0), (0.5, 0.0), (3, 0))
    assert old.known == (1.0, 0.0)
    new = RoutingStatistics((0.1, 0.2), (0.4, 0.5), (2, 3), (0.3, 0.6)).pick([1, None])
    assert new.known == (0.6, 0.0)
    ranking = Ranking((1.0,), 0.1, ((1,), (2,), (3,)), (0.1, 0.2, 0.3))
    picked = replace(new, ranking=ranking).pick([1, None]).ranking
    assert picked == replace(ranking, weights=((1,), (3,), (0,)), bias=(0.1, 0.3, 0.0))
    # An untried entry counts as the mean of the tried: nothing is known of it.
    good = RoutingStatistics((0.2, 0.4, 0.0, 0.0), (0.0,) * 4, (1, 3, 0, 0))
    assert good.standing == pytest.approx((0.2, 0.4, 0.3, 0.3))
    bad = RoutingStatistics((-0.2, -0.4, 0.0, 0.0), (0.0,) * 4, (1, 3, 0, 0))
    assert repair_route((), bad.standing, 2) == (0, 2)
    assert RoutingStatistics.fresh(2).standing == (0.0, 0.0)


#

PLANS = st.tuples(
    st.integers(1, 23), st.integers(1, 9), st.integers(1, 4), st.sampled_from(["all", 1, 2, 5])
)


def schedule(size: int, batch: int, epochs: int, per_epoch, mode: str = "minibatch", seed: int = 0):
    update = Update(batch_size=batch, epochs=epochs, steps_per_epoch=per_epoch, mode=mode)
    return Schedule(examples(size), update, Randomness(seed))


@given(PLANS, st.integers(0, 3))
def test_each_pass_holds_every_example_exactly_once(plan, seed: int):
    size, *_ = plan
    flat = [e.id for _, _, batch in schedule(*plan, seed=seed).updates() for e in batch]
    for at in range(0, len(flat), size):
        whole = flat[at : at + size]
        assert len(set(whole)) == len(whole)


@given(PLANS)
def test_steps_and_epochs_count_up_and_a_batch_is_full_unless_the_pass_ends_with_it(plan):
    size, batch, epochs, per_epoch = plan
    updates, per_pass = schedule(*plan).updates(), -(-size // batch)
    each = per_pass if per_epoch == "all" else per_epoch
    last = size - (per_pass - 1) * batch
    assert [(step, epoch, len(xs)) for step, epoch, xs in updates] == [
        (i, i // each, last if (i + 1) % per_pass == 0 else batch) for i in range(epochs * each)
    ]
    passes = [schedule(8, 8, 3, "all", seed=seed).updates() for seed in (0, 0, 1)]
    assert passes[0] == passes[1] != passes[2] and passes[0][0][2] != passes[0][1][2]


# Routing figures against numbers worked out by hand (decision 16, Theorem 3).

# Figure 4b of the paper, with and without ε-greedy exploration.
WITH = [165, 212, 222, 176, 127, 101, 110, 82, 130, 84, 94, 104, 105, 118, 100, 89]
WITHOUT = [212, 468, 413, 337, 203, 0, 63, 22, 35, 16, 17, 50, 31, 17, 10, 0]


def test_utilisation_and_average_success_by_hand():
    """Decision 16; (3·0.5 + 1·0.9) / 4. Decision 21: the
    paper's bars give 3.92 and 2.92 bits, against 3.76 and 1.72 in its text."""
    for counts, bits in (([1, 1, 1, 1], 2.0), ([2, 1, 1, 0], 1.5), ([5, 0, 0], 0.0), ([], 0.0)):
        assert entropy(counts) == pytest.approx(bits) and math.copysign(1, entropy(counts)) == 1
    assert round(entropy(WITH), 2) == 3.92 and round(entropy(WITHOUT), 2) == 2.92
    assert entropy([3, 1]) == pytest.approx(0.811278) and entropy([0, 0]) == 0.0
    assert utilisation([3, 0, 1, 0]) == 0.5 and utilisation([0, 0]) == 0.0 == utilisation([])
    assert utilisation(WITHOUT) == 14 / 16
    assert average_success([3, 1, 0], [0.5, 0.9, 0.1]) == pytest.approx(0.6)
    assert average_success([0, 0], [0.5, 0.9]) == 0.0


# The first codebook: expert, random, from_prompt, file, frozen.

NOTHING = Earlier()
GENERAL = "List every explicit requirement of the input before answering"


async def first(*replies: str, seeds: tuple[str, ...] = (), **tree) -> tuple[World, Parameters]:
    world, state = await first_state(*replies, seeds=seeds, **tree)
    return world, state.parameters


async def first_state(
    *replies: str, seeds: tuple[str, ...] = (), earlier: Earlier = NOTHING, **tree
) -> tuple[World, State]:
    world = World(config(**tree), ScriptedLM().enqueue(*replies))
    init = Initialiser(world.ask, world.templates, world.config)
    return world, await init.first(seeds, earlier)


def instincts(*texts: str) -> str:
    return json.dumps({"instincts": list(texts)})


async def test_a_short_expert_list_is_filled_with_general_instincts():
    """Blank and repeated texts are no entries."""
    world, made = await first(seeds=("Mine.", "", "  ", "mine", "Also mine."))
    assert made.codebook.texts[:2] == ("Mine.", "Also mine.")
    assert made.codebook[2].text.startswith(GENERAL) and all(map(str.strip, made.codebook.texts))
    assert len(made.codebook) == len(set(made.codebook.texts)) == 4
    assert world.lm.history == []
    init = {"kind": "expert", "instincts": ("User a", "User b", "User c", "User d", "User e")}
    _, made = await first(seeds=("Task a",), init=init)
    assert made.codebook.texts == ("User a", "User b", "User c", "User d"), "before the task's"


@pytest.mark.parametrize("templates", ["default", "paper"])
async def test_random_asks_for_a_generic_list(templates: str):
    """What is written around an instinct is no part of it; an empty list is asked for again."""
    world, made = await first(
        instincts("", " ", "I'm sorry, but I can't help with that."),
        instincts(" A  rule ", '"Another"', "", "**Instinct:** Third", "[3]", "Fourth", "Fifth"),
        init={"kind": "random"},
        templates=templates,
        seeds=("task knowledge",),
    )
    assert made.codebook.texts == ("A rule", "Another", "Third", "Fourth")
    assert "Write 4 different instincts" in sent(world.lm.history[0])
    assert "task knowledge" not in sent(world.lm.history[0])
    assert "none of the list is one" in world.lm.history[1].messages[-1].content
    # Decision 24: what is over the cap is asked for again, and then taken.
    long = " ".join(["word"] * 26)
    for again in ("A", long):
        world, made = await first(
            instincts(long, "B"), instincts(again, "B"), init={"kind": "random"}
        )
        assert made.codebook.texts[:2] == (again, "B")
        assert "26 words, over the cap of 25" in world.lm.history[1].messages[-1].content
    block = 'Answer so:\n```json\n{"a": 1}\n```'
    _, made = await first(instincts(block, "Be\nbrief."), init={"kind": "random"})
    assert made.codebook.texts[:2] == (block, "Be brief.")
    assert instinct_lines(made.codebook, (0, 1)).startswith("[0] Answer so:\n  ```json\n  {")
    present = {"kind": "from_prompt", "prompt": "Be brief. Cite {sources}."}
    world, made = await first(instincts("Be brief.", "Cite sources."), init=present)
    assert made.codebook.texts[:2] == ("Be brief.", "Cite sources.")
    assert sent(world.lm.history[0]).endswith("Be brief. Cite {sources}.")


@pytest.mark.parametrize(("seeds", "frozen", "texts"), table(__file__, "frozen"))
async def test_frozen_counts_in_the_list_as_it_was_given(seeds, frozen, texts):
    """A repetition that is dropped moves no mark, and leaves its own to the text that stays."""
    _, made = await first(seeds=seeds, init={"frozen": frozen})
    assert [i.text for i in made.codebook.instincts if i.frozen] == texts


FIVE = "Be brief. Be kind. Cite sources. Name the page. Say when you do not know."
FEW = "only 19 different instincts for a codebook of size 40"
SPLIT = {"kind": "from_prompt", "split": "sentences"}


@pytest.mark.parametrize(("tree", "match", "hint"), [
    ({"size": 40, "init": {"kind": "expert"}}, FEW, "add more to init.instincts"),
    ({"size": 40, "init": {"kind": "file", "path": "x.json"}}, FEW, "add more to init.instincts"),
    ({"init": {**SPLIT, "prompt": FIVE}}, r"^init\.prompt has 5 sentences, but", "set size = 5"),
    ({"init": {**SPLIT, "prompt": "* * *"}}, r"^init\.prompt contains no", "set init.prompt"),
])  # fmt: skip
async def test_a_first_codebook_that_cannot_be_had_is_an_error_before_anything_is_paid_for(
    tree, match: str, hint: str
):
    world, earlier = World(config(**tree)), Earlier((Instinct("Mine."),))
    with pytest.raises(ConfigError, match=match) as error:
        check_seeds(("Mine.",), earlier, world.templates, world.config)
    assert error.value.hint.startswith(hint)
    with pytest.raises(ConfigError, match=match):
        await first_state(seeds=("Mine.",), earlier=earlier, **tree)
    with pytest.raises(ConfigError, match="needs your current prompt"):
        await first_state(init={"kind": "from_prompt", "prompt": " "})
    assert world.lm.history == []


@pytest.mark.parametrize("text", [None, "no JSON", '{"codebook": [{"text": ""}]}', "[]"])
def test_a_file_that_holds_no_codebook_is_named_with_the_reason_in_a_line(
    text: str | None, tmp_path: Path
):
    if text is not None:
        (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match=r"^init\.path: cannot read a codebook from ") as error:
        Earlier.read(config(init={"kind": "file", "path": "x.json"}).init, tmp_path)
    assert "x.json: " in str(error.value) and "\n" not in str(error.value)
    assert "JSON list" in error.value.hint


async def test_a_whole_policy_goes_on_with_all_it_knew():
    """θ, φ, frozen marks and statistics; an entry that is dropped takes its own along, and one that
    is added has none."""
    book = (Instinct("a"), Instinct("A!"), Instinct("b", frozen=True), Instinct("c"))
    known = RoutingStatistics((0.1, 0.2, 0.3, 0.4), (0.5, 0.6, 0.7, 0.8), (1, 2, 3, 4))
    earlier = Earlier(book, "their theta", "their phi", known)
    settings = {"kind": "file", "path": "x.json"}
    world, state = await first_state(earlier=earlier, init=settings)
    made = state.parameters
    assert (made.encoder, made.generator) == ("their theta", "their phi")
    assert made.critic == world.templates.text("psi")
    assert made.codebook.instincts[:3] == (book[0], book[2], book[3])
    assert state.statistics == RoutingStatistics(
        (0.1, 0.3, 0.4, 0.0), (0.5, 0.7, 0.8, 0.0), (1, 3, 4, 0)
    )
    _, none = await first_state(earlier=earlier, init=settings, encoder={"mode": "none"})
    assert none.parameters.encoder == "" and none.statistics == state.statistics
