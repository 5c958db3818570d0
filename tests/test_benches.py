"""What the benches share: the list that `make bench` goes through, and what a bench cannot do."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import mutants
from bench.figures import LACKING
from bench.run import BENCHES, ROOT, outcome
from bench.step import depth, refused, trained
from bench.verdict_null import MODES, Job, looked, world


def test_every_bench_of_the_list_is_there() -> None:
    assert {"local_engine", "local_server"} <= set(BENCHES)
    assert all((ROOT / "bench" / f"{name}.py").is_file() for name in BENCHES)


def test_at_most_one_rewrite_in_ten_is_refused_on_the_simulated_model(tmp_path: Path) -> None:
    """What is refused and asked for again is one more round trip for the whole batch."""
    steps = [done.step for done in trained("simulated", tmp_path, epsilon=0.0)]
    assert refused(steps) <= 0.1
    assert {depth(step) for step in steps} <= {5, 6}, "no step waits for a second reply"


@pytest.mark.parametrize(
    ("codes", "named", "said", "code"),
    [
        ({"a": 0}, False, "every goal is met", 0),
        ({"a": 0, "b": 1}, False, "SHORT: b", 1),
        ({"a": -9}, False, "SHORT: a", 1),
        ({"a": 0, "b": LACKING}, False, "NOT RUN, for what is not installed: b", 0),
        ({"a": 0, "b": LACKING}, True, "every goal of those that ran is met", LACKING),
        ({"a": 1, "b": LACKING}, True, "SHORT: a", 1),
    ],
)
def test_what_is_passed_over_is_not_called_met(
    codes: dict[str, int], named: bool, said: str, code: int
) -> None:
    text, ended = outcome(codes, named=named)
    assert said in text and ended == code


@pytest.mark.parametrize(
    ("mode", "null"),
    [(mode, f"{name} equal") for mode, rows in MODES.items() for name in rows],
)
def test_a_row_that_is_as_good_makes_no_policy_worth_deploying(mode: str, null: str) -> None:
    """A few of the worlds of `bench.verdict_null`: 2.5 % may be false, and of 60 no more than 6
    (the chance of more is 1 in 1,300). While only cheaper rows counted, 37 of 60 were false where
    the best single instinct was as good at equal calls."""
    job = Job(mode, 60, "binary", null)
    assert sum(world(job, number)[0] for number in range(60)) <= 6


def test_looking_five_times_at_one_test_split_finds_no_more_false_gains() -> None:
    """Of 120 worlds no more than 12 (5 % are 6); were each look the first there would be more."""
    job = Job("one call", 60, "share", "present equal")
    _, by_rule, uncorrected = map(sum, zip(*(looked(job, i) for i in range(120)), strict=True))
    assert by_rule <= 12 and uncorrected > by_rule


MUTATED = '''
def f(a, b):
    """Not 1 and not 2."""
    note(1 < 2)
    if not a and b < 1:
        raise ValueError("too small" if a else f"{b + 1}")
    return min([x for x in (a, b) if x])
'''


def test_what_may_be_changed_is_what_runs() -> None:
    edits = {(m.before, m.after) for _, m in mutants.sites("f.py", MUTATED)}
    assert edits == {
        ("not a and b < 1", "not a or b < 1"), ("not a", "a"), ("b < 1", "b <= 1"), ("1", "0"),
        ("raise ValueError('too small' if a else f'{b + 1}')", "pass"), ("x", "True"),
        ("return min([x for x in (a, b) if x])", "return None"),
        ("min([x for x in (a, b) if x])", "max([x for x in (a, b) if x])"),
    }  # fmt: skip
