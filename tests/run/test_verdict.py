"""The plain sentence at the end: every way a run can come out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from promptcodebook.calls import Usage
from promptcodebook.intervals import mean_interval, paired_interval
from promptcodebook.run.verdict import Entry, conclude, row_of
from promptcodebook.types import Evaluation, Rollout

SPENT = Usage(calls=1, prompt_tokens=100, completion_tokens=20, cost=0.001, latency_s=0.5)


def evaluation(name: str, rewards: list[float | None], usage: Usage = SPENT) -> Evaluation:
    rollouts = tuple(
        Rollout(f"e{i}", prompt="two words", reward=r, usage=usage) for i, r in enumerate(rewards)
    )
    return Evaluation(name, "test", rollouts)


ROUTED = Usage(calls=3, prompt_tokens=300, completion_tokens=60, cost=0.003, latency_s=1.5)


def four(present: float, concat: float, untrained: float, learned: float) -> list[Entry]:
    """Four rows of 20 examples; each example sways a little, so that intervals have a width."""

    def around(level: float) -> list[float | None]:
        return [level + (0.05 if i % 2 else -0.05) for i in range(20)]

    names = ("present", "concat", "untrained", "learned")
    levels = (present, concat, untrained, learned)
    spent = (SPENT, SPENT, ROUTED, ROUTED)
    return [
        Entry(f"the {name} prompt", evaluation(name, around(level), usage))
        for name, level, usage in zip(names, levels, spent, strict=True)
    ]


def test_the_sentence_calls_the_base_by_its_title() -> None:
    bare, *others = four(0.3, 0.4, 0.4, 0.7)
    bare = replace(bare, title="zero-shot (no prompt)")
    made = conclude([bare, *others], 0, simulated=False)
    assert "over zero-shot (no prompt), at" in made.sentence


def test_rows_are_what_the_results_are_whatever_their_names() -> None:
    """A verdict over another optimizer's result: no row has a name it must have."""
    base, result = four(0.3, 0.4, 0.4, 0.7)[::3]
    other = replace(result, evaluation=replace(result.evaluation, name="gepa"))
    made = conclude([base, other], 0, simulated=False)
    assert made.worth is True and [row.name for row in made.rows] == ["present", "gepa"]


def test_a_rival_that_costs_as_much_decides_only_if_it_is_better() -> None:
    assert conclude(four(0.3, 0.4, 0.7, 0.7), 0, simulated=False).worth is True
    beaten = conclude(four(0.3, 0.4, 0.8, 0.7), 0, simulated=False)
    assert beaten.worth is False and "the untrained prompt does as well" in beaten.sentence


def test_a_dearer_rival_never_decides() -> None:
    base, concat, untrained, learned = four(0.3, 0.9, 0.4, 0.7)
    dear = tuple(replace(r, usage=Usage(calls=9)) for r in concat.evaluation.rollouts)
    concat = replace(concat, evaluation=replace(concat.evaluation, rollouts=dear))
    assert conclude([base, concat, untrained, learned], 0, simulated=False).worth is True


@pytest.mark.parametrize(
    ("levels", "worth", "said"),
    [
        ((0.3, 0.4, 0.4, 0.7), True, "Worth deploying: +0.400"),
        ((0.3, 0.8, 0.4, 0.7), False, "Not worth the routing"),
        ((0.5, 0.4, 0.4, 0.5), False, "no clear gain"),
        ((0.7, 0.4, 0.4, 0.5), False, "worse than the present prompt"),
    ],
)
def test_the_sentence_follows_the_figures(
    levels: tuple[float, float, float, float], worth: bool, said: str
) -> None:
    made = conclude(four(*levels), seed=0, simulated=False)
    assert made.worth is worth
    assert said in made.sentence


def test_a_simulated_verdict_says_so() -> None:
    assert conclude(four(0.3, 0.4, 0.4, 0.7), 0, simulated=True).sentence.startswith(
        "On the simulated model:"
    )


def test_no_test_split_is_no_verdict() -> None:
    made = conclude([], 0, simulated=False)
    assert made.worth is None and "no test split" in made.sentence


def test_a_row_counts_failures_as_the_floor_and_shows_the_answered_mean_beside_it() -> None:
    row = row_of(evaluation("learned", [1.0, None, 0.5, None]), None, seed=0)
    assert row.score.mean == pytest.approx(0.375)
    assert row.answered == pytest.approx(0.75)
    assert row.failed == 2


def test_usage_is_per_query_and_an_unknown_price_stays_unknown() -> None:
    known = row_of(evaluation("a", [1.0, 0.0]), None, 0)
    assert (known.calls_per_query, known.per_query.tokens) == (1.0, 120)
    assert known.per_query.cost == pytest.approx(0.001)
    unknown = row_of(evaluation("a", [1.0, 0.0], Usage(calls=1, cost=None)), None, 0)
    assert unknown.per_query.cost is None
    assert known.prompt_words == 2.0


def test_a_paired_interval_is_narrower_than_two_apart() -> None:
    hard = [0.0, 1.0] * 30
    better = [min(1.0, x + 0.2) for x in hard]
    paired = paired_interval(better, hard)
    assert paired.low > 0
    assert paired.high - paired.low < mean_interval(better).high - mean_interval(better).low


def test_intervals_are_seeded_and_cover_about_as_often_as_they_say() -> None:
    import random

    draw = random.Random(7)
    covered = 0
    for trial in range(200):
        values = [draw.random() for _ in range(40)]
        interval = mean_interval(values, trial)
        assert interval == mean_interval(values, trial)
        covered += interval.low <= 0.5 <= interval.high
    assert 180 <= covered <= 198
