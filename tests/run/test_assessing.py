"""`pco.evaluate`, `pco.compare` and `pco.load_run`: what the commands do, from Python."""

import json
import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest

import promptcodebook as pco
from promptcodebook import errors
from promptcodebook.base.intervals import Interval, paired_interval
from promptcodebook.run.evaluation import Comparison, Side
from promptcodebook.store.run import RunStore
from tests.build.cases import table
from tests.build.optimize import data, reward, train
from tests.build.store import edit_header


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pco.Run:
    return train(tmp_path_factory.mktemp("assessed"), size=8, select=3, name_it="tickets")


@pytest.fixture(scope="module")
def learned(run: pco.Run) -> pco.Assessment:
    return pco.evaluate(run)


class Counted:
    """A model that counts its calls."""

    def __init__(self) -> None:
        self.asked: list[pco.Request] = []

    @property
    def calls(self) -> int:
        return len(self.asked)

    async def __call__(self, request: pco.Request) -> pco.Reply:
        self.asked.append(request)
        picked = '{"constraints": [], "selected_indices": [0, 1, 2], "analysis": ""}'
        return pco.Reply(text=picked if request.role == "encoder" else "use the stated thing")


# --- evaluate ---


def test_a_run_is_evaluated_as_its_verdict_judged_it(run: pco.Run, learned: pco.Assessment) -> None:
    """The objects that it was made with are those of this process, and need not be said again."""
    judged = list(run.rows.values())[-1]
    assert learned.score.mean == pytest.approx(judged.score.mean)
    assert learned.simulated and learned.name == "tickets"
    assert set(learned.rewards) == {e.id for e in data().test}
    assert repr(learned).startswith("Assessment('tickets', 'test': ")
    assert "simulated model, test split, n = 8" in learned._repr_html_()


async def test_a_name_a_policy_and_its_file_are_evaluated_with_what_they_are_given(
    run: pco.Run, learned: pco.Assessment, tmp_path: Path
) -> None:
    again = await pco.aevaluate("tickets", data(), reward, runs_dir=run.path.parent)
    assert again.rewards == pco.evaluate(run.policy).rewards == learned.rewards
    run.policy.save(tmp_path / "p.json")
    from_file = pco.evaluate(tmp_path / "p.json", data(), reward, "simulated")
    assert from_file.rewards == learned.rewards
    loaded = pco.load_policy(tmp_path / "p.json", lm="simulated")
    with pytest.raises(errors.ConfigError, match="no data: "):
        pco.evaluate(loaded)
    with pytest.raises(errors.ConfigError, match="no reward is set"):
        pco.evaluate(loaded, data())
    assert pco.evaluate(loaded, data(), "contains", n=2).score.n == 2


def test_another_reward_split_and_row_are_taken(run: pco.Run) -> None:
    assert set(pco.evaluate(run, reward=lambda e, o: 0.25, split="val").rewards.values()) == {0.25}
    with pytest.raises(errors.DataError, match="empty"):
        pco.evaluate(run, pco.Dataset(train=(), val=(), test=()))
    ready = pco.evaluate(run, reward=pco.rewards.regex("no answer has this"), n=4)
    assert set(ready.rewards.values()) == {0.0}
    concat = pco.evaluate(run, row="concat", n=3)
    assert concat.kind == "concat" and concat.score.n == 3
    assert {r.prompt for r in concat.evaluation.rollouts} == {run.rows["concat"].prompt}
    assert "row='concat'" in repr(concat)


@pytest.mark.parametrize(("given", "message"), [
    *table(__file__, "faults"),
    *(({name: None}, f"{name} is of type NoneType") for name in ("row", "split", "runs_dir")),
    ({"reward": pco.rewards.exact}, r"ready-made.*call it: exact\(\)"),
])  # fmt: skip
def test_what_is_wrong_is_named(run: pco.Run, given: dict[str, object], message: str) -> None:
    with pytest.raises((errors.ConfigError, errors.DataError)) as caught:
        pco.evaluate(run, **given)  # type: ignore[arg-type]
    assert caught.value.hint and "--" not in caught.value.hint
    assert re.search(message, f"{caught.value} {caught.value.hint}")


def test_a_policy_must_be_one_a_keyword_known_and_a_budget_holds(run: pco.Run) -> None:
    with pytest.raises(errors.ConfigError, match=r"evaluate\(\): "):
        pco.evaluate(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"unknown keyword 'bugdet'.*did you mean 'budget'"):
        pco.evaluate(run, bugdet="1calls")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"compare\(\): unknown keyword 'row'"):
        pco.compare(run, run, row="concat")  # type: ignore[call-arg]
    with pytest.raises(errors.BudgetReached, match="budget") as caught:
        pco.evaluate(run, budget="3calls", again=True)
    assert "pco train" not in caught.value.hint and "raise the budget" in caught.value.hint


