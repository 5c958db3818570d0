"""What was learned of routing, as a policy file holds it: plain numbers that route without numpy.

Its rows of whole numbers are texts, so that a row is a line of the file and not two thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from promptcodebook.method.ranking import BUCKETS
from promptcodebook.types import Ranking


class StoredRanking(BaseModel):
    """What was learned of routing from outcomes: `types.Ranking`, its rows of whole numbers as
    texts, so that a row is a line."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rarity: str
    unit: float
    weights: tuple[str, ...]
    bias: tuple[float, ...]
    likeness: float
    more: float
    least: int = 0
    outcomes: int = 0
    kind: Literal["outcomes", "distilled"] = "outcomes"
    center: str = ""
    spread: str = ""
    words: float = Field(default=1.0, ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _readable(self) -> StoredRanking:
        ranking = self.ranking
        size = BUCKETS + len(ranking.center)
        if len(ranking.rarity) != BUCKETS or {len(r) for r in ranking.weights} != {size}:
            raise ValueError(f"rarity has {BUCKETS} numbers, each row of weights {size}")
        if len(ranking.center) != len(ranking.spread):
            raise ValueError("there are not as many numbers in center as in spread")
        if len(ranking.bias) != len(ranking.weights):
            raise ValueError("there are not as many numbers in bias as rows of weights")
        return self

    @classmethod
    def of(cls, ranking: Ranking) -> StoredRanking:
        return cls(
            rarity=_line(ranking.rarity),
            unit=ranking.unit,
            weights=tuple(" ".join(map(str, row)) for row in ranking.weights),
            bias=ranking.bias,
            likeness=ranking.likeness,
            more=ranking.more,
            least=ranking.least,
            outcomes=ranking.outcomes,
            kind=ranking.kind,
            center=_line(ranking.center),
            spread=_line(ranking.spread),
            words=ranking.words,
        )

    @cached_property
    def ranking(self) -> Ranking:
        return Ranking(
            rarity=tuple(map(float, self.rarity.split())),
            unit=self.unit,
            weights=tuple(tuple(map(int, row.split())) for row in self.weights),
            bias=self.bias,
            likeness=self.likeness,
            more=self.more,
            least=self.least,
            outcomes=self.outcomes,
            kind=self.kind,
            center=tuple(map(float, self.center.split())),
            spread=tuple(map(float, self.spread.split())),
            words=self.words,
        )


def _line(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)
