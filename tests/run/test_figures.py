"""Figures mean what they say: one figure for one thing, and no 0 for what was not metered."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.errors import ConfigError
from promptcodebook.lm.scripted import ScriptedLM
from tests.build.method import answering
from tests.build.rows import SETTINGS, examples, reward

DATA = pco.Dataset(examples("train", 4), examples("val", 4), examples("test", 24))
ONCE = {**SETTINGS, "update": {"epochs": 1, "batch_size": 4}}


def fickle() -> ScriptedLM:
    """A model whose answer to the same question is another each time."""
    answers = itertools.cycle(["0.1", "0.9", "0.3", "1", "0", "0.4", "0.7"])
    return answering(executor=lambda request: next(answers))


def learn(folder: Path, lm: ScriptedLM, **more: Any) -> pco.Run:
    config = {**ONCE, **more.pop("config", {})}
    return pco.optimize(DATA, reward, lm, config=config, runs_dir=folder, progress=False, **more)


def test_the_verdict_s_recorded_replies_are_not_asked_for_again(tmp_path: Path) -> None:
    lm = fickle()
    run = learn(tmp_path, lm)
    asked = len(lm.history)
    learned = pco.evaluate(run)
    for row in ("present", "concat", "best_fixed"):
        found = pco.evaluate(run, row=row)
        assert found.score == run.rows[row].score
        assert pco.compare(learned, found).gain == run.rows[row].over
        assert found.replies == "from the verdict's recorded replies"
        assert "recorded replies" in found._repr_html_()
    compared = pco.compare(run, run)
    assert compared.a.score == compared.b.score == learned.score == run.rows["learned"].score
    assert "recorded replies" in compared._repr_html_()
    run.explain(DATA.test[0])
    assert len(lm.history) == asked
    # An object that is handed over by name may be any model.
    by_name = pco.evaluate(run.id, DATA, reward, lm, runs_dir=tmp_path)
    again = pco.evaluate(run, again=True)
    assert by_name.replies == again.replies == "asked again"
    assert len(lm.history) == asked + 2 * 3 * 24
    assert again.rewards != learned.rewards


async def aside(prompt: str, example: pco.Example, lm: pco.Chat) -> str:
    """An agent that asks a model of its own."""
    return "0.5"


def test_calls_past_the_meter_are_not_metered_and_never_0(tmp_path: Path) -> None:
    config = {"init": {"kind": "expert"}}
    run = learn(tmp_path, fickle(), executor=aside, config=config)
    assert not any(row.metered for row in run.rows.values())
    assert "over your program as it is" in run.verdict
    assert "with 2 calls per query beside the program's own, which are not metered" in run.verdict
    assert "instead of 0" not in run.verdict and "against 0" not in run.verdict
    assert run.rows["present"].per_query.cost is None
    found = pco.evaluate(run, row="present")
    assert found.replies == "asked again" and not found.as_json()["metered"]
    for page in (found._repr_html_(), run._repr_html_()):
        assert "not metered" in page and "$0" not in page
    judged = run.rollouts.query("split == 'test'")
    assert judged["calls"].isna().all() and judged["cost"].isna().all()


def reporting(**usage: Any) -> Any:
    async def agent(prompt: str, example: pco.Example, lm: pco.Chat) -> pco.Output:
        return pco.Output("0.5", usage=pco.Usage(**usage))

    return agent


def test_an_agent_reports_its_own_usage(tmp_path: Path) -> None:
    own = reporting(calls=2, prompt_tokens=90, completion_tokens=10, cost=0.001)
    run = learn(tmp_path, fickle(), executor=own)
    present = run.rows["present"]
    assert present.metered and (present.calls_per_query, present.per_query.tokens) == (2, 100)
    assert present.per_query.cost == pytest.approx(0.001)
    assert run.usage["executor"].calls == 2 * (len(run.rollouts) + 2 * 4)  # two prompts were tried
    assert pco.load_run(run.path).usage["executor"] == run.usage["executor"]


def test_a_cost_that_was_left_out_is_unknown_and_tokens_took_a_call(tmp_path: Path) -> None:
    run = learn(tmp_path, fickle(), executor=reporting(prompt_tokens=90))
    used = run.rows["present"]
    assert used.calls_per_query == 1 and used.per_query.cost is None


@pytest.mark.parametrize("budget", ["60calls", "3ktok"])
def test_a_budget_is_kept_after_the_fact(tmp_path: Path, budget: str) -> None:
    run = learn(tmp_path, fickle(), executor=reporting(calls=9, prompt_tokens=900), budget=budget)
    assert run.ended == "budget" and "the budget is reached" in str(run.stop)


@pytest.mark.parametrize(
    ("usage", "message"),
    [({"calls": -1}, "reported the usage"), ({"calls": 1}, "without their cost")],
)
def test_a_usage_that_cannot_be_counted_ends_the_run(
    tmp_path: Path, usage: dict[str, Any], message: str
) -> None:
    prices = {"own": {"prompt": 1.0, "completion": 1.0}}
    roles = {"executor": {"max_tokens": 9}, "encoder": {"max_tokens": 9}}
    config = {"prices": prices, "roles": roles}
    with pytest.raises(ConfigError, match=message):
        learn(tmp_path, fickle(), executor=reporting(**usage), budget="5usd", config=config)


def test_a_reward_that_raises_costs_no_second_call(tmp_path: Path) -> None:
    def broken(example: pco.Example, output: str) -> float:
        if example.id == "test3":
            raise KeyError("points")
        return reward(example, output)

    lm = fickle()
    run = pco.optimize(DATA, broken, lm, config=ONCE, runs_dir=tmp_path, progress=False)
    assert run.rows["present"].failed == 1
    lm = fickle()
    pco.evaluate(run, reward=broken, lm=lm, row="present")
    assert len(lm.history) == 24
