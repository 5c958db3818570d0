"""Which rewrites of a step stay: `accept: improve` and `improve_each`, on the batch and on other
examples (decision 9)."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from promptcodebook.calls import Request
from promptcodebook.errors import ConfigError, EndpointDown
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.acceptance import find_rule
from promptcodebook.types import Variable
from tests.build.method import (
    ENCODED,
    World,
    answering,
    attributed,
    config,
    examples,
    parameters,
    routed,
    saying,
    sent,
)
from tests.build.teachable import install_package


def settings(accept: str = "improve", batch_size: int = 4, on: str = "batch", **tree):
    update = {"batch_size": batch_size, "epochs": 1, "accept": accept, "accept_on": on}
    return config(update={**update, "encoder_on_explored": True}, **tree)


def under_new_phi(execute: Callable[[Request], Scripted]) -> ScriptedLM:
    """0.5 under the old φ; under the new one what `execute` says."""
    about = "the directive of the generator"
    return answering(
        generator=lambda r: "new prompt" if "phi 1" in sent(r) else "old prompt",
        executor=lambda r: execute(r) if "new prompt" in sent(r) else None,
        updater=lambda r: "phi 1" if about in sent(r) else None,
    )


def after_rewriting(reward: Scripted, lost: int = 0) -> ScriptedLM:
    """`reward` under the new φ, unless the input is one of those lost."""
    return under_new_phi(lambda r: EndpointDown("gone") if int(sent(r)[-1]) < lost else reward)


@pytest.mark.parametrize("reward", ["0.5", "0.9"])
async def test_rewrites_are_kept_when_the_reward_has_not_fallen(reward: str):
    """Decision 9: equal is not fallen. The averages learn from the run as it was; it is repeated
    with the same samples, noise and all."""
    world = World(settings(explore={**ENCODED, "alpha": 1.0}), after_rewriting(reward))
    (step,) = await world.run(examples(4))
    assert not step.reverted and all(r.kept for r in step.rewrites)
    assert step.parameters.generator == "phi 1"
    assert step.success == pytest.approx((0.5, 0.5, 0, 0))
    samples = [(r.messages[-1].content, r.sample) for r in world.asked("executor")]
    assert samples[:4] == samples[4:] and len(set(samples)) == 4 and len(samples) == 8


@pytest.mark.parametrize(("on", "calls"), [("batch", 4 * (3 + 3)), ("others", 4 * (1 + 3 + 3))])
@pytest.mark.parametrize(("luck", "kept"), [("0.6", False), ("0.8", True)])
async def test_of_several_samples_the_means_are_compared(
    on: str, calls: int, luck: str, kept: bool
):
    """A batch's own rollout is the first of its samples. One lucky sample decides nothing, and one
    that fails is left out."""
    drawn = Counter[str]()

    def execute(request: Request) -> Scripted:
        drawn[sent(request)] += 1
        return (luck, "0.3", EndpointDown("gone"))[drawn[sent(request)] - 1]

    world = World(settings(on=on, samples=3), under_new_phi(execute), pool=examples(9))
    (step,) = await world.run(examples(4))
    assert len(world.asked("executor")) == calls and len(drawn) == 4
    assert (step.parameters.generator == "phi 1") is kept
    name = "the reward on other examples" if on == "others" else "the batch's reward"
    reasons = {r.reason for r in step.rewrites if not r.kept}
    assert reasons == (set() if kept else {f"{name} fell from 0.5000 to 0.4500"})


@pytest.mark.parametrize(("count", "lost", "reason"), [
    (4, 2, "the batch's reward fell from 0.5000 to 0.1000"),
    *((n, m, f"{m} of {n} examples could not be rerun") for n, m in ((4, 3), (4, 4), (5, 3))),
])  # fmt: skip
async def test_half_of_the_examples_must_have_a_reward_again(count: int, lost: int, reason: str):
    """No reward is no proof that the reward did not fall."""
    world = World(settings(batch_size=count), after_rewriting("0.1", lost))
    (step,) = await world.run(examples(count))
    assert step.reverted and {r.reason for r in step.rewrites if not r.kept} == {reason}


@pytest.mark.parametrize("rule", ["always", "improve", "improve_each"])
async def test_only_what_may_change_something_is_run_again(rule: str):
    """Not what had no reward before, nor what a check refused, nor anything for `always`."""

    def no(variable, text, before, others):
        return None if variable == "critic" else f"no {variable}"

    world = World(settings(rule), after_rewriting("0.1"), check=no)
    (step,) = await world.run(examples(4))
    assert len(world.asked("executor")) == 4 and not step.reverted
    assert {r.reason for r in step.rewrites if r.variable == "generator"} == {"no generator"}

    world = World(settings(rule), saying("executor", EndpointDown("gone"), "input 0"))
    (step,) = await world.run(examples(4))
    assert sum("input 0" in sent(r) for r in world.asked("executor")) == 1
    assert rule != "always" or len(world.asked("executor")) == 4


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
            assert (f"\n[{k}] " in sent(first)) == (f"\n[{k}] " in sent(again)) == (k in z)
    encoded = World(settings(explore={"policy": "none"}), after_rewriting("0.9"))
    await encoded.run(examples(4))
    thetas = [sent(r).splitlines()[0] for r in encoded.asked("encoder")]
    assert thetas[:4] == ["theta 0"] * 4 and thetas[4] == thetas[7] != "theta 0"


# --- each on its own effect


NAMES = ("theta", "phi", "psi", "rule zero", "rule one", "rule two", "rule three")
PARTS: dict[str, Variable] = {
    "phi new": "generator", "rule zero new": 0, "rule one new": 1, "rule two new": 2,
    "rule three new": 3,
}  # fmt: skip


def by_part(
    worth: dict[Variable, float], under_new_theta: tuple[int, int] | None = None
) -> ScriptedLM:
    """Every part is rewritten to '<part> new'; the reward is 0.5 and what the new ones are worth.

    Even inputs are routed to 0 and 2, odd ones to 1 and 3, unless the new θ routes elsewhere; the
    prompt says what went into it.
    """

    def route(request: Request) -> Scripted:
        if "theta new" in sent(request) and under_new_theta is not None:
            return routed(*under_new_theta)
        odd = int(sent(request)[-1]) % 2
        return routed(odd, odd + 2)

    def reward(request: Request) -> Scripted:
        gains = sum(worth.get(v, 0) for text, v in PARTS.items() if text in sent(request))
        new_route = "[0] rule" in sent(request) and "[3] rule" in sent(request)
        return str(round(0.5 + gains + (worth.get("encoder", 0) if new_route else 0), 3))

    def rewrite(request: Request) -> Scripted:
        about = sent(request).partition("Present text:\n")[2]
        return next(f"{name} new" for name in NAMES if about.startswith(name))

    blame = attributed("say it", {k: f"sharpen {k}" for k in range(4)}, "read x")
    return answering(
        encoder=route,
        generator=lambda r: "prompt of " + "; ".join(sent(r).split("\n")),
        executor=reward,
        attribution=lambda r: blame,
        updater=rewrite,
    )


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
    # Four examples: one run as it is, and one each for θ (with new routes), φ and the instincts.
    assert len(world.asked("encoder")) == 8
    assert sum("theta new" in sent(r) for r in world.asked("encoder")) == 4
    composed = [sent(r) for r in world.asked("generator")]
    assert len(composed) == len(world.asked("executor")) == 16
    assert sum("phi new" in s and "rule zero new" not in s for s in composed) == 4
    assert sum("phi new" not in s and " new" in s for s in composed) == 4
    assert sum("phi new" in s and "rule" in s and "rule zero new" in s for s in composed) == 0


@pytest.mark.parametrize("rule", ["improve", "improve_each"])
async def test_other_examples_judge_and_the_batch_is_not_run_again(rule: str):
    """As many as the batch has, drawn by the step, run without the rewrites and with them. What
    they earn joins the averages: each of the six earns 0.5, at ρ = 0.4; α = 0.5."""
    data, explore = examples(8), {**ENCODED, "alpha": 0.5}
    world = World(
        settings(rule, 3, "others", explore=explore), by_part({"generator": -0.2}), pool=data
    )
    (step,) = await world.run(data)
    batch = {t.rollout.example_id for t in step.traces}
    runs: dict[str, list[int]] = {}
    for request in world.asked("executor"):
        runs.setdefault(f"x{sent(request)[-1]}", []).append(request.sample)
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
    routed_to = sum(k == 0 for t in step.traces for k in t.rollout.route.indices)
    assert sum(step.selected) == 6 * 2 and step.selected[0] > routed_to
    assert len(world.asked("critic")) == 6, "a verdict each"
    assert len(world.asked("attribution")) == len(world.adversary_calls) == 3, "of the batch alone"
    assert step.ema == pytest.approx([0.1 * (1 - 0.5**n) for n in step.selected])


async def test_what_touches_no_example_is_kept():
    """c_1 and c_3 came from the batch's odd inputs, and the others are even; drawn routes say
    nothing of θ. A batch that leaves no others judges itself."""
    drawn = settings("improve_each", explore={"epsilon_min": 1.0})
    (step,) = await World(drawn, by_part({"generator": -0.2})).run(examples(4))
    assert {r.variable for r in step.rewrites if r.kept} >= {"encoder", "critic"}
    phi = next(r for r in step.rewrites if r.variable == "generator")
    assert phi.reason == "the batch's reward fell from 0.5000 to 0.3000"
    data, tree = examples(4), settings("improve", 4, "others", explore=ENCODED)
    world = World(tree, by_part({"generator": -0.2}), pool=data)
    (step,) = await world.run(data)
    assert step.reverted and len(world.asked("executor")) == 8
    data = [e for e in examples(8) if int(e.id[1:]) % 2 == 0]
    tree = settings("improve_each", 2, "others", explore=ENCODED)
    world = World(tree, by_part({0: -0.1, 1: -0.1}), pool=data)
    (step,) = await world.run([e for e in examples(8) if int(e.id[1:]) % 2][:2])
    kept = {r.variable for r in step.rewrites if r.kept}
    assert kept >= {1, 3} and step.parameters.codebook.texts[1] == "rule one new"


def test_a_rule_is_ours_or_an_installed_package_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = "def rule(rescore, candidate): ...\n"
    (tmp_path / "gentle.py").write_text(rule.replace("rule", "plain") + "async " + rule)
    entries = "[promptcodebook.acceptance]\ngentle = gentle:rule\nplain = gentle:plain\n"
    install_package(tmp_path, "gentle", entries)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_rule("gentle").__module__ == "gentle"
    with pytest.raises(ConfigError, match=r"accept 'gentel' \(did you mean 'gentle'\?\)") as error:
        find_rule("gentel")
    assert error.value.hint == "update.accept = one of always, improve, improve_each, gentle, plain"
    with pytest.raises(ConfigError, match="'plain' is not async"):
        find_rule("plain")
