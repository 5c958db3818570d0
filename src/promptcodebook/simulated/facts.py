"""What the student could know of an example: gold titles, answer, private units, constraints.

Read from an example's fields by meaning, as each benchmark's loader names them in its own way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from promptcodebook.types import Example

__all__ = ["gold_titles", "instructions", "mentions", "private_units", "unit_kind"]

_DATE = re.compile(
    r"\b(?:1[89]|20)\d\d\b|\d{1,4}[./-]\d{1,2}[./-]\d{1,4}|"
    r"\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b"
)
_COMPANY = re.compile(
    r"\b(?:inc|ltd|llc|gmbh|corp|company|co|group|university|college|school|institute|bank|hospital|"
    r"association|foundation|agency|department|ministry|studio|lab|labs|club)\b"
)
_PLACE = re.compile(
    r"\b(?:street|road|avenue|city|county|state|island|river|valley|north|south|east|west|town|"
    r"village|district|province|usa|uk|china|india|germany|france|spain|italy|japan|canada|"
    r"australia|america|london|paris|berlin|york|tokyo|texas|california|europe|africa|asia)\b"
)
_ROLE = re.compile(
    r"\b(?:manager|director|engineer|teacher|professor|doctor|nurse|officer|assistant|developer|"
    r"analyst|consultant|designer|ceo|intern|student|president|lawyer)\b"
)


def gold_titles(example: Example | None) -> tuple[str, ...]:
    """The titles of the pages that hold the evidence, in the data's order."""
    fields: Mapping[str, object] = example.fields if example is not None else dict[str, object]()
    named = fields.get("gold_titles") or fields.get("titles")
    if isinstance(named, list | tuple):
        return tuple(dict.fromkeys(str(t) for t in cast("Iterable[object]", named)))
    facts = fields.get("supporting_facts")
    if isinstance(facts, list | tuple):
        rows = cast("Iterable[Sequence[object]]", facts)
        return tuple(dict.fromkeys(str(row[0]) for row in rows if row))
    return ()


def private_units(example: Example | None) -> tuple[str, ...]:
    """The distinct private pieces of a query."""
    said = example.fields.get("pii_units") if example is not None else None
    if isinstance(said, str):
        units: Iterable[object] = said.split("||")
    else:
        units = cast("Iterable[object]", said) if isinstance(said, list | tuple) else ()
    return tuple(dict.fromkeys(u for u in (str(x).strip() for x in units) if u))


def unit_kind(unit: str) -> str:
    """The name of the skill that concerns such a private piece, by how it looks."""
    text = unit.lower()
    if "@" in text:
        return "contacts"
    if re.search(r"https?:|www\.|\.(?:com|org|net|io)\b", text):
        return "links"
    tests = (("dates", _DATE), ("organisations", _COMPANY), ("places", _PLACE), ("titles", _ROLE))
    for kind, pattern in tests:
        if pattern.search(text):
            return kind
    if re.search(r"\d", text):
        return "numbers"
    words = text.split()
    if len(words) > 4:
        return "rare_words"
    return "people" if len(words) in (1, 2, 3) else "products"


def instructions(example: Example | None) -> list[Mapping[str, object]]:
    """Constraints with their arguments: `kind` is the id, the rest its kwargs."""
    if example is None:
        return []
    ids = example.fields.get("instruction_id_list") or example.fields.get("instruction_ids") or ()
    given = example.fields.get("kwargs") or ()
    rows = list(cast("Iterable[Mapping[str, object] | None]", given))
    names = [str(i) for i in cast("Iterable[object]", ids)]
    rows += [{}] * (len(names) - len(rows))
    return [{**(row or {}), "kind": name} for name, row in zip(names, rows, strict=False)]


def mentions(text: str, name: str) -> bool:
    """Whether a text names something, ignoring case, white space and surrounding signs."""
    flat = " ".join(text.lower().split())
    wanted = " ".join(name.lower().split())
    if not wanted or wanted not in flat:
        return False
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", flat) is not None
