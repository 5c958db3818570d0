"""An input built from several columns: '{title}\\n{body}'.

The template is read once and filled in one pass: braces inside the data are text, never a
template. '{{' and '}}' in the template stand for single braces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from promptcodebook.errors import DataError

__all__ = ["Template", "parse_template"]

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


@dataclass(frozen=True, slots=True)
class Template:
    """Alternating literal text and column names: literals[0] columns[0] literals[1] ..."""

    literals: tuple[str, ...]
    columns: tuple[str, ...]

    def render(self, values: Mapping[str, str]) -> str:
        """The text with each column's value put in its place as it stands."""
        parts = [self.literals[0]]
        for column, literal in zip(self.columns, self.literals[1:], strict=True):
            parts += [values[column], literal]
        return "".join(parts)


def parse_template(text: str) -> Template:
    """Reads a template; DataError for a lone brace."""
    literals, columns, literal, at = list[str](), list[str](), "", 0
    for match in _PIECE.finditer(text):
        literal += text[at : match.start()]
        at = match.end()
        if match[1] is not None:
            literals.append(literal)
            columns.append(match[1].strip())
            literal = ""
        elif len(match[0]) == 2:
            literal += match[0][0]
        else:
            raise DataError(
                f"lone {match[0]!r} at character {match.start() + 1} of the template {text!r}",
                hint="write columns as {name}, and {{ or }} for a brace itself",
            )
    return Template((*literals, literal + text[at:]), tuple(columns))
