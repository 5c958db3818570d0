"""What was learned of routing, in a policy file: it comes back as it was, or is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from promptcodebook.policy.file import StoredRanking
from promptcodebook.routing.ranking import BUCKETS, Vocabulary
from promptcodebook.types import Ranking

VOCABULARY = Vocabulary.of([f"word{i} and word{i // 3}" for i in range(40)]).with_vectors(
    [(i / 7, -1e-7 * i, 12345.6789 * i) for i in range(9)], 0.25
)
SIZE = BUCKETS + 3
WORDS = Ranking(
    rarity=VOCABULARY.rarity,
    unit=0.00123,
    weights=tuple(tuple((7 * b + k) % 2001 - 1000 for b in range(BUCKETS)) for k in range(3)),
    bias=(0.5, -0.25, 0.125),
    likeness=0.75,
    more=-0.0625,
)
BOTH = replace(
    WORDS,
    weights=tuple((*row, 1, -2, 3) for row in WORDS.weights),
    least=2,
    outcomes=384,
    kind="distilled",
    center=VOCABULARY.center,
    spread=VOCABULARY.spread,
    words=VOCABULARY.words,
)


@pytest.mark.parametrize("ranking", [WORDS, BOTH], ids=["words", "both"])
def test_a_ranking_comes_back_from_its_file_as_it_was(ranking: Ranking) -> None:
    stored = StoredRanking.of(ranking)
    assert stored.ranking == ranking
    assert StoredRanking.model_validate_json(stored.model_dump_json()).ranking == ranking
    rows = (stored.rarity, stored.center, stored.spread, *stored.weights)
    lengths = {len(row.split(" ")) for row in rows if row}
    assert lengths <= {BUCKETS, SIZE, 3}, "a row is one text of numbers"


def test_what_a_file_does_not_say_is_that_of_a_router_of_words_and_outcomes() -> None:
    tree = StoredRanking.of(WORDS).model_dump()
    for key in ("least", "outcomes", "kind", "center", "spread", "words"):
        del tree[key]
    assert StoredRanking.model_validate(tree).ranking == WORDS


RARITY = f"Value error, rarity has {BUCKETS} numbers, each row of weights {SIZE}"
SPREAD = "Value error, there are not as many numbers in center as in spread"
BIAS = "Value error, there are not as many numbers in bias as rows of weights"


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        ({"rarity": "1.0 2.0"}, RARITY),
        ({"weights": ("1 2", "3 4", "5 6")}, RARITY),
        ({"weights": ()}, RARITY),
        ({"weights": (*StoredRanking.of(BOTH).weights[:2], "1")}, RARITY),
        ({"weights": StoredRanking.of(WORDS).weights}, RARITY),
        ({"spread": "1 2"}, SPREAD),
        ({"spread": ""}, SPREAD),
        ({"bias": (0.5, -0.25)}, BIAS),
        ({"bias": (0.5, -0.25, 0.125, 0.0)}, BIAS),
        ({"weights": StoredRanking.of(BOTH).weights[:2]}, BIAS),
        ({"rarity": "many"}, "could not convert"),
        ({"weights": ("1.5 2",)}, "invalid literal"),
        ({"words": 1.01}, "less than or equal to 1"),
        ({"words": -0.01}, "greater than or equal to 0"),
        ({"kind": "other"}, "'outcomes' or 'distilled'"),
        ({"address": "http://theirs.test"}, "Extra inputs are not permitted"),
    ],
)
def test_a_ranking_that_does_not_fit_together_is_refused(edit: dict[str, Any], fault: str) -> None:
    tree = {**StoredRanking.of(BOTH).model_dump(), **edit}
    with pytest.raises(ValidationError, match=fault):
        StoredRanking.model_validate(tree)


def test_a_ranking_that_was_read_stays_as_it_is() -> None:
    """Its digest is that of the policy."""
    with pytest.raises(ValidationError, match="frozen"):
        StoredRanking.of(WORDS).unit = 2.0  # type: ignore[misc]
