"""`samples`: an executor whose answers vary is judged by the mean of several."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.base.randomness import keyed_random
from promptcodebook.calls import Request
from promptcodebook.estimation.estimate import estimate
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.progress import Phase, ProgressEvent
from tests.build.topics import PHRASES, data, learn, obey

N = 4
SHORT: dict[str, Any] = {"update": {"epochs": 2}, "explore": {"epsilon": 0.5}}


def noisy(request: Request) -> str:
    """Right in seven of ten answers under the right rule, else in three, by each sample's draw."""
    draw = keyed_random(request.sample, *(m.content for m in request.messages))
    [letter] = (
        k for k, of in PHRASES.items() if any(p in request.messages[-1].content for p in of)
    )
    return letter if draw.random() < (0.7 if obey(request) == letter else 0.3) else "?"


def run(where: Path, samples: int | None = N, **more: Any) -> tuple[pco.Run, ScriptedLM]:
    lm = ScriptedLM().reply_with(noisy)
    return learn(where, lm=lm, samples=samples, config=SHORT, **more), lm


def keys(asked: Iterable[Request]) -> Counter[tuple[object, ...]]:
    """How often each request was asked for."""
    return Counter((r.role, r.sample, *(m.content for m in r.messages)) for r in asked)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[pco.Run, ScriptedLM]:
    return run(tmp_path_factory.mktemp("whole"))


def test_a_verdict_counts_each_example_by_the_mean_of_its_samples(
    whole: tuple[pco.Run, ScriptedLM], tmp_path: Path
) -> None:
    """Each sample is a call of its own; a query still takes one. The interval is of means."""
    made, lm = whole
    assert set(keys(lm.history).values()) == {1}
    present = made.rows["present"]
    system = made.rows["present"].prompt
    assert system is not None
    inputs = {example.input for example in data().test}
    asked = [r for r in lm.history if r.messages[-1].content in inputs]
    mine = Counter(r.messages[-1].content for r in asked if r.messages[0].content == system)
    assert mine == dict.fromkeys(inputs, N) and not any(r.greedy for r in asked)
    assert (present.calls_per_query, present.per_query.calls, present.score.n) == (1.0, 1, 32)
    assert "counts as the mean of 4 answers" in made.verdict
    heard = list[ProgressEvent]()
    once, other = run(tmp_path / "once", None)
    run(tmp_path / "heard", 2, listener=heard.append)
    counts = {(e.done, e.total) for e in heard if isinstance(e, Phase) and "present" in e.name}
    assert counts == {(done, 64) for done in range(65)}
    assert "mean of" not in once.verdict
    assert all(r.greedy for r in other.history if r.messages[-1].content in inputs)
    wide, narrow = (r.rows["learned"].score for r in (once, made))
    assert narrow.high - narrow.low < 0.75 * (wide.high - wide.low)


@pytest.mark.slow
def test_a_run_that_is_stopped_resumes_with_the_samples_it_had(
    whole: tuple[pco.Run, ScriptedLM], tmp_path: Path
) -> None:
    """Wherever the budget ends, no call is made beyond it, and none is made twice."""
    expected, known = whole
    total, asked = len(known.history), list[Request]()
    part: pco.Run | None = None
    for calls in (*range(40, total, 700), total + 10):
        more = {"resume": part.id} if part else {}
        part, lm = run(tmp_path, budget=f"{calls}calls", **more)
        asked += lm.history
        assert len(asked) <= calls
    assert part is not None and part.ended == expected.ended == "finished"
    assert keys(asked) == keys(known.history)
    files = [(each.path / "policy.json").read_bytes() for each in (part, expected)]
    assert files[0] == files[1] and part.rows == expected.rows
    assert "This is look" in part.verdict, "earlier budgets had a verdict on fewer inputs"


def test_an_evaluation_takes_as_many_samples_as_its_run(
    whole: tuple[pco.Run, ScriptedLM],
) -> None:
    made, _ = whole
    lm = ScriptedLM().reply_with(noisy)
    again = pco.evaluate(made, lm=lm)
    assert (again.runs, len(lm.history)) == (N, N * 32)
    assert again.score == made.rows["learned"].score
    assert again.row.calls_per_query == 1.0
    assert pco.evaluate(made, lm=lm, samples=1).runs == 1
    compared = pco.compare(made, pco.evaluate(made, lm=lm, row="present"), lm=lm)
    assert compared.gain == made.rows["learned"].gain


@pytest.mark.slow
def test_the_estimate_counts_samples_where_they_judge() -> None:
    """Validation and verdict take as many times the calls; training takes no more."""
    task, config = data(), {"preset": "small", "size": 6, "update": {"epochs": 1}}
    once, often = (estimate(task, "exact", "simulated", samples=n, config=config) for n in (1, 3))
    judged = 7 * len(task.test)
    more = often.total.calls.expected - once.total.calls.expected
    assert more >= 2 * judged * 0.8, (more, judged)
    assert more <= 2 * once.total.calls.expected
