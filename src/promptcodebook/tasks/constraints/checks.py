"""The verifiable constraints: one small pure check per kind, in one table.

A constraint is a mapping `{"kind": ..., parameters...}`; a blank answer satisfies none. Matching
of words ignores case and respects word boundaries; fixed texts are compared as they stand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from promptcodebook.errors import TaskError, did_you_mean
from promptcodebook.tasks.constraints import measure

__all__ = ["KINDS", "PARAMETERS", "Checked", "Constraint", "check"]

Constraint = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Checked:
    """Whether one constraint holds, and one sentence that says what was found and asked for."""

    satisfied: bool
    said: str


def check(constraint: Constraint, prompt: str, text: str) -> Checked:
    """Does `text`, an answer to `prompt`, keep this constraint? TaskError for a malformed one."""
    kind = str(constraint.get("kind", ""))
    if kind not in _TABLE:
        raise TaskError(
            f"unknown constraint kind {kind!r}{did_you_mean(kind, KINDS)}",
            hint=f"known kinds: {', '.join(KINDS)}",
        )
    missing = [name for name in PARAMETERS[kind] if name not in constraint]
    if missing:
        raise TaskError(
            f"constraint {kind!r} of the prompt {prompt[:60]!r} lacks {', '.join(missing)}",
            hint=f'write e.g. {{"kind": "{kind}", "{missing[0]}": ...}}',
        )
    if not text.strip():
        return Checked(False, "The answer is empty.")
    return _TABLE[kind][0](constraint, text)


def _number(constraint: Constraint) -> int:
    return int(str(constraint["n"]))


def _texts(constraint: Constraint, name: str) -> list[str]:
    return [str(value) for value in cast("Iterable[object]", constraint[name])]


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _exactly(count: int, wanted: int, noun: str) -> Checked:
    found = f"The answer has {_many(count, noun)}"
    if count == wanted:
        return Checked(True, f"{found}, as asked.")
    were = "was" if wanted == 1 else "were"
    return Checked(False, f"{found}; exactly {wanted} {were} asked for.")


def _holds(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def _max_words(constraint: Constraint, text: str) -> Checked:
    """max_words{n}: at most n words."""
    count, n = len(measure.words(text)), _number(constraint)
    return Checked(count <= n, f"The answer has {_many(count, 'word')}; at most {n} were allowed.")


def _min_words(constraint: Constraint, text: str) -> Checked:
    """min_words{n}: at least n words."""
    count, n = len(measure.words(text)), _number(constraint)
    return Checked(count >= n, f"The answer has {_many(count, 'word')}; at least {n} were needed.")


def _sentences(constraint: Constraint, text: str) -> Checked:
    """sentences{n}: exactly n sentences."""
    return _exactly(len(measure.sentences(text)), _number(constraint), "sentence")


def _paragraphs(constraint: Constraint, text: str) -> Checked:
    """paragraphs{n}: exactly n blocks separated by blank lines."""
    return _exactly(len(measure.paragraphs(text)), _number(constraint), "paragraph")


def _bullets(constraint: Constraint, text: str) -> Checked:
    """bullets{n}: exactly n lines that start with "- "."""
    return _exactly(len(measure.bullet_items(text)), _number(constraint), "bullet line")


def _numbered(constraint: Constraint, text: str) -> Checked:
    """numbered{n}: lines numbered "1. " to "n. " in order, and no further numbered line."""
    found, n = measure.numbered_lines(text), _number(constraint)
    if found == tuple(range(1, n + 1)):
        return Checked(True, f"The list is numbered 1 to {n}, as asked.")
    shown = ", ".join(f"{k}." for k in found[:12]) or "none"
    return Checked(False, f'Lines "1. " to "{n}. " were asked for; numbered lines found: {shown}.')


def _include(constraint: Constraint, text: str) -> Checked:
    """include{words}: each of the words occurs, ignoring case."""
    missing = [w for w in _texts(constraint, "words") if not _holds(text, w)]
    if missing:
        return Checked(False, f"The answer lacks: {', '.join(missing)}.")
    return Checked(True, "Every required word occurs.")


def _avoid(constraint: Constraint, text: str) -> Checked:
    """avoid{words}: none of the words occurs, ignoring case."""
    used = [w for w in _texts(constraint, "words") if _holds(text, w)]
    if used:
        return Checked(False, f"The answer uses what was forbidden: {', '.join(used)}.")
    return Checked(True, "No forbidden word occurs.")


def _no_commas(_constraint: Constraint, text: str) -> Checked:
    """no_commas{}: not one comma."""
    count = text.count(",")
    return Checked(count == 0, f"The answer has {_many(count, 'comma')}; none was allowed.")


def _lowercase(_constraint: Constraint, text: str) -> Checked:
    """lowercase{}: there are letters, and none is a capital."""
    capitals = sum(c.isupper() for c in text)
    said = f"The answer has {_many(capitals, 'capital letter')}; all must be lower case."
    return Checked(not capitals and any(c.islower() for c in text), said)


def _uppercase(_constraint: Constraint, text: str) -> Checked:
    """uppercase{}: there are letters, and none is a small one."""
    small = sum(c.islower() for c in text)
    said = f"The answer has {_many(small, 'small letter')}; all must be capitals."
    return Checked(not small and any(c.isupper() for c in text), said)


def _title(_constraint: Constraint, text: str) -> Checked:
    """title{}: a line holds a title in double angle brackets, <<like this>>."""
    found = re.search(r"<<[^<>\n]*\w[^<>\n]*>>", text) is not None
    return Checked(found, f"{'A' if found else 'No'} title in << >> was found; one was asked for.")


def _json(constraint: Constraint, text: str) -> Checked:
    """json{keys}: the whole answer is one JSON object that has these keys."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        said = str(error) if isinstance(error, ValueError) else "nested too deep"
        return Checked(False, f"The answer as a whole is not valid JSON ({said}).")
    if not isinstance(value, dict):
        return Checked(False, "The answer is JSON, but not an object.")
    missing = [key for key in _texts(constraint, "keys") if key not in value]
    if missing:
        return Checked(False, f"The JSON object lacks the keys: {', '.join(missing)}.")
    return Checked(True, "The answer is one JSON object with the keys asked for.")


