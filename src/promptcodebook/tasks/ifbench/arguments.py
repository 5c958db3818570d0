"""The keyword arguments of one constraint, read with their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from promptcodebook.errors import DataError, did_you_mean

__all__ = ["Arguments"]

_RELATIONS = ("less than", "at least")


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

    def shown(self) -> dict[str, str]:
        """Each argument as it reads in a sentence."""
        return {name: _shown(value) for name, value in self._values.items()}

    def _wrong(self, name: str, wanted: str) -> DataError:
        return DataError(
            f"the argument {name!r} of {self._owner} is {self._values[name]!r}, not {wanted}",
            hint="correct the constraint's kwargs in the data file",
        )


def _shown(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list | tuple):
        return ", ".join(f'"{item}"' for item in cast("list[object]", value))
    return str(value)
