"""`accept: improve` and `improve_each`, on the batch and on other examples (decision 9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptcodebook.calls import Request
from promptcodebook.errors import ConfigError, EndpointDown
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.accept import Proposal, find_rule
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.types import Variable
from tests.method.build import (
    ENCODED,
    World,
    attributed,
    config,
    examples,
    parameters,
    routed,
    said,
    talkative,
)


def settings(accept: str = "improve", batch_size: int = 4, on: str = "batch", **tree):
    update = {"batch_size": batch_size, "epochs": 1, "accept": accept, "accept_on": on}
    return config(update={**update, "encoder_on_explored": True}, **tree)


def after_rewriting(reward: Scripted) -> ScriptedLM:
    """0.5 under the old φ; `reward` under the new one."""

    def reply(request: Request) -> Scripted:
        match request.role:
            case "generator":
                return "new prompt" if "phi 1" in said(request) else "old prompt"
            case "executor" if "new prompt" in said(request):
                return reward
            case "updater" if "the directive of the generator" in said(request):
                return "phi 1"
            case _:
                return talkative(request)

    return ScriptedLM().reply_with(reply)


@pytest.mark.parametrize("reward", ["0.5", "0.9"])
async def test_rewrites_are_kept_when_the_reward_has_not_fallen(reward: str):
    """Decision 9: equal is not fallen. The averages learn from the run as it was; it is repeated
    with the same samples, noise and all."""
    explore = {"policy": "none", "alpha": 1.0}
    world = World(settings(explore=explore), after_rewriting(reward))
    (step,) = await world.run(examples(4))
    assert not step.reverted and all(r.kept for r in step.rewrites)
    assert step.parameters.generator == "phi 1"
    assert step.success == pytest.approx((0.5, 0.5, 0, 0))
    samples = [(r.messages[-1].content, r.sample) for r in world.asked("executor")]
    assert samples[:4] == samples[4:] and len(set(samples)) == 4 and len(samples) == 8


async def test_rewrites_are_reverted_when_the_reward_fell_but_psi_is_exempt():
    """Decision 9: the reward does not depend on ψ."""
    world = World(settings(), after_rewriting("0.1"))
    (step,) = await world.run(examples(4))
    assert set(step.reverted) == {r.variable for r in step.rewrites} - {"critic"}
    assert step.parameters.generator == "phi 0" and step.parameters.encoder == "theta 0"
    assert step.parameters.codebook == parameters().codebook
    assert step.parameters.critic != "psi 0"
    refused = [r for r in step.rewrites if not r.kept]
    assert {r.variable for r in step.rewrites} - {r.variable for r in refused} == {"critic"}
    assert {r.reason for r in refused} == {"the batch's reward fell from 0.5000 to 0.1000"}


async def test_explored_routes_stay_fixed_and_encoder_routes_are_chosen_anew():
    """Decision 9: a draw is not repeated under new rates; the rewritten encoder is asked again."""
    explored = World(settings(explore={"epsilon_min": 1.0}), after_rewriting("0.9"))
    (step,) = await explored.run(examples(4))
    drawn = [t.rollout.route.indices for t in step.traces if t.rollout.route]
    asked = explored.asked("generator")
    assert len(asked) == 8 and explored.asked("encoder") == []
    for z, first, again in zip(drawn, asked[:4], asked[4:], strict=True):
        for k in range(4):
            assert (f"\n[{k}] " in said(first)) == (f"\n[{k}] " in said(again)) == (k in z)
    encoded = World(settings(explore={"policy": "none"}), after_rewriting("0.9"))
    await encoded.run(examples(4))
    thetas = [said(r).splitlines()[0] for r in encoded.asked("encoder")]
    assert thetas[:4] == ["theta 0"] * 4 and thetas[4] == thetas[7] != "theta 0"


async def test_rewrites_under_which_nothing_runs_are_not_kept():
    """No reward is no proof that the reward did not fall; what had none before is not run again."""
    world = World(settings(), after_rewriting(EndpointDown("gone")))
    (step,) = await world.run(examples(4))
    assert step.reverted and step.parameters.generator == "phi 0"
    assert "could not be run again" in step.rewrites[0].reason

    def reply(request: Request) -> Scripted:
        lost = request.role == "executor" and "input 0" in said(request)
        return EndpointDown("gone") if lost else talkative(request)

    world = World(settings(), ScriptedLM().reply_with(reply))
    await world.run(examples(4))
    assert sum("input 0" in said(r) for r in world.asked("executor")) == 1


async def test_nothing_to_judge_costs_nothing():
    world = World(settings(critic={"skip_solved": True}), ScriptedLM().reply_with(
        lambda r: "1" if r.role == "executor" else talkative(r)
    ))  # fmt: skip
    (step,) = await world.run(examples(4), state=State.first(parameters()))
    assert step.rewrites == () and len(world.asked("executor")) == 4
    world = World(settings("always"), after_rewriting("0.1"))
    (step,) = await world.run(examples(4))
    assert not step.reverted and step.parameters.generator == "phi 1"
    assert len(world.asked("executor")) == 4


@pytest.mark.parametrize("rule", ["improve", "improve_each"])
async def test_what_a_check_refused_is_not_tried_and_keeps_its_reason(rule: str):
    def no(variable, text, before, others):
        return None if variable == "critic" else f"no {variable}"

    world = World(settings(rule), after_rewriting("0.1"), check=no)
    (step,) = await world.run(examples(4))
    assert len(world.asked("executor")) == 4 and not step.reverted
    assert {r.reason for r in step.rewrites if r.variable == "generator"} == {"no generator"}


# --- each on its own effect


NAMES = ("theta", "phi", "psi", "rule zero", "rule one", "rule two", "rule three")
PARTS: dict[str, Variable] = {
    "phi new": "generator", "rule zero new": 0, "rule one new": 1, "rule two new": 2,
    "rule three new": 3,
}  # fmt: skip


def rewritten(request: Request) -> str:
    return next(f"{name} new" for name in NAMES if f"Present text:\n{name}" in said(request))


def by_part(
    worth: dict[Variable, float], under_new_theta: tuple[int, int] | None = None
) -> ScriptedLM:
    """Every part is rewritten to '<part> new'; the reward is 0.5 and what the new ones are worth.

    Even inputs are routed to 0 and 2, odd ones to 1 and 3, unless the new θ routes elsewhere; the
    prompt says what went into it.
    """

    def route(request: Request) -> Scripted:
        if "theta new" in said(request) and under_new_theta is not None:
            return routed(*under_new_theta)
        odd = int(said(request)[-1]) % 2
        return routed(odd, odd + 2)

    def reward(request: Request) -> Scripted:
        gains = sum(worth.get(v, 0) for text, v in PARTS.items() if text in said(request))
        new_route = "[0] rule" in said(request) and "[3] rule" in said(request)
        return str(round(0.5 + gains + (worth.get("encoder", 0) if new_route else 0), 3))

    def reply(request: Request) -> Scripted:
        match request.role:
            case "encoder":
                return route(request)
            case "generator":
                return "prompt of " + "; ".join(said(request).split("\n"))
            case "executor":
                return reward(request)
            case "attribution":
                return attributed("say it", {k: f"sharpen {k}" for k in range(4)}, "read x")
            case "updater":
                return rewritten(request)
            case _:
                return talkative(request)

    return ScriptedLM().reply_with(reply)


async def test_each_rewrite_is_judged_by_what_it_does_alone():
    """One that hurts goes, and takes none of the others with it."""
    worth: dict[Variable, float] = {"encoder": 0.1, "generator": -0.2, 0: 0.3, 1: -0.1}
    world = World(settings("improve_each", explore=ENCODED), by_part(worth, (0, 3)))
    (step,) = await world.run(examples(4))
    kept = {r.variable: r.kept for r in step.rewrites}
    # 3 is tried together with 1 and only where 1 is: it cannot be told from it.
    assert kept == {"encoder": True, "generator": False, 0: True, 1: False, 2: True, 3: False,
                    "critic": True}  # fmt: skip
    assert step.reverted == ("generator", 1, 3)
    reasons = {r.variable: r.reason for r in step.rewrites if not r.kept}
    assert reasons["generator"] == "the batch's reward fell from 0.5000 to 0.3000"
    assert reasons[1] == reasons[3] == "the batch's reward fell from 0.5000 to 0.4000"
    assert step.parameters.generator == "phi 0" and step.parameters.encoder == "theta new"
    assert step.parameters.codebook.texts == ("rule zero new", "rule one", "rule two new",
                                              "rule three")  # fmt: skip


async def test_only_theta_routes_anew_and_each_part_is_tried_apart_from_the_rest():
    """Four examples: one run as it is, and one for θ, φ and the instincts each."""
    world = World(settings("improve_each", explore=ENCODED), by_part({}))
    await world.run(examples(4))
    assert len(world.asked("encoder")) == 8
    assert sum("theta new" in said(r) for r in world.asked("encoder")) == 4
    composed = [said(r) for r in world.asked("generator")]
    assert len(composed) == len(world.asked("executor")) == 16
    assert sum("phi new" in s and "rule zero new" not in s for s in composed) == 4
    assert sum("phi new" not in s and " new" in s for s in composed) == 4
    assert sum("phi new" in s and "rule" in s and "rule zero new" in s for s in composed) == 0


async def test_explored_routes_say_nothing_of_theta():
    """All routes are drawn: θ touches no example, and nothing speaks against it. φ is judged."""
    tree = settings("improve_each", explore={"epsilon_min": 1.0})
    world = World(tree, by_part({"generator": -0.2}))
    (step,) = await world.run(examples(4))
    assert world.asked("encoder") == []
    assert {r.variable for r in step.rewrites if r.kept} >= {"encoder", "critic"}
    phi = next(r for r in step.rewrites if r.variable == "generator")
    assert phi.reason == "the batch's reward fell from 0.5000 to 0.3000"


@pytest.mark.parametrize(("count", "lost", "reason"), [
    (4, 2, "the batch's reward fell from 0.5000 to 0.1000"),
    (4, 3, "3 of 4 examples could not be run again"),
    (5, 3, "3 of 5 examples could not be run again"),
])  # fmt: skip
async def test_half_of_the_examples_must_have_a_reward_again(count: int, lost: int, reason: str):
    def reply(request: Request) -> Scripted:
        match request.role:
            case "generator":
                return "new prompt" if "phi 1" in said(request) else "old prompt"
            case "executor" if "new prompt" in said(request):
                return EndpointDown("gone") if int(said(request)[-1]) < lost else "0.1"
            case "updater" if "the directive of the generator" in said(request):
                return "phi 1"
            case _:
                return talkative(request)

    world = World(settings(batch_size=count), ScriptedLM().reply_with(reply))
    (step,) = await world.run(examples(count))
    assert {r.reason for r in step.rewrites if not r.kept} == {reason}


async def test_an_instinct_is_judged_by_the_examples_that_are_routed_to_it():
    """c_0 lost on inputs 0 and 2; what went on with 1 and 3 is not its doing."""
    world = World(settings("improve_each", explore=ENCODED), by_part({0: -0.4, 1: 0.1}))
    (step,) = await world.run(examples(3))
    refused = {r.variable: r.reason for r in step.rewrites if not r.kept}
    assert set(refused) == {0, 2}
    assert refused[0] == "the batch's reward fell from 0.5000 to 0.1000"


@pytest.mark.parametrize("rule", ["improve", "improve_each"])
async def test_other_examples_judge_and_the_batch_is_not_run_again(rule: str):
    """As many as the batch has, drawn by the step, run without the rewrites and with them."""
    data = examples(8)
    world = World(
        settings(rule, 3, "others", explore=ENCODED), by_part({"generator": -0.2}), pool=data
    )
    (step,) = await world.run(data)
    batch = {t.rollout.example_id for t in step.traces}
    runs: dict[str, list[int]] = {}
    for request in world.asked("executor"):
        runs.setdefault(f"x{said(request)[-1]}", []).append(request.sample)
    assert len(batch) == 3 and len(runs) == 6
    times = {"improve": 2, "improve_each": 4}[rule]
    assert {x: len(samples) for x, samples in runs.items()} == {
        x: 1 if x in batch else times for x in runs
    }
    assert all(len(set(samples)) == 1 for samples in runs.values())
    phi = next(r for r in step.rewrites if r.variable == "generator")
    assert phi.reason == "the reward on other examples fell from 0.5000 to 0.3000"
    again = World(world.config, by_part({"generator": -0.2}), pool=data)
    assert await again.run(data) == [step]


@pytest.mark.parametrize("rule", ["improve", "improve_each"])
async def test_what_other_examples_earn_joins_the_averages_with_its_penalty(rule: str):
    """They are paid for. Each of the six earns 0.5, at ρ = 0.4; α = 0.5."""
    data = examples(8)
    tree = settings(rule, 3, "others", explore={**ENCODED, "alpha": 0.5})
    world = World(tree, by_part({"generator": -0.2}), pool=data)
    (step,) = await world.run(data)
    routed_to = sum(k == 0 for t in step.traces for k in t.rollout.route.indices)
    assert sum(step.selected) == 6 * 2 and step.selected[0] > routed_to
    assert len(world.asked("critic")) == 6, "a verdict each"
    assert len(world.asked("attribution")) == len(world.own_gradients) == 3, "of the batch alone"
    assert step.ema == pytest.approx([0.1 * (1 - 0.5**n) for n in step.selected])


async def test_the_others_are_drawn_by_the_step_from_all_that_the_batch_leaves():
    pool = examples(12)
    w = World(config(update={"accept_on": "others"}), pool=pool)
    drawn: list[list[str]] = []
    for step in range(40):
        state = State(step, parameters(), RoutingStatistics.fresh(4))
        runs, _ = await w.learner.rerun.before(Proposal((), (), pool[:3], state, 0.0))
        drawn.append([example.id for example, _ in runs])
    assert {len(set(ids)) for ids in drawn} == {3}
    assert {i for ids in drawn for i in ids} == {e.id for e in pool[3:]}
    assert len({tuple(ids) for ids in drawn}) > 30


async def test_other_examples_explore_as_in_training_and_keep_the_routes_they_drew():
    data = examples(8)
    tree = settings("improve", 3, "others", explore={"epsilon_min": 1.0})
    world = World(tree, by_part({}), pool=data)
    await world.run(data)
    assert world.asked("encoder") == []
    composed = [said(r) for r in world.asked("generator")]
    for before, after in zip(composed[3:6], composed[6:9], strict=True):
        for k in range(4):
            assert (f"\n[{k}] " in before) == (f"\n[{k}] " in after)


async def test_a_batch_that_leaves_no_others_judges_itself():
    data, tree = examples(4), settings("improve", 4, "others", explore=ENCODED)
    world = World(tree, by_part({"generator": -0.2}), pool=data)
    (step,) = await world.run(data)
    assert step.reverted and len(world.asked("executor")) == 8


async def test_an_instinct_that_no_other_example_is_routed_to_is_kept():
    """c_1 and c_3 came from the batch's odd inputs; the others are even."""
    data = [e for e in examples(8) if int(e.id[1:]) % 2 == 0]
    tree = settings("improve_each", 2, "others", explore=ENCODED)
    world = World(tree, by_part({0: -0.1, 1: -0.1}), pool=data)
    (step,) = await world.run([e for e in examples(8) if int(e.id[1:]) % 2][:2])
    kept = {r.variable for r in step.rewrites if r.kept}
    assert kept >= {1, 3} and step.parameters.codebook.texts[1] == "rule one new"


def test_a_rule_is_ours_or_an_installed_package_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gentle.py").write_text("def rule(rerun, proposal): ...")
    info = tmp_path / "gentle-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gentle\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[promptcodebook.acceptance]\ngentle = gentle:rule\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_rule("gentle").__module__ == "gentle"
    with pytest.raises(ConfigError, match=r"rule 'gentel' \(did you mean 'gentle'\?\)") as error:
        find_rule("gentel")
    assert error.value.hint == "choose one of: always, improve, improve_each, gentle"
