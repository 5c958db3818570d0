"""LLM_upd(v, g): gathering, rewriting, refusing (Eq. 9; decision 11)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from promptcodebook.calls import Reply
from promptcodebook.config import Update
from promptcodebook.errors import EndpointDown
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.checks import LengthCheck, NearCopyCheck
from promptcodebook.method.update import Pending, apply_rewrites, collect_gradients
from promptcodebook.step import Refused, Rewrite
from promptcodebook.types import Gradients, Rollout, Route, Trace
from tests.method.build import World, book, config, parameters, said


def trace(explored: bool = False, **gradients) -> Trace:
    route = Route((0, 1), explored=explored)
    return Trace(Rollout("x", route, reward=0.0), 0.0, gradients=Gradients(**gradients))


ALL = {"encoder": "z", "generator": "r", "codebook": {1: "i1", 0: "i0"}, "critic": "own"}


def test_the_order_is_theta_phi_codebook_psi():
    """Eq. 9 in the order of Algorithm 1."""
    pending = collect_gradients(parameters(), [trace(**ALL)], config())
    assert [p.variable for p in pending] == ["encoder", "generator", 0, 1, "critic"]


def test_gradients_are_gathered_in_batch_order():
    traces = [trace(generator="a"), trace(), trace(generator="b", codebook={1: "c"})]
    phi, c1 = collect_gradients(parameters(), traces, config())
    assert phi == Pending("generator", "phi 0", ("a", "b"))
    assert c1 == Pending(1, "rule one", ("c",), ("rule zero", "rule two", "rule three"))


def test_a_variable_that_nobody_blames_is_left_alone():
    assert collect_gradients(parameters(), [trace(), trace()], config()) == []


def test_a_frozen_instinct_is_passed_over_and_those_after_it_are_not():
    start = parameters(book(frozen=[0]))
    (pending,) = collect_gradients(start, [trace(codebook={0: "a", 1: "b"})], config())
    assert (pending.variable, pending.gradients) == (1, ("b",))


@pytest.mark.parametrize("flag", [False, True])
def test_explored_routes_teach_theta_only_if_told_to(flag: bool):
    """Decision 7."""
    settings = config(update={"encoder_on_explored": flag})
    traces = [trace(explored=True, encoder="not chosen by me"), trace(encoder="chosen by me")]
    (theta,) = collect_gradients(parameters(), traces, settings)
    assert theta.gradients == (("not chosen by me", "chosen by me") if flag else ("chosen by me",))


def test_applying_keeps_the_order_of_the_codebook():
    """Decision 14: edits to the codebook keep its order; refused rewrites change nothing."""
    rewrites = [
        Rewrite("encoder", "theta 0", "theta 1", "", kept=True),
        Rewrite("generator", "phi 0", "phi 1", "", kept=False),
        Rewrite(2, "rule two", "rule 2 new", "", kept=True),
        Rewrite("critic", "psi 0", "psi 1", "", kept=True),
    ]
    new = apply_rewrites(parameters(book(frozen=[2])), rewrites)
    assert (new.encoder, new.generator, new.critic) == ("theta 1", "phi 0", "psi 1")
    assert new.codebook.texts == ("rule zero", "rule one", "rule 2 new", "rule three")
    assert new.codebook[2].frozen
    phi = Rewrite("generator", "phi 0", "phi 1", "", kept=True)
    assert apply_rewrites(parameters(), [phi]).generator == "phi 1"


async def rewrite(*pending: Pending, replies: tuple[Scripted, ...] = (), check=None, **tree):
    world = World(config(**tree), ScriptedLM().enqueue(*replies))
    if check is not None:
        world = World(config(**tree), ScriptedLM().enqueue(*replies), check=check)
    return world, await world.updater.rewrite_all(pending, 3)


async def test_the_updater_sees_text_gradients_and_cap():
    world, (done,) = await rewrite(
        Pending(1, "rule one", ("first\nline", "second")),
        replies=(" new rule \n",),
        update={"instinct_words": 25},
    )
    assert done == Rewrite(1, "rule one", "new rule", "- first line\n- second", kept=True)
    seen = said(world.lm.history[0])
    assert "rule one" in seen and "- first line\n- second" in seen and "at most 25 words" in seen


async def test_at_most_max_gradients_go_into_one_rewrite_by_a_seeded_choice():
    """An 8k context must hold them all."""
    many = Pending(1, "rule one", tuple(f"g{i:02}" for i in range(20)))
    chosen: list[list[str]] = []
    for seed in (0, 0, 1):
        _, (done,) = await rewrite(
            many, replies=("new",), update={"max_gradients": 3}, seed=seed
        )  # fmt: skip
        chosen.append(done.gradient.splitlines())
    assert all(len(lines) == 3 and lines == sorted(set(lines)) for lines in chosen)
    assert chosen[0] == chosen[1] != chosen[2]
    _, (done,) = await rewrite(replace(many, gradients=many.gradients[:3]), replies=("new",))
    assert done.gradient == "- g00\n- g01\n- g02"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("Here is the revised instinct:\n\n**Count the words.**", "Count the words."),
        ('Sure! Here\'s the new text: "Count the words."', "Count the words."),
        ("```text\nCount the words.\n```", "Count the words."),
        ("**Instinct:** Count the words.", "Count the words."),
        ("Count: the words, 'exactly'.", "Count: the words, 'exactly'."),
    ],
)
async def test_what_a_model_says_around_a_rewrite_is_no_part_of_it(written: str, text: str):
    _, (done,) = await rewrite(Pending(0, "rule zero", ("g",)), replies=(written,))
    assert done.kept and done.after == text


async def test_an_instinct_is_rewritten_in_sight_of_the_others_by_their_titles():
    """What another says already is not to be repeated; a long one is shown by its first words."""
    long = " ".join(f"w{i}" for i in range(26))
    world, _ = await rewrite(
        Pending(1, "rule one", ("g",), ("rule\nzero", long)),
        Pending("generator", "phi", ("g",)),
        replies=("new one", "new phi"),
    )
    seen, directive = map(said, world.lm.history)
    assert "- rule zero\n- w0 w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 …\n" in seen
    assert seen.index("w11 …") < seen.index("Present text:")
    assert "Other instincts" in seen and "Other instincts" not in directive


def refusing(*bad: str, reason: str = "it quotes an input: SECRET"):
    def check(variable, text, before, others):
        return reason if text in bad else None

    return check


async def test_a_refused_rewrite_is_asked_for_once_more_with_the_reason_alone():
    """Decision 11. What a reason quotes, and the refused text, are not sent again."""
    world, (done,) = await rewrite(
        Pending(2, "rule two", ("g",)), replies=("leaked", "better"), check=refusing("leaked")
    )
    first, again = world.lm.history
    assert done == Rewrite(
        2, "rule two", "better", "- g", kept=True, reason="",
        earlier=Refused("leaked", "it quotes an input: SECRET"),
    )  # fmt: skip
    assert said(again).startswith(said(first)) and again.sample != first.sample
    assert "it quotes an input." in said(again)
    assert "SECRET" not in said(again) and "leaked" not in said(again)
    assert (world.tally["rewrites_reasked"], world.tally["rewrites_refused"]) == (1, 0)


async def test_a_rewrite_refused_twice_keeps_both_reasons_and_is_counted():
    """Decision 11: the variable stays as it was, and the log says why."""

    def no(variable, text, before, others):
        return f"{variable} may not become {text!r}"

    world, (done,) = await rewrite(
        Pending("critic", "psi", ("g",)), replies=("bad", "worse"), check=no
    )
    assert (done.kept, done.after) == (False, "worse")
    assert done.reason == "critic may not become 'worse'"
    assert done.earlier == Refused("bad", "critic may not become 'bad'")
    assert (world.tally["rewrites_reasked"], world.tally["rewrites_refused"]) == (1, 1)


async def test_a_cut_or_empty_rewrite_is_asked_for_once_more():
    cut = Reply("half a rew", finish="length")
    _, (done,) = await rewrite(Pending(0, "rule zero", ("g",)), replies=(cut, "whole"))
    assert done.kept and done.after == "whole"
    assert done.earlier == Refused("half a rew", "the rewrite was cut at its length cap")
    check = LengthCheck(Update())
    _, (done,) = await rewrite(
        Pending(0, "rule zero", ("g",)), replies=("<think>hm</think>", "said"), check=check
    )
    assert done.kept and done.earlier == Refused("", "the rewrite is empty")


async def test_what_could_not_be_asked_is_not_asked_for_again_and_what_was_refused_stands():
    """A second request that fails leaves the first refusal as the reason."""
    world, (done,) = await rewrite(Pending(0, "a", ("g",)), replies=(EndpointDown("gone"),))
    assert done.failure is not None and len(world.lm.history) == 1
    assert (world.tally["rewrites_reasked"], world.tally["rewrites_refused"]) == (0, 1)
    world, (done,) = await rewrite(
        Pending(0, "a", ("g",)), replies=("bad", EndpointDown("gone")), check=refusing("bad")
    )
    assert (done.kept, done.after, done.failure) == (False, "bad", None)
    assert done.reason == "it quotes an input: SECRET" and done.earlier is None
    assert (world.tally["rewrites_reasked"], world.tally["rewrites_refused"]) == (1, 1)


async def test_twins_of_one_step_are_told_apart():
    """Decision 11: neither is a copy of an old entry; the later one is asked for once more, and
    keeps its old text if it says the same again."""
    same, other = "count every word before you answer", "mind the tone of the question"
    pending = (
        Pending(0, "rule zero", ("g",), ("rule one", "rule two")),
        Pending(1, "rule one", ("g",), ("rule zero", "rule two")),
        Pending("critic", "psi", ("g",)),
    )
    reason = "a near-copy of another instinct"
    for again, kept in ((same, False), (other, True)):
        world, done = await rewrite(
            *pending, replies=(same, same, same, again), check=NearCopyCheck()
        )
        assert [r.kept for r in done] == [True, kept, True]
        assert done[1] == Rewrite(
            1, "rule one", again, "- g", kept=kept, reason="" if kept else reason,
            earlier=Refused(same, reason),
        )  # fmt: skip
        assert world.tally["rewrites_refused"] == (not kept)
        assert world.tally["rewrites_reasked"] == 1


async def test_a_twin_that_was_asked_for_twice_already_is_not_asked_for_again():
    same = "count every word before you answer"
    world, done = await rewrite(
        Pending(0, "rule zero", ("g",), ("rule one", "rule two")),
        Pending(1, "rule one", ("g",), ("rule zero", "rule two")),
        replies=(same, "rule two", same),
        check=NearCopyCheck(),
    )
    assert [r.kept for r in done] == [True, False]
    assert done[1].earlier == Refused("rule two", "a near-copy of another instinct")
    assert len(world.lm.history) == 3
    assert (world.tally["rewrites_reasked"], world.tally["rewrites_refused"]) == (1, 1)


async def test_rewrites_are_drawn_by_seed_step_and_variable():
    pending = [Pending(0, "a", ("g",)), Pending(1, "a", ("g",))]
    world, _ = await rewrite(*pending, replies=("one", "two"))
    again, _ = await rewrite(*pending, replies=("one", "two"))
    samples = [r.sample for r in world.lm.history]
    assert len(set(samples)) == 2 and samples == [r.sample for r in again.lm.history]
