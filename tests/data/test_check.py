"""What stands twice, nearly twice, or not at all."""

import random
import re
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from promptcodebook.data import Dataset, examine, load
from promptcodebook.data.dataset import NEAR, SHINGLE, Leak, leaks
from promptcodebook.text import fold_text
from promptcodebook.types import Example

STORY = "the old clock in the tower ran backwards for a single night and nobody in town woke up"


def dataset(**splits: list[str]) -> Dataset:
    parts = {
        split: tuple(Example(f"{split}{n}", text) for n, text in enumerate(splits[split]))
        for split in ("train", "val", "test")
    }
    return Dataset(parts["train"], parts["val"], parts["test"])


def test_equal_inputs_in_two_splits() -> None:
    found = leaks(dataset(train=["One  two", "one two"], val=["x"], test=["ONE TWO"]))
    assert found == [Leak(("train", "test"), ("train0", "test0"))]


def test_an_input_in_all_three_splits_gives_each_pair() -> None:
    pairs = {leak.splits for leak in leaks(dataset(train=["a"], val=["a"], test=["a"]))}
    assert pairs == {("train", "val"), ("train", "test"), ("val", "test")}


def test_marks_tell_inputs_apart() -> None:
    assert leaks(dataset(train=["x + 1"], val=["x - 1"], test=["x * 1"])) == []


def test_near_copies_across_splits_only() -> None:
    data = dataset(train=[STORY, STORY + " again"], val=["Explain rain."], test=[STORY + " at all"])
    found = examine(data).near
    assert {leak.ids for leak in found} == {("train0", "test0"), ("train1", "test0")}
    assert all(0.6 <= leak.similarity < 1 for leak in found)


def test_examine_counts_everything() -> None:
    rows = {
        "train": [
            {"input": "a b c", "target": "1", "n": 1},
            {"input": "A b  c", "target": None, "n": 2.5},
        ],
        "val": [{"input": STORY, "target": "1", "n": None}],
        "test": [{"input": STORY + " then", "target": "1", "n": 1}],
    }
    found = examine(load(rows, name="mine"))
    assert found.name == "mine"
    assert found.counts == {"train": 2, "val": 1, "test": 1}
    assert {c.name: (c.types, c.missing) for c in found.columns} == {
        "input": (("str",), 0),
        "target": (("str",), 1),
        "n": (("float", "int"), 1),
    }
    assert found.missing_targets == {"train": 1, "val": 0, "test": 0}
    assert len(found.duplicates) == 1
    assert len(found.near) == 1
    assert found.clean
    assert found.lengths["train"].median == 3
    warnings = found.warnings()
    assert any("1 of 2 examples in train lack a target" in w for w in warnings)
    assert any("near-copies" in w for w in warnings)
    assert any("have the same input" in w for w in warnings)


def test_overlap_is_not_clean_and_no_target_at_all_is_no_warning() -> None:
    found = examine(dataset(train=["a"], val=["a"], test=["b"]))
    assert not found.clean
    assert found.warnings() == ()


def test_repeats_are_folded_into_a_sentence_for_each_split() -> None:
    found = examine(dataset(train=["a"] * 30 + ["b", "b", "c"], val=["d"], test=["e"]))
    assert len(found.duplicates) == 30
    [warning] = found.warnings()
    assert warning == (
        "30 examples in train have the same input as an earlier one: train0 (30 times), "
        "train30 (2 times)."
    )


def test_many_near_copies_are_counted_and_the_first_shown() -> None:
    copies = [f"{STORY} {n}" for n in range(12)]
    [warning] = examine(dataset(train=copies, val=["x"], test=[STORY])).warnings()
    assert warning.startswith("12 pairs of near-copies in different splits")
    assert "train4 (train) and test0 (test)" in warning and "train5" not in warning
    assert "and 7 more" in warning


def test_the_same_input_with_another_target_is_a_conflict() -> None:
    rows = [
        {"input": "Is it late?", "target": "yes"},
        {"input": "is it  late?", "target": "No"},
        {"input": "Is it late?", "target": "YES"},
        {"input": "Is it late?", "target": None},
        {"input": "Is it far?", "target": "yes"},
    ]
    others = {split: [{"input": split, "target": "x"}] for split in ("val", "test")}
    found = examine(load({"train": rows, **others}))
    [conflict] = found.conflicts
    assert conflict.targets == ("yes", "No")
    [warning] = [w for w in found.warnings() if "more than one target" in w]
    assert f"{conflict.ids[0]}: 'yes', {conflict.ids[1]}: 'No'" in warning


def _near_by_hand(dataset: Dataset) -> set[tuple[str, str]]:
    """Every pair compared with every other."""
    rows = [(split, e) for split, examples in dataset.items() for e in examples]
    found = set[tuple[str, str]]()
    for (s, a), (t, b) in combinations(rows, 2):
        x, y = _runs(a.input), _runs(b.input)
        if s != t and fold_text(a.input) != fold_text(b.input) and len(x & y) / len(x | y) >= NEAR:
            found.add((a.id, b.id))
    return found


def _runs(text: str) -> set[str]:
    words = re.findall(r"\w+", fold_text(text))
    return {" ".join(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1))}


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**9), length=st.integers(1, 220), copies=st.integers(1, 6))
def test_what_is_looked_up_finds_the_near_copies_of_any_length(
    seed: int, length: int, copies: int
) -> None:
    draw = random.Random(seed)
    words = [f"w{n}" for n in range(3_000)] + ["naïve", "日本語", "it's", "end.", "_x"]
    rows = list[Example]()
    for number in range(copies):
        base = draw.choices(words, k=length)
        changed = list(base)
        if length > 40:  # one word in forty is another
            for place in draw.sample(range(length), length // 40):
                changed[place] = "changed"
        rows += [Example(f"{number}a", " ".join(base)), Example(f"{number}b", ", ".join(changed))]
    dataset = Dataset(tuple(rows[::2]), tuple(rows[1::2]), ())
    assert {leak.ids for leak in examine(dataset).near} == _near_by_hand(dataset)
