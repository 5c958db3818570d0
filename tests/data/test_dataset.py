"""The seeded draw depends on the examples and the seed, on nothing else."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcodebook.data import load
from promptcodebook.data.dataset import draw_splits
from promptcodebook.types import Example

inputs = st.lists(
    st.text("abcAB ", min_size=1, max_size=4).filter(str.strip), min_size=1, max_size=40
)
SHARES = {"train": 0.5, "val": 0.25, "test": 0.25}


def examples_of(texts: list[str]) -> list[Example]:
    return [Example(str(n), text) for n, text in enumerate(texts)]


@given(inputs, st.integers(0, 5), st.randoms(use_true_random=False))
def test_order_of_rows_does_not_matter(texts: list[str], seed: int, rng: random.Random) -> None:
    examples = examples_of(texts)
    shuffled = rng.sample(examples, len(examples))
    if len({" ".join(t.casefold().split()) for t in texts}) < 3:
        return
    one, two = (draw_splits(e, SHARES, seed, "data") for e in (examples, shuffled))  # type: ignore[arg-type]
    assert one == two
    assert sorted((e for part in one.values() for e in part), key=lambda e: int(e.id)) == examples
    assert all(one.values())


@given(inputs, st.integers(0, 5))
def test_equal_inputs_never_part(texts: list[str], seed: int) -> None:
    seen: dict[str, set[str]] = {}
    if len({" ".join(t.casefold().split()) for t in texts}) < 3:
        return
    for split, part in draw_splits(examples_of(texts), SHARES, seed, "data").items():  # type: ignore[arg-type]
        for example in part:
            seen.setdefault(" ".join(example.input.casefold().split()), set()).add(split)
    assert all(len(splits) == 1 for splits in seen.values())


@pytest.mark.parametrize(
    ("rows", "fractions", "sizes"),
    [
        (100, (0.5, 0.25, 0.25), (50, 25, 25)),
        (10, (0.8, 0.1, 0.1), (8, 1, 1)),
        (3, (0.98, 0.01, 0.01), (1, 1, 1)),
        (4, (0.02, 0.49, 0.49), (1, 1, 2)),
        (7, (1 / 3, 1 / 3, 1 / 3), (3, 2, 2)),
    ],
)
def test_sizes(rows: int, fractions: tuple[float, ...], sizes: tuple[int, ...]) -> None:
    dataset = load([{"input": f"x{n}"} for n in range(rows)], target=None, fractions=fractions)
    assert tuple(sorted(len(part) for _, part in dataset.items())) == tuple(sorted(sizes))
    assert len(dataset) == rows


def test_another_seed_draws_another_split() -> None:
    rows = [{"input": f"x{n}"} for n in range(40)]
    one, two, again = (load(rows, target=None, seed=s) for s in (0, 1, 0))
    assert one.fingerprint() == again.fingerprint()
    assert {e.id for e in one.train} != {e.id for e in two.train}


def test_a_new_row_moves_few_others() -> None:
    rows = [{"input": f"x{n}"} for n in range(200)]
    before = {e.id for e in load(rows, target=None).train}
    after = {e.id for e in load([*rows, {"input": "new"}], target=None).train}
    assert len(before - after) <= 2
