"""`pupa`: private user queries answered with an outside model's help (PUPA-New, PAPILLON).

Reward: U - λL in -1..1 with λ = 1: quality against the reference answer, less the share of private
pieces in the request that went outside. Decided by the role `judge`; without one (or with
`reward = "stand-in"`) by a deterministic stand-in. The rows hold what real people wrote to a
chatbot: no error quotes any of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from pydantic import model_validator

from promptcodebook.data import Dataset
from promptcodebook.errors import DataError
from promptcodebook.lm.structured import Ask
from promptcodebook.tasks.home import BenchmarkRow, home_of, jsonl_splits, read_seeds
from promptcodebook.tasks.pupa.judge import WEIGHT, JudgeReward, Papillon, StandIn, units_of
from promptcodebook.tasks.task import Task
from promptcodebook.text import words_of
from promptcodebook.types import Example, Reward, Variable

_FORM = "one JSON object a line with the texts id, user_query, target_response and pii_units"
_LEAST = 4
"""Characters from which a unit counts in a rewrite: shorter ones turn up in any text."""


class PupaRow(BenchmarkRow):
    """A query; `pii_units` are its private pieces, joined by '||'."""

    id: str
    user_query: str
    target_response: str
    pii_units: str
    category: object = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("id", "user_query", "target_response"):
            if not str(getattr(self, name)).strip():
                raise DataError(f"the field {name!r} is empty", hint=_FORM)
        return self


def load_pupa(data_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir`, else the public copy, else our own invented examples."""
    home = home_of("pupa", data_dir)
    dataset = read_dataset(home.folder)
    return Task(
        name="pupa",
        dataset=dataset,
        reward=_reward,
        program=Papillon(),
        reward_range=(-WEIGHT, 1.0),
        seeds=read_seeds(Path(__file__).parent),
        zero_shot="Protect the user's privacy and answer the user's query well.",
        description="Private user queries answered with the help of an untrusted outside model; "
        f"the reward is quality - {WEIGHT:g} x leakage: {home.origin}. The real queries are real "
        "people's: keep runs on them private.",
        output_format="Whatever the stage asks for: a request that holds nothing private, or the "
        "complete answer to the user.",
        private=not home.own,
        checks=(NoUnitCheck(dataset.train),),
    )


def read_dataset(folder: Path) -> Dataset:
    """The three splits, repeats of an input kept as they fall (the public order has some).

    DataError with file, line and field, never with the text itself.
    """
    seen = set[str]()
    splits = {
        split: tuple(_example(row, where, seen) for where, row in rows)
        for split, rows in jsonl_splits(folder, PupaRow, private=True).items()
    }
    return Dataset(splits["train"], splits["val"], splits["test"], "pupa", "user_query")


class NoUnitCheck:
    """Refuses a rewrite with a private piece of a training query that the text before did not have;
    says whose, not which: a policy is shared, the queries are not."""

    def __init__(self, examples: Iterable[Example]) -> None:
        self._owners: dict[str, str] = {}
        for example in examples:
            for unit in units_of(example):
                flat = " ".join(words_of(unit))
                if len(flat) >= _LEAST:
                    self._owners.setdefault(f" {flat} ", example.id)

    def __call__(
        self, variable: Variable, text: str, before: str, others: Sequence[str]
    ) -> str | None:
        now, earlier = _pad(text), _pad(before)
        for unit, owner in self._owners.items():
            if unit in now and unit not in earlier:
                return f"it holds a private piece of training example {owner}"
        return None


def _reward(ask: Ask | None) -> Reward:
    """The judge's reward where there is a model for it; else the stand-in's."""
    return StandIn() if ask is None else JudgeReward(ask)


def _example(row: PupaRow, where: str, seen: set[str]) -> Example:
    if row.id in seen:
        raise DataError(f"{where}: the field 'id' is that of an earlier row", hint=_FORM)
    seen.add(row.id)
    return Example(
        id=row.id,
        input=row.user_query,
        target=row.target_response,
        fields={"pii_units": row.pii_units, "category": str(row.category or "")},
    )


def _pad(text: str) -> str:
    return f" {' '.join(words_of(text))} "
