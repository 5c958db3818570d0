"""`pco.effect`: what leaving an instinct out does, against effects that were planted."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

import promptcodebook as pco
from promptcodebook.errors import (
    BudgetReached,
    ConfigError,
    DataError,
    LMError,
    RunBusy,
    TooManyFailures,
)
from promptcodebook.intervals import paired_interval
from promptcodebook.store.effects import EffectStore, effects_mark, read_effects, signed
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import remove_run
from tests.run.test_optimize import data, train

GOOD, BAD, IDLE, UNUSED = 0, 1, 2, 5
ROUTE = json.dumps({"constraints": [], "selected_indices": [0, 1, 2], "analysis": ""})
ADDS = {GOOD: 0.3, BAD: -0.2, IDLE: 0.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pco.Run:
    """Trained on the simulated model; what is measured below asks a scripted one."""
    folder = tmp_path_factory.mktemp("effects")
    return train(folder, size=8, select=3, config={"compose": "verbatim"}, name_it="tickets")


@pytest.fixture
def own(run: pco.Run) -> pco.Run:
    """The run with no effect measured yet."""
    for file in (run.path / "effects").glob("*"):
        file.unlink()
    return run


def worth(example: pco.Example, output: str) -> float:
    """Of an answer: the number that it is."""
    return float(output)


def adds(k: int, task: str) -> float:
    """What an instinct adds to the answer to an input: more to some than to others."""
    return round(ADDS[k] * (0.8 + sum(map(ord, task)) % 9 / 20), 3)


def planted(run: pco.Run, faults: tuple[str, ...] = ()) -> pco.ScriptedLM:
    """Routes every input to 0, 1 and 2, and answers with what these add to its own worth; cannot
    be reached for answers to inputs that hold one of `faults` while instinct 0 is left out."""
    texts = run.codebook.texts

    def answer(request: pco.Request) -> str | Exception:
        if request.role == "encoder":
            return ROUTE
        prompt = request.messages[0].content
        task = request.messages[-1].content
        if texts[GOOD] not in prompt and any(fault in task for fault in faults):
            return LMError("cut off", role="executor")
        own = 0.3 + (sum(map(ord, task)) % 7) / 100
        return str(round(own + sum(adds(k, task) for k in ADDS if texts[k] in prompt), 3))

    return pco.ScriptedLM().reply_with(answer)


@pytest.mark.parametrize("k", ADDS)
def test_a_planted_effect_is_found(own: pco.Run, k: int) -> None:
    found = pco.effect(own, k, reward=worth, lm=planted(own), split="train")
    assert found.difference is not None and found.means is not None
    assert found.n == found.examples == len(data().train)
    true = sum(adds(k, example.input) for example in data().train) / found.n
    assert found.difference.mean == pytest.approx(true)
    assert found.means[0] - found.means[1] == pytest.approx(true)
    pairs = [pair for pair in found.rewards.values() if None not in pair]
    first, second = zip(*pairs, strict=True)
    assert found.difference == paired_interval(first, second, 0)
    sure = found.difference.low > 0 or found.difference.high < 0
    assert sure is bool(ADDS[k]) and sure is ("no clear effect" not in found.sentence)
    assert repr(found).startswith(f"Effect(instinct {k}: {true:+.3f} ")
    html = found._repr_html_()
    assert own.codebook.texts[k] in html and signed(found.difference) in html
    assert signed(found.difference) not in replace(found, rewards={}, difference=None)._repr_html_()


def test_nothing_but_the_route_is_another(own: pco.Run) -> None:
    lm = planted(own)
    pco.effect(own, BAD, reward=worth, lm=lm, n=1)
    with_it, without = (r for r in lm.history if r.role == "executor")
    assert with_it.messages[1:] == without.messages[1:]
    assert (with_it.sampling, with_it.sample) == (without.sampling, without.sample)
    assert with_it.sampling.temperature == 0.0
    line = own.codebook.texts[BAD] + "\n"
    assert with_it.messages[0].content.replace(line, "") == without.messages[0].content


def test_an_instinct_that_no_input_is_routed_to_has_no_effect_to_measure(own: pco.Run) -> None:
    lm = planted(own)
    found = pco.effect(own, UNUSED, reward=worth, lm=lm)
    assert found.difference is None and found.n == 0 and not found.rewards
    assert found.sentence == f"None of {len(data().val)} inputs of the val split is routed to it."
    assert {r.role for r in lm.history} == {"encoder"}


def test_a_failed_rollout_is_counted_and_its_pair_left_out(own: pco.Run) -> None:
    faults = tuple(example.input for example in data().train[:2])
    found = pco.effect(own, GOOD, reward=worth, lm=planted(own, faults), split="train")
    assert found.failed == (0, 2) and found.n == found.examples - 2
    assert found.difference is not None
    true = sum(adds(GOOD, example.input) for example in data().train[2:]) / found.n
    assert found.difference.mean == pytest.approx(true)  # a failure is no reward of 0


def test_an_input_without_a_route_is_tried_once_more_then_counted(own: pco.Run) -> None:
    once, never = (example.input for example in data().train[:2])
    lm, failed = planted(own), list[str]()

    async def ask(request: pco.Request) -> pco.Reply:
        said = request.messages[-1].content
        for task in (once, never) if request.role == "encoder" else ():
            if task in said and (task == never or task not in failed):
                failed.append(task)
                raise LMError("cut off", role="encoder")
        return await lm(request)

    found = pco.effect(own, GOOD, reward=worth, lm=ask, split="train")
    assert sorted(failed) == sorted([once, never, never])
    assert found.unrouted == 1 and found.n == found.examples - 1 == len(found.rewards)


def test_where_no_pair_is_whole_there_is_an_error_and_no_result(own: pco.Run) -> None:
    faults = tuple(example.input for example in data().val)
    with pytest.raises(TooManyFailures, match="cut off"):
        pco.effect(own, GOOD, reward=worth, lm=planted(own, faults))
    assert read_effects(own.path) == []


def most_routed(run: pco.Run) -> int:
    """The instinct that the kept policy chose most often, on the test and validation splits."""
    with closing(RunStore.open(run.path)) as store:
        kept = store.validation_at(run.best.step)
        assert kept is not None
        learned = [e for e in store.test_evaluations() if e.name == "learned"]
        routes = [r.route for e in (kept.evaluation, *learned) for r in e.rollouts if r.route]
    return Counter(k for route in routes for k in route.indices).most_common(1)[0][0]


def paid(run: pco.Run) -> int:
    """Calls of all measurements of the run."""
    with closing(sqlite3.connect(run.path / "effects" / "effects.sqlite")) as db:
        return sum(calls for (calls,) in db.execute("SELECT calls FROM usage"))


def test_what_was_paid_for_is_not_asked_again(own: pco.Run) -> None:
    k = most_routed(own)
    first = pco.effect(own, k, split="test")
    asked = paid(own)
    again = pco.effect(own, k, split="test")
    assert asked > 0 and paid(own) == asked and again.rewards == first.rewards
    [kept] = read_effects(own.path)
    assert kept == again
    beside = next(i for i in range(8) if i != k)
    other = pco.effect(own, beside, split="test")
    assert paid(own) == asked + len(other.rewards)  # routes and answers with it are known
    assert [effect.instinct for effect in read_effects(own.path)] == [k, other.instinct]


def indifferent(request: pco.Request) -> str:
    """Routes as `planted` does, and answers the same whatever the prompt."""
    return ROUTE if request.role == "encoder" else "0.5"


def test_an_object_is_asked_anew_for_it_may_be_another(own: pco.Run) -> None:
    first, idle = planted(own), pco.ScriptedLM().reply_with(indifferent)
    pco.effect(own, GOOD, reward=worth, lm=first)
    found = pco.effect(own, GOOD, reward=worth, lm=idle)
    assert len(idle.history) == len(first.history) and found.means == (0.5, 0.5)
    assert read_effects(own.path) == [found]


def test_what_the_run_has_asked_is_not_asked_again(own: pco.Run) -> None:
    """Its whole validation split was routed and answered by the policy that it keeps."""
    found = pco.effect(own, most_routed(own))
    assert found.n > 0 and found.simulated and "simulated model" in found._repr_html_()
    with closing(sqlite3.connect(own.path / "effects" / "effects.sqlite")) as db:
        [(asked,)] = db.execute("SELECT COUNT(*) FROM journal")
    assert asked == paid(own) == found.n  # the answers without it


def test_a_budget_stops_it_and_the_same_words_go_on(own: pco.Run) -> None:
    k = most_routed(own)
    with pytest.raises(BudgetReached, match="3 calls") as caught:
        pco.effect(own, k, split="test", budget="3calls")
    assert "with a new budget: what was paid for so far is kept" in caught.value.hint
    assert paid(own) == 3 and effects_mark(own.path) == 0
    for _ in range(20):  # as the hint says: each time it goes on from there
        with suppress(BudgetReached):
            pco.effect(own, k, split="test", budget="3calls")
    [whole] = read_effects(own.path)
    assert whole.n > 0 and whole.n == len(whole.rewards)
    stopped_and_not = paid(own)
    for file in (own.path / "effects").glob("*"):
        file.unlink()
    assert pco.effect(own, k, split="test").rewards == whole.rewards
    assert paid(own) == stopped_and_not


def test_of_an_object_nothing_is_kept_when_a_budget_stops_it(own: pco.Run) -> None:
    lm = planted(own)
    with pytest.raises(BudgetReached, match="10 calls") as caught:
        pco.effect(own, GOOD, reward=worth, lm=lm, split="train", budget="10calls")
    assert len(lm.history) == 10 and "kept" not in caught.value.hint


async def test_within_a_loop_by_name_and_for_a_policy_that_is_no_run(
    own: pco.Run, tmp_path: Path
) -> None:
    given = {"reward": worth, "lm": planted(own), "n": 3}
    found = await pco.aeffect("tickets", GOOD, data(), **given, runs_dir=own.path.parent)  # type: ignore[arg-type]
    assert found.n == 3 and read_effects(own.path) == [found]
    of_a_file = await pco.aeffect(own.policy, GOOD, data(), **given)  # type: ignore[arg-type]
    assert of_a_file.rewards == found.rewards and len(read_effects(own.path)) == 1


def test_other_data_with_the_same_ids_are_another_question(own: pco.Run) -> None:
    whole = data()
    other = replace(whole, val=tuple(replace(each, target="another") for each in whole.val))
    first = pco.effect(own, GOOD, reward=worth, lm=planted(own))
    second = pco.effect(own, GOOD, other, worth, planted(own))
    assert first.data != second.data and read_effects(own.path) == [first, second]


def test_one_process_measures_at_a_time(own: pco.Run) -> None:
    with closing(EffectStore(own.path, "pco")):
        busy = f"an instinct of the run {own.id} is being measured by process"
        with pytest.raises(RunBusy, match=busy):
            pco.effect(own, GOOD, reward=worth, lm=planted(own), n=1)
        with pytest.raises(RunBusy, match=busy):
            remove_run(own.path)
        assert read_effects(own.path) == [] and pco.load_run(own.path).ended == "finished"
    assert pco.effect(own, GOOD, reward=worth, lm=planted(own), n=1).n == 1


@pytest.mark.parametrize(
    ("k", "given", "said"),
    [
        (8, {}, "no instinct 8: it has 8"),
        (-1, {}, "no instinct -1"),
        ("a", {}, "k is of type str"),
        (0, {"split": "vla"}, "vla"),
        (0, {"n": 0}, "cannot evaluate 0"),
        (0, {"budget": 5}, "budget is of type int"),
    ],
)
def test_what_is_wrong_is_named(own: pco.Run, k: int, given: dict[str, object], said: str) -> None:
    with pytest.raises((ConfigError, DataError), match=said) as caught:
        pco.effect(own, k, **given)  # type: ignore[arg-type]
    assert caught.value.hint


def test_another_policy_model_of_a_role_or_reward_is_another_question(own: pco.Run) -> None:
    """By whom each role was asked counts, and not in which order the roles are named."""
    found = pco.effect(own, GOOD, reward=worth, lm=planted(own), n=2)
    both = replace(found, models={"encoder": "a", "executor": "b"})
    swapped = replace(both, models={"encoder": "b", "executor": "a"})
    alone = replace(both, models={"encoder": "a"})
    other_reward = replace(both, scored_by="another reward")
    other_policy = replace(both, policy="of another")
    again = replace(both, models={"executor": "b", "encoder": "a"}, at="2027-01-01T00:00:00+00:00")
    with closing(EffectStore(own.path, "pco")) as store:
        for effect in (both, swapped, alone, other_reward, other_policy, again):
            store.add(effect)
    kept = [(dict(each.models), each.policy, each.at) for each in read_effects(own.path)]
    assert len(kept) == 6 and (dict(again.models), again.policy, again.at) in kept
    assert kept.count((dict(both.models), both.policy, both.at)) == 1, "the other reward's"
