"""Hidden skills, read from TOML: how a demand shows in a text, and what to say of it.

A skill is public knowledge about a *kind* of demand. Which skills the executor lacks in a world,
and so which an input needs, stands in no file: `world.py` draws it.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from promptcodebook.simulated.words import content_stems, sentences

__all__ = ["Skill", "Skills", "read_skills"]


@dataclass(frozen=True, slots=True)
class Skill:
    """`when` and `do` word a condition and its order; `order` tells an order about the skill,
    `sign` the demand itself in an input or a report; `breaks` = skills it works against."""

    name: str
    when: str
    do: tuple[str, ...]
    order: re.Pattern[str]
    sign: re.Pattern[str]
    breaks: frozenset[int]
    forbids: bool
    """Saying not to do something is the order itself."""


class Skills:
    """A table of skills, addressed by place."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.names = tuple(table)
        place = {name: k for k, name in enumerate(self.names)}
        self._rows = tuple(
            Skill(
                name,
                row["when"],
                tuple(row["do"]),
                re.compile(row["order"]),
                re.compile(row["sign"]),
                frozenset(place[other] for other in row.get("breaks", ())),
                bool(row.get("forbids", False)),
            )
            for name, row in table.items()
        )
        self._place = place
        stems = [content_stems(row.when) for row in self._rows]
        often = Counter(s for found in stems for s in found)
        self._conditions = [{s: 1.0 / often[s] for s in found} for found in stems]
        self.shown = lru_cache(maxsize=8192)(self._shown)
        self.shown_in = lru_cache(maxsize=4096)(self._shown_in)
        self.meant = lru_cache(maxsize=4096)(self._meant)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, k: int) -> Skill:
        return self._rows[k]

    def place(self, name: str) -> int | None:
        return self._place.get(name)

    def contradict(self, a: int, b: int) -> bool:
        """Whether obeying both is impossible."""
        return b in self._rows[a].breaks or a in self._rows[b].breaks

    def _shown(self, sentence: str) -> frozenset[int]:
        """Skills whose demand shows in one sentence of an input or a report."""
        text = sentence.lower()
        return frozenset(k for k, row in enumerate(self._rows) if row.sign.search(text))

    def _shown_in(self, text: str) -> frozenset[int]:
        """Skills whose demand shows in a whole text."""
        return frozenset[int]().union(*(self.shown(s) for s in sentences(text)))

    def _meant(self, condition: str) -> frozenset[int]:
        """Skills that a condition speaks of: by the signs in it, else by its words."""
        said = content_stems(condition)
        scores = [sum(w for s, w in own.items() if s in said) for own in self._conditions]
        best = max(scores, default=0.0)
        if best >= 1.0:
            return frozenset(k for k, score in enumerate(scores) if score == best)
        return self.shown(condition)


@cache
def read_skills(name: str) -> Skills:
    """The table in `simulated/NAME.toml`."""
    text = resources.files("promptcodebook.simulated").joinpath(f"{name}.toml").read_text("utf-8")
    return Skills(tomllib.loads(text))
