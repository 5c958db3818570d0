"""What the benches share: the list that `make bench` goes through."""

from __future__ import annotations

import pytest

from bench.figures import LACKING
from bench.run import BENCHES, ROOT, outcome


def test_every_bench_of_the_list_is_there() -> None:
    assert {"local_engine", "local_server"} <= set(BENCHES)
    assert all((ROOT / "bench" / f"{name}.py").is_file() for name in BENCHES)


@pytest.mark.parametrize(("codes", "named", "said", "code"), [
    ({"a": 0}, False, "every goal is met", 0),
    ({"a": 0, "b": 1}, False, "SHORT: b", 1),
    ({"a": -9}, False, "SHORT: a", 1),
    ({"a": 0, "b": LACKING}, False, "NOT RUN, for what is not installed: b", 0),
    ({"a": 0, "b": LACKING}, True, "every goal of those that ran is met", LACKING),
    ({"a": 1, "b": LACKING}, True, "SHORT: a", 1),
])  # fmt: skip
def test_what_is_passed_over_is_not_called_met(
    codes: dict[str, int], named: bool, said: str, code: int
) -> None:
    text, ended = outcome(codes, named=named)
    assert said in text and ended == code
