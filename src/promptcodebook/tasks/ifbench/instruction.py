"""One kind of instruction (how it is checked and how it reads), and what a check is handed: the
arguments, read with their types, and the response with its analyses, each made once."""

from __future__ import annotations

import re
import string
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import cast

from promptcodebook.errors import DataError, did_you_mean
from promptcodebook.tasks.ifbench.language import Language

MARKS = string.punctuation
"""The 32 ASCII punctuation marks."""

EDGES = MARKS + " "

_DELETE = str.maketrans("", "", MARKS)
_WORD = re.compile(r"\w+")
_RELATIONS = ("less than", "at least")


Check = Callable[["Text", "Arguments"], bool]
"""Decides whether a text, unchanged, meets the demand."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One constraint: its demand with {argument} fields, and the arguments that it requires."""

    name: str
    met: Check
    says: str
    takes: tuple[str, ...]


def read_instructions(checks: Mapping[str, Check]) -> dict[str, Instruction]:
    """The constraints by id; instructions.toml has their demands in words."""
    demands = tomllib.loads(Path(__file__).with_name("instructions.toml").read_text("utf-8"))
    return {
        name: Instruction(name, met, demands[name]["says"], tuple(demands[name].get("takes", ())))
        for name, met in checks.items()
    }


class Arguments:
    """kwargs of one constraint; nulls count as absent and 5.0 as 5.

    Raises DataError for a name the constraint does not take, one that is missing, and a value of
    the wrong type.
    """

    def __init__(self, owner: str, given: Mapping[str, object], takes: tuple[str, ...]) -> None:
        self._owner = owner
        self._values = {name: value for name, value in given.items() if value is not None}
        for name in self._values:
            if name not in takes:
                known = ", ".join(takes) or "none"
                raise DataError(
                    f"{owner} takes no argument {name!r}{did_you_mean(name, takes)}",
                    hint=f"its arguments: {known}",
                )
        for name in takes:
            if name not in self._values:
                raise DataError(
                    f"{owner} needs the argument {name!r}, which is missing or null",
                    hint=f"add {name!r} to the constraint's kwargs",
                )

    def integer(self, name: str) -> int:
        value = self.number(name)
        if value != int(value):
            raise self._wrong(name, "a whole number")
        return int(value)

    def number(self, name: str) -> float:
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
            raise self._wrong(name, "a number")
        return value

    def text(self, name: str) -> str:
        value = self._values[name]
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._values[name]
        items = cast("list[object]", value) if isinstance(value, list | tuple) else [None]
        if not all(isinstance(item, str) for item in items):
            raise self._wrong(name, "a list of strings")
        return cast("list[str]", list(items))

    def compare(self, relation: str, count: int, bound: str) -> bool:
        """`count` < or >= the argument `bound`, as the argument `relation` says."""
        word = self.text(relation)
        if word not in _RELATIONS:
            raise self._wrong(relation, " or ".join(repr(r) for r in _RELATIONS))
        limit = self.integer(bound)
        return count < limit if word == "less than" else count >= limit

    def as_texts(self) -> dict[str, str]:
        """Each argument as it reads in a sentence."""
        return {name: _render(value) for name, value in self._values.items()}

    def _wrong(self, name: str, wanted: str) -> DataError:
        return DataError(
            f"the argument {name!r} of {self._owner} is {self._values[name]!r}, not {wanted}",
            hint="correct the constraint's kwargs in the data file",
        )


def _render(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list | tuple):
        return ", ".join(f'"{item}"' for item in cast("list[object]", value))
    return str(value)


def without_marks(text: str) -> str:
    """`text` without ASCII punctuation."""
    return text.translate(_DELETE)


class Text:
    """A response as the checks see it; `value` is its exact text."""

    def __init__(self, value: str, language: Language) -> None:
        self.value = value
        self.language = language

    @cached_property
    def sentences(self) -> list[str]:
        return self.language.sentences(self.value)

    @cached_property
    def tokens(self) -> list[str]:
        return [token for found in self.language.each_tokens(self.sentences) for token in found]

    def first_tokens(self, count: int) -> list[str]:
        """The first `count` tokens, without making the others."""
        found = self.language.each_tokens(self.sentences)
        return list(islice(chain.from_iterable(found), count))

    def last_tokens(self, count: int) -> list[str]:
        """The last `count` tokens in their order, without making the others."""
        found = self.language.each_tokens(reversed(self.sentences))
        backwards = chain.from_iterable(tokens[::-1] for tokens in found)
        return list(islice(backwards, count))[::-1]

    @cached_property
    def lower(self) -> str:
        return self.value.lower()

    @cached_property
    def words(self) -> list[str]:
        r"""Maximal runs of \w."""
        return _WORD.findall(self.value)

    @cached_property
    def bare(self) -> list[str]:
        """White-space tokens of the text without ASCII punctuation."""
        return without_marks(self.value).split()

    @cached_property
    def bare_lower(self) -> list[str]:
        return without_marks(self.lower).split()