# --- progress ---


# --- compare ---


def test_two_policies_are_compared_on_the_same_examples(
    run: pco.Run, learned: pco.Assessment, tmp_path: Path
) -> None:
    none = pco.evaluate(run, row="none")
    compared = pco.compare(run, none)
    row = run.rows["present"]
    assert row.over is not None and row.score.mean == pytest.approx(none.score.mean)
    assert compared.gain.mean == pytest.approx(row.over.mean)
    assert (compared.gain.low, compared.gain.high) == pytest.approx((row.over.low, row.over.high))
    assert compared.better == ("a" if row.over.low > 0 else "b" if row.over.high < 0 else "")
    assert sum(compared.differences.values()) / 8 == pytest.approx(compared.gain.mean)
    assert pco.compare(none, learned).gain.mean == pytest.approx(-compared.gain.mean)
    saved = tmp_path / "none.json"
    saved.write_text(json.dumps(none.as_json()))
    assert pco.compare(learned, saved).gain == compared.gain
    assert "A - B" in compared._repr_html_() and compared.sentence.startswith("A - B: ")


def test_a_difference_pairs_by_example_within_the_range_of_the_rewards() -> None:
    """In whichever order the two were kept. Equal pairs exclude little where rewards lie far apart,
    and the draws are those of seed 0 at every call."""

    def gain(ours: dict[str, float], theirs: dict[str, float], reach: float = 0.0) -> Interval:
        a, b = (Side("", r, "test", False, (-reach, reach or 1.0)) for r in (ours, theirs))
        return Comparison.of(a, b).gain

    first = {f"e{i}": i / 40 for i in range(40)}
    turned = dict(reversed(first.items()))
    same = gain(first, turned)
    assert (same.mean, same.n) == (0.0, 40) and same.high < 0.1
    assert gain(first, turned, 10.0).high == pytest.approx(20 * same.high)
    other = {name: (7 * i % 40) / 50 for i, name in enumerate(first)}
    expected = paired_interval(list(first.values()), list(other.values()))
    assert gain(first, other) == expected
    with pytest.raises(errors.DataError, match="no examples to compare"):
        gain({}, {})


def test_other_examples_cannot_be_compared(run: pco.Run, learned: pco.Assessment) -> None:
    four = pco.evaluate(run, n=4)
    with pytest.raises(errors.DataError, match="only one of the two was evaluated on"):
        pco.compare(four, learned)
    lm = Counted()
    with pytest.raises(errors.DataError, match="only one of the two was evaluated on"):
        pco.compare(run, four, lm=lm, n=5)
    assert lm.calls == 0, "refused before anything was paid for"


def test_different_rewards_cannot_be_compared(run: pco.Run, tmp_path: Path) -> None:
    exact, f1 = pco.evaluate(run, reward="exact"), pco.evaluate(run, reward="f1")
    with pytest.raises(errors.DataError, match="not scored by the same reward: exact and f1"):
        pco.compare(exact, f1)
    lm = Counted()
    with pytest.raises(errors.DataError, match="same reward"):
        pco.compare(run, exact, reward=pco.rewards.f1(), lm=lm)
    assert lm.calls == 0
    assert pco.compare(exact, run, reward={"kind": "exact"}).gain.mean == 0.0, "the same in a table"
    for name, assessment in (("exact", exact), ("f1", f1)):
        (tmp_path / f"{name}.json").write_text(json.dumps(assessment.as_json()))
    with pytest.raises(errors.DataError, match="same reward"):
        pco.compare(tmp_path / "exact.json", tmp_path / "f1.json")
    old = {k: v for k, v in f1.as_json().items() if k != "scored_by"}
    (tmp_path / "f1.json").write_text(json.dumps(old))
    assert pco.compare(exact, tmp_path / "f1.json").gain.n == 8, "unknown in a file of before"


def test_each_side_is_called_by_what_it_is(run: pco.Run, learned: pco.Assessment) -> None:
    concat = pco.evaluate(run, row="concat")
    compared = pco.compare(run, concat)
    assert (compared.a.name, compared.b.name) == ("tickets", "tickets (concat)")
    for ref in ("tickets", run.id, run.path, pco.load_run(run.path, data(), reward)):
        named = pco.evaluate(ref, data(), reward, n=1, runs_dir=run.path.parent)
        assert named.name == learned.name == "tickets"


async def test_the_other_side_takes_the_examples_of_an_assessment(run: pco.Run) -> None:
    for known in (pco.evaluate(run, n=3), pco.evaluate(run, split="val")):
        compared = pco.compare(run, known)
        assert set(compared.differences) == set(known.rewards)
        assert compared.split == known.evaluation.split
        same = await pco.acompare(known, run)
        assert (same.gain.n, same.gain.mean, same.better) == (len(known.rewards), 0.0, "")
        assert repr(same).startswith("Comparison('tickets' - 'tickets' = +0.000 ")


