"""LLM_upd(v, g): gathering, rewriting, refusing (Eq. 9; decision 11)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.update import NearCopyCheck, Pending, apply_rewrites, collect_gradients
from promptcodebook.types import Gradients, Rewrite, Rollout, Route, Trace
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


async def rewrite(*pending: Pending, replies: tuple[str, ...] = (), check=None, **tree):
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


async def test_a_refused_rewrite_keeps_its_reason_and_is_counted():
    """Decision 11: the variable stays as it was, and the log says why."""

    def no(variable, text, before, others):
        return f"{variable} may not become {text!r}"

    world, (done,) = await rewrite(Pending("critic", "psi", ("g",)), replies=("bad",), check=no)
    assert (done.kept, done.after) == (False, "bad")
    assert done.reason == "critic may not become 'bad'"
    assert world.tally["rewrites_refused"] == 1


async def test_twins_of_one_step_are_told_apart():
    """Decision 11: neither is a copy of an old entry; the later one keeps its old text."""
    same = "count every word before you answer"
    world, done = await rewrite(
        Pending(0, "rule zero", ("g",), ("rule one", "rule two")),
        Pending(1, "rule one", ("g",), ("rule zero", "rule two")),
        Pending("critic", "psi", ("g",)),
        replies=(same, same, same),
        check=NearCopyCheck(),
    )
    assert [r.kept for r in done] == [True, False, True]
    assert done[1].reason == "a near-copy of another instinct"
    assert world.tally["rewrites_refused"] == 1


async def test_rewrites_are_drawn_by_seed_step_and_variable():
    pending = [Pending(0, "a", ("g",)), Pending(1, "a", ("g",))]
    world, _ = await rewrite(*pending, replies=("one", "two"))
    again, _ = await rewrite(*pending, replies=("one", "two"))
    samples = [r.sample for r in world.lm.history]
    assert len(set(samples)) == 2 and samples == [r.sample for r in again.lm.history]