def _start_with(constraint: Constraint, text: str) -> Checked:
    """start_with{text}: the answer's first characters are this text."""
    start = str(constraint["text"])
    said = f"The answer starts with {text.strip()[: len(start)]!r}; it must start with {start!r}."
    return Checked(text.strip().startswith(start), said)


def _end_with(constraint: Constraint, text: str) -> Checked:
    """end_with{text}: the answer's last characters are this text."""
    end = str(constraint["text"])
    said = f"The answer ends with {text.strip()[-len(end) :]!r}; it must end with {end!r}."
    return Checked(text.strip().endswith(end), said)


def _exact_numbers(constraint: Constraint, text: str) -> Checked:
    """exact_numbers{n}: exactly n runs of digits."""
    return _exactly(len(re.findall(r"[0-9]+", text)), _number(constraint), "number")


def _quoted(_constraint: Constraint, text: str) -> Checked:
    """quoted{}: the whole answer stands between double quotation marks."""
    bare = text.strip()
    held = len(bare) > 2 and bare[0] == bare[-1] == '"'
    said = "stands" if held else "does not stand"
    return Checked(held, f"The whole answer {said} in double quotation marks; it must.")


def _postscript(_constraint: Constraint, text: str) -> Checked:
    """postscript{}: the last paragraph starts with "P.S."."""
    last = measure.paragraphs(text)[-1]
    held = last.startswith("P.S.") and bool(measure.words(last.removeprefix("P.S.")))
    said = "is" if held else "is not"
    return Checked(
        held, f'The last paragraph {said} a postscript starting with "P.S."; it must be.'
    )