async def test_a_budget_holds_for_both_sides_together(run: pco.Run) -> None:
    lm = Counted()
    pco.compare(run, run, lm=lm)
    whole = lm.calls
    with pytest.raises(errors.BudgetReached):
        pco.compare(run, run, lm=lm, budget=f"{whole - 1}calls")
    assert lm.calls == 2 * whole - 1
    with pytest.raises(errors.BudgetReached):
        await pco.acompare(run, run, lm=lm, budget=f"{whole - 1}calls")
    assert lm.calls == 3 * whole - 2
    pco.compare(run, run, lm=lm, budget=f"{whole}calls")


# --- load_run ---


def test_a_finished_run_is_loaded_as_it_was_returned(run: pco.Run) -> None:
    loaded = pco.load_run("tickets", data(), reward, runs_dir=run.path.parent)
    for name in ("id", "path", "ended", "verdict", "worth", "best", "name", "deploy", "cost"):
        assert getattr(loaded, name) == getattr(run, name), name
    assert loaded.conclusion == run.conclusion
    assert {role: u.calls for role, u in loaded.usage.items()} == {
        role: u.calls for role, u in run.usage.items()
    }
    assert loaded.codebook == run.codebook
    assert loaded.policy.file.digest == run.policy.file.digest
    assert loaded.policy is loaded.policy, "made once"
    assert pco.evaluate(loaded, n=4).rewards == pco.evaluate(run, n=4).rewards


def test_a_stopped_run_is_loaded_with_what_to_do_next(tmp_path: Path) -> None:
    stopped = train(tmp_path, budget="60calls")
    loaded = pco.load_run(stopped.path)
    assert (loaded.ended, loaded.verdict) == (stopped.ended, stopped.verdict) and loaded.stop
    assert stopped.stop is not None and loaded.stop.hint == stopped.stop.hint
    assert "resume=" in loaded.stop.hint
    if loaded.file is not None:
        assert loaded.codebook == stopped.codebook


def test_a_run_that_is_being_written_says_so(run: pco.Run, tmp_path: Path) -> None:
    copy = tmp_path / run.id
    shutil.copytree(run.path, copy)
    with closing(RunStore.open(copy, write=True)):
        assert pco.load_run(copy).ended == "running"
    assert pco.load_run(copy).ended == "finished"


def test_no_model_is_needed_to_read_a_run_but_to_use_its_policy(tmp_path: Path) -> None:
    def answer(request: pco.Request) -> str:
        picked = '{"constraints": [], "selected_indices": [0, 1, 2, 3], "analysis": ""}'
        judged = '{"score": 1.0, "feedback": ""}'
        return {"encoder": picked, "critic": judged}.get(request.role, "use the stated thing")

    lm = pco.ScriptedLM().reply_with(answer)
    config = {"update": {"epochs": 1, "batch_size": 4}}
    train(tmp_path, lm=lm, config=config)
    loaded = pco.load_run("last", runs_dir=tmp_path / "runs")
    assert len(loaded.codebook) > 0 and loaded.verdict
    with pytest.raises(errors.ConfigError, match="was made with an LM object") as caught:
        _ = loaded.policy
    assert f"pco.load_run('{loaded.id}', lm=" in caught.value.hint
    again = pco.load_run("last", lm=lm, runs_dir=tmp_path / "runs")
    assert again.policy.answer("In 4 words: what are rivers good for?") == "use the stated thing"
    with pytest.raises(errors.ConfigError, match="took data, reward as Python objects"):
        pco.evaluate(again)
    assert pco.evaluate(again, data(), reward, n=2).score.n == 2


def test_a_run_of_somebody_else_may_be_read_and_calls_nobody(run: pco.Run, tmp_path: Path) -> None:
    copy = tmp_path / run.id
    shutil.copytree(run.path, copy)
    theirs = "http://127.0.0.1:9/v1#theirs"
    edit_header(
        copy / "run.sqlite",
        lambda text: text.replace('"lm": "simulated"', f'"lm": "{theirs}"'),
        sealed=False,
    )
    loaded = pco.load_run(copy)
    assert loaded.verdict == run.verdict and loaded.codebook == run.codebook
    with pytest.raises(errors.RunNotTrusted, match=theirs) as refused:
        _ = loaded.policy
    assert "trust=True" in refused.value.hint
    assert pco.load_run(copy, trust=True).policy.config.lm == theirs
    assert pco.load_run(copy, lm="simulated").policy.config.lm == "simulated"
