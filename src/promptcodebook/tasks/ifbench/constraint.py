"""One kind of constraint: how it is checked and how it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from promptcodebook.tasks.ifbench.arguments import Arguments
from promptcodebook.tasks.ifbench.text import Text

__all__ = ["Constraint"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """`met` decides on a text as it stands; `says` is the demand, with {argument} fields.

    `takes` names the arguments, all of them required.
    """

    met: Callable[[Text, Arguments], bool]
    says: str
    takes: tuple[str, ...] = ()