def _letter_count(constraint: Constraint, text: str) -> Checked:
    """letter_count{letter, n}: the letter occurs at least n times, ignoring case."""
    letter, n = str(constraint["letter"]), _number(constraint)
    count = text.lower().count(letter.lower())
    return Checked(
        count >= n,
        f"The letter {letter!r} occurs {_many(count, 'time')}; at least {n} were needed.",
    )


def _two_versions(_constraint: Constraint, text: str) -> Checked:
    """two_versions{}: two different non-blank parts, separated by one line "******"."""
    parts = measure.versions(text)
    if len(parts) != 2:
        said = f'The answer has {_many(len(parts), "part")} around lines "******", not exactly 2.'
        return Checked(False, said)
    if not all(parts) or parts[0] == parts[1]:
        return Checked(False, 'The two parts around the line "******" are empty or the same.')
    return Checked(True, 'Two different versions stand around the line "******".')


def _placeholders(constraint: Constraint, text: str) -> Checked:
    """placeholders{n}: at least n placeholders in square brackets, [like this]."""
    count, n = len(re.findall(r"\[[^\[\]\n]+\]", text)), _number(constraint)
    return Checked(
        count >= n,
        f"The answer has {_many(count, 'placeholder')} in [ ]; at least {n} were needed.",
    )


def _headings(constraint: Constraint, text: str) -> Checked:
    """headings{n}: exactly n lines that start with "## "."""
    count = len(re.findall(r"^## \S", text, re.MULTILINE))
    return _exactly(count, _number(constraint), "heading")


def _no_digits(_constraint: Constraint, text: str) -> Checked:
    """no_digits{}: not one digit."""
    count = len(re.findall(r"\d", text))
    return Checked(count == 0, f"The answer has {_many(count, 'digit')}; none was allowed.")


def _alphabetical(constraint: Constraint, text: str) -> Checked:
    """alphabetical{n}: exactly n "- " lines, in alphabetical order, ignoring case."""
    items = [item.casefold() for item in measure.bullet_items(text)]
    n = _number(constraint)
    if len(items) != n:
        return _exactly(len(items), n, "bullet line")
    for before, after in pairwise(items):
        if after < before:
            return Checked(False, f"The list is not alphabetical: {after!r} follows {before!r}.")
    return Checked(True, f"The list has {n} lines in alphabetical order.")


_TABLE: dict[str, tuple[Callable[[Constraint, str], Checked], tuple[str, ...]]] = {
    "max_words": (_max_words, ("n",)),
    "min_words": (_min_words, ("n",)),
    "sentences": (_sentences, ("n",)),
    "paragraphs": (_paragraphs, ("n",)),
    "bullets": (_bullets, ("n",)),
    "numbered": (_numbered, ("n",)),
    "include": (_include, ("words",)),
    "avoid": (_avoid, ("words",)),
    "no_commas": (_no_commas, ()),
    "lowercase": (_lowercase, ()),
    "uppercase": (_uppercase, ()),
    "title": (_title, ()),
    "json": (_json, ("keys",)),
    "start_with": (_start_with, ("text",)),
    "end_with": (_end_with, ("text",)),
    "exact_numbers": (_exact_numbers, ("n",)),
    "quoted": (_quoted, ()),
    "postscript": (_postscript, ()),
    "letter_count": (_letter_count, ("letter", "n")),
    "two_versions": (_two_versions, ()),
    "placeholders": (_placeholders, ("n",)),
    "headings": (_headings, ("n",)),
    "no_digits": (_no_digits, ()),
    "alphabetical": (_alphabetical, ("n",)),
}

KINDS: tuple[str, ...] = tuple(_TABLE)

PARAMETERS: Mapping[str, tuple[str, ...]] = {kind: row[1] for kind, row in _TABLE.items()}
