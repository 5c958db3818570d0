"""The dry run is the run: it counts what `pco train` would ask, and touches nothing of the user's.

That what a run then takes lies within the estimate is held in tests/cli/test_estimate.py.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.assemble import Plan, Sources, plan_run
from promptcodebook.calls import Role
from promptcodebook.config import load_config
from promptcodebook.errors import ConfigError, DataError
from promptcodebook.estimation.dry import TRAINING, DryManner, Work, dry_run, passes, shorten_plan
from promptcodebook.estimation.estimate import estimate_plan
from tests.build.optimize import QUICK as SHORT
from tests.build.optimize import data, reward

QUICK: dict[str, Any] = {
    "preset": "quick", "task": "constraints", "lm": "simulated", "verdict_examples": 4,
    "update": {"epochs": 4, "batch_size": 6}, "validation": {"examples": 8, "subset": 8},
}  # fmt: skip
USUAL = DryManner(solved=0.5, blamed=0.5, reasked=0.0, refused=0.0, agent_calls=1)


def plan_of(sources: Sources | None = None, **settings: Any) -> Plan:
    return plan_run(load_config(QUICK, settings), sources or Sources())


def dry(plan: Plan, manner: DryManner = USUAL) -> dict[tuple[str, Role], Work]:
    return dict(asyncio.run(dry_run(plan, manner)))


def training(plan: Plan, manner: DryManner = USUAL) -> dict[Role, Work]:
    """The work of training alone."""
    return {role: done for (phase, role), done in dry(plan, manner).items() if phase == TRAINING}


def test_routes_are_counted_exactly() -> None:
    plan = plan_of()
    work = dry(plan)
    found = passes(plan)
    assert work[TRAINING, "encoder"].calls == found.routed, "the trial of θ takes no call"
    assert work[TRAINING, "generator"].calls == passes(plan).rollouts == 24
    assert work["judging", "executor"].calls == pytest.approx(5 * len(plan.judged), abs=2)


def test_what_is_solved_is_not_critiqued() -> None:
    all_solved, none_solved = (training(plan_of(), replace(USUAL, solved=s)) for s in (1.0, 0.0))
    assert "generator" in all_solved
    assert "updater" not in all_solved
    # One in ten is read for the safety clause alone.
    assert 0 < all_solved["critic"].calls < 0.3 * 24
    off = training(plan_of(critic={"safety": False}), replace(USUAL, solved=1.0))
    assert "critic" not in off
    assert none_solved["critic"].calls == 2 * 24  # the verdict, and its own gradient
    assert none_solved["attribution"].calls == 24


def test_examples_that_judge_rewrites_are_counted() -> None:
    """`improve` runs the batch of 12 once more, on others without and with the rewrites; of each
    part apart, at most three times and once without any."""
    made = {
        rule: training(plan_of(validation={"every": 0}, update={
            "epochs": 2, "batch_size": 12, "accept": rule[0], "accept_on": rule[1],
        }))
        for rule in (
            ("always", "batch"), ("improve", "batch"), ("improve", "others"),
            ("improve_each", "batch"), ("improve_each", "others"),
        )
    }  # fmt: skip
    calls = {rule: work["generator"].calls for rule, work in made.items()}
    assert calls["always", "batch"] == 24
    assert calls["improve", "batch"] == 48 and calls["improve", "others"] == 72
    assert 48 < calls["improve_each", "batch"] <= 96
    assert 72 < calls["improve_each", "others"] <= 120


def test_lean_asks_a_critic_once_and_no_generator() -> None:
    small = {"update": {"epochs": 2}, "validation": {"every": 0}, "explore": {"policy": "none"}}
    work = training(plan_of(preset="lean", **small), replace(USUAL, solved=0.0))
    assert work.keys() == {"encoder", "executor", "critic", "updater"}
    assert work["critic"].calls == work["executor"].calls == work["encoder"].calls == 12


def test_a_reply_of_no_use_is_asked_for_again() -> None:
    plan = plan_of(encoder={"max_fallback": 1.0})
    again = training(plan, replace(USUAL, reasked=1.0))
    assert again["encoder"].calls == 2 * passes(plan).routed


@pytest.mark.slow
@pytest.mark.parametrize(("task", "epochs"), [("constraints", 20), ("hotpotqa", 50)])
def test_a_shortened_plan_comes_near_the_whole(task: str, epochs: int) -> None:
    plan = plan_run(load_config({"task": task, "lm": "simulated", "update": {"epochs": epochs}}))
    short = shorten_plan(plan)
    assert passes(short).rollouts < passes(plan).rollouts
    near, whole = estimate_plan(plan), estimate_plan(plan, short=plan)
    assert near.total.calls.expected == pytest.approx(whole.total.calls.expected, rel=0.07)
    assert near.total.tokens.expected == pytest.approx(whole.total.tokens.expected, rel=0.1)


@pytest.mark.parametrize("settings", [
    {"update": {"mode": "online", "epochs": 200}},
    {"update": {"steps_per_epoch": "all", "epochs": 30}, "validation": {"every": 7}},
    {"validation": {"every": 500}, "update": {"epochs": 90}},
])  # fmt: skip
def test_a_shortened_plan_validates_as_often(settings: dict[str, Any]) -> None:
    plan = plan_of(**settings)

    def validations(of: Plan) -> int:
        every = of.config.validation.every
        every *= of.config.update.batch_size if of.config.update.mode == "online" else 1
        return passes(of).updates // every

    assert validations(shorten_plan(plan)) == validations(plan)


@pytest.mark.slow
@pytest.mark.parametrize("select", [1, 2])
def test_the_least_leaves_out_the_composed_prompts_that_may_copy_an_input(select: int) -> None:
    """Three of them, on the 24 inputs that validate; there are none where every prompt is a single
    instinct, and those are all tried. The margin of any estimate is 15 %."""
    routed = {
        "router": {"kind": "outcomes"},
        "select": select,
        "verdict_examples": None,
        "validation": {"examples": None, "subset": 24},
        "compose": "verbatim",
        "update": {"epochs": 2, "batch_size": 12, "text_updates": False},
        "roles": {"executor": {"temperature": 0.0}},
    }
    made = estimate_plan(plan_of(**routed)).total.calls
    left_out = 3 * 23 if select > 1 else 0
    assert made.low == pytest.approx(0.85 * (made.expected - left_out), abs=1.0)


def test_finalists_are_counted_on_the_examples_that_validate() -> None:
    whole, few = (
        dry(plan_of(validation={"every": 1, "examples": n, "subset": 4})) for n in (None, 6)
    )
    phase: tuple[str, Role] = ("validating", "executor")
    val = len(plan_of().dataset.val)
    finalists = (whole[phase].calls - few[phase].calls) / (val - 6)
    assert finalists == pytest.approx(2, abs=0.1)


def test_an_early_stop_lowers_the_low_alone() -> None:
    patient, hasty = (
        plan_of(update={"epochs": 4}, validation={"every": 1, "patience": n}) for n in (9, 1)
    )
    before, after = estimate_plan(patient).total.calls, estimate_plan(hasty).total.calls
    assert after.low < 0.7 * before.low
    assert after.expected == before.expected and after.high == before.high


def test_the_user_s_own_code_and_model_are_not_called() -> None:
    def never(*given: object) -> Any:
        raise AssertionError("called")

    mine = Sources(data=plan_of().dataset, reward=never, executor=never, lm=never)
    estimated = estimate_plan(plan_of(mine, task="", lm=""))
    calls = {share.role: share.calls for share in estimated.roles}
    assert calls["executor"].high > 3 * calls["executor"].expected
    assert any("your executor is counted" in each for each in estimated.assumptions)


@pytest.mark.slow
def test_rounds_of_maintenance_are_counted() -> None:
    """So many calls of the updater a round, also where the plan is shortened below a round."""
    updates = {"epochs": 12, "steps_per_epoch": 1}
    off, on = (
        {"update": {**updates, "maintain_every": every}, "validation": {"every": 0}}
        for every in (0, 4)
    )
    without, with_rounds = (estimate_plan(plan_of(**tree)) for tree in (off, on))
    (before,) = [share for share in without.roles if share.role == "updater"]
    (after,) = [share for share in with_rounds.roles if share.role == "updater"]
    rounds = 12 // 4
    assert after.calls.low == before.calls.low
    assert after.calls.expected - before.calls.expected == pytest.approx(1.5 * rounds, abs=1)
    assert after.calls.high >= before.calls.high + 3 * rounds
    assert after.tokens.expected > before.tokens.expected
    assert any("3 rounds of maintenance" in line for line in with_rounds.assumptions)


# `pco.estimate`: what `optimize` with the same keywords would take; nothing is asked for it.

PRICED: dict[str, Any] = {
    **SHORT, "prices": {"openai/small": {"prompt": 1.0, "completion": 2.0}}
}  # fmt: skip


def test_a_price_makes_money() -> None:
    estimated = pco.estimate(data(), "exact", "openai/small", config=PRICED)
    usd = estimated.total.usd
    assert usd is not None and 0.0 < usd.low <= usd.high
    assert "USD" in repr(estimated)
    smaller = pco.estimate(
        data(), "exact", "openai/small", config=PRICED | {"update": {"epochs": 1}}
    )
    assert smaller.total.usd is not None and smaller.total.usd.expected < usd.expected


def test_what_optimize_would_refuse_is_refused() -> None:
    for wrong in ({"lm": 3}, {"reward": 3}, {"budget": 5}, {"roles": []}):
        given: Any = {"data": data(), "reward": reward, "lm": "simulated", **wrong}
        with pytest.raises(ConfigError, match=r"estimate\(\): "):
            pco.estimate(**given)
    with pytest.raises(DataError, match="training split"):
        pco.estimate(pco.Dataset((), (), ()), reward, "simulated")
    with pytest.raises(ConfigError, match="leaves only exploration"):
        estimate_plan(plan_of(encoder={"mode": "none"}, explore={"policy": "none"}))
