"""The verifiable constraints `{"kind": ..., parameters...}`: one small pure check per kind. A blank
answer satisfies none. Words match without case at their boundaries; fixed texts are compared as
they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from promptcodebook.base.units import plural
from promptcodebook.errors import TaskError, did_you_mean

Constraint = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Whether one constraint holds, and one sentence that says what was found and asked for."""

    satisfied: bool
    explanation: str


def check(constraint: Constraint, prompt: str, text: str) -> CheckResult:
    """Return whether `text`, an answer to `prompt`, keeps the constraint. Raises TaskError when
    that is malformed."""
    kind = str(constraint.get("kind", ""))
    if kind not in _TABLE:
        message = f"unknown constraint kind {kind!r}{did_you_mean(kind, KINDS)}"
        raise TaskError(message, hint=f"known kinds: {', '.join(KINDS)}")
    missing = [name for name in PARAMETERS[kind] if name not in constraint]
    if missing:
        message = f"constraint {kind!r} of the prompt {prompt[:60]!r} lacks {', '.join(missing)}"
        raise TaskError(message, hint=f'write e.g. {{"kind": "{kind}", "{missing[0]}": ...}}')
    if not text.strip():
        return CheckResult(False, "The answer is empty.")
    return CheckResult(*_TABLE[kind][0](constraint, text))


def _number(constraint: Constraint) -> int:
    return int(str(constraint["n"]))


Found = tuple[bool, str]  # whether it holds, and the sentence that says what was found
_Check = Callable[[Constraint, str], Found]


def _exactly(count: int, wanted: int, noun: str) -> Found:
    counted = f"The answer has {plural(count, noun)}"
    if count == wanted:
        return True, f"{counted}, as asked."
    were = "was" if wanted == 1 else "were"
    return False, f"{counted}; exactly {wanted} {were} asked for."


def _counted(count: Callable[[str], int], noun: str) -> _Check:
    return lambda constraint, text: _exactly(count(text), _number(constraint), noun)


def _at_least(count: Callable[[str], int], noun: str, where: str = "") -> _Check:
    def holds(constraint: Constraint, text: str) -> Found:
        found, n = count(text), _number(constraint)
        message = f"The answer has {plural(found, noun)}{where}; at least {n} were needed."
        return found >= n, message

    return holds


def _none(pattern: str, noun: str) -> _Check:
    def holds(_constraint: Constraint, text: str) -> Found:
        count = len(re.findall(pattern, text))
        return count == 0, f"The answer has {plural(count, noun)}; none was allowed."

    return holds


def _all(wanted: Callable[[str], bool], other: Callable[[str], bool], words: str) -> _Check:
    def holds(_constraint: Constraint, text: str) -> Found:
        wrong, (noun, must) = sum(map(other, text)), words.split("; ")
        held = not wrong and any(map(wanted, text))
        return held, f"The answer has {plural(wrong, noun)}; {must}."

    return holds


def _max_words(constraint: Constraint, text: str) -> Found:
    count, n = len(words(text)), _number(constraint)
    return count <= n, f"The answer has {plural(count, 'word')}; at most {n} were allowed."


def _numbered(constraint: Constraint, text: str) -> Found:
    numbers, n = [*map(int, _LINE_NUMBER.findall(text))], _number(constraint)
    if numbers == [*range(1, n + 1)]:
        return True, f"The list is numbered 1 to {n}, as asked."
    shown = ", ".join(f"{k}." for k in numbers[:12]) or "none"
    return False, f'Lines "1. " to "{n}. " were asked for; numbered lines found: {shown}.'


def _with_words(wanted: bool, fault: str, fine: str) -> _Check:
    def holds(constraint: Constraint, text: str) -> Found:
        listed = map(str, cast("Iterable[object]", constraint["words"]))
        found = ((w, re.search(rf"(?<!\w){re.escape(w)}(?!\w)", text, re.I)) for w in listed)
        wrong = [word for word, match in found if (match is not None) is not wanted]
        return not wrong, f"{fault}: {', '.join(wrong)}." if wrong else fine

    return holds


def _title(_constraint: Constraint, text: str) -> Found:
    found = re.search(r"<<[^<>\n]*\w[^<>\n]*>>", text) is not None
    return found, f"{'A' if found else 'No'} title in << >> was found; one was asked for."


def _json(constraint: Constraint, text: str) -> Found:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "nested too deep"
        return False, f"The answer as a whole is not valid JSON ({why})."
    if not isinstance(value, dict):
        return False, "The answer is JSON, but not an object."
    keys = map(str, cast("Iterable[object]", constraint["keys"]))
    missing = [key for key in keys if key not in value]
    if missing:
        return False, f"The JSON object lacks the keys: {', '.join(missing)}."
    return True, "The answer is one JSON object with the keys asked for."


def _start_with(constraint: Constraint, text: str) -> Found:
    start = str(constraint["text"])
    begun = text.strip()[: len(start)]
    return begun == start, f"The answer starts with {begun!r}; it must start with {start!r}."


def _end_with(constraint: Constraint, text: str) -> Found:
    end, bare = str(constraint["text"]), text.strip()
    message = f"The answer ends with {bare[-len(end) :]!r}; it must end with {end!r}."
    return bare.endswith(end), message


def _quoted(_constraint: Constraint, text: str) -> Found:
    bare = text.strip()
    held = len(bare) > 2 and bare[0] == bare[-1] == '"'
    stands = "stands" if held else "does not stand"
    return held, f"The whole answer {stands} in double quotation marks; it must."


def _postscript(_constraint: Constraint, text: str) -> Found:
    last = paragraphs(text)[-1]
    held = last.startswith("P.S.") and bool(words(last.removeprefix("P.S.")))
    found = "is" if held else "is not"
    return held, f'The last paragraph {found} a postscript starting with "P.S."; it must be.'


def _letter_count(constraint: Constraint, text: str) -> Found:
    letter, n = str(constraint["letter"]), _number(constraint)
    count = text.lower().count(letter.lower())
    message = f"The letter {letter!r} occurs {plural(count, 'time')}; at least {n} were needed."
    return count >= n, message


def _two_versions(_constraint: Constraint, text: str) -> Found:
    parts = [part.strip() for part in _VERSION_LINE.split(text.replace("\r\n", "\n"))]
    if len(parts) != 2:
        count = plural(len(parts), "part")
        return False, f'The answer has {count} around lines "******", not exactly 2.'
    if not all(parts) or parts[0] == parts[1]:
        return False, 'The two parts around the line "******" are empty or the same.'
    return True, 'Two different versions stand around the line "******".'


def _alphabetical(constraint: Constraint, text: str) -> Found:
    items, n = [item.casefold() for item in bullet_items(text)], _number(constraint)
    if len(items) != n:
        return _exactly(len(items), n, "bullet line")
    for before, after in pairwise(items):
        if after < before:
            return False, f"The list is not alphabetical: {after!r} follows {before!r}."
    return True, f"The list has {n} lines in alphabetical order."


_HEADINGS = re.compile(r"^## \S", re.MULTILINE)
_TABLE: dict[str, tuple[_Check, tuple[str, ...]]] = {
    "max_words": (_max_words, ("n",)),
    "min_words": (_at_least(lambda text: len(words(text)), "word"), ("n",)),
    "sentences": (_counted(lambda text: len(sentences(text)), "sentence"), ("n",)),
    "paragraphs": (_counted(lambda text: len(paragraphs(text)), "paragraph"), ("n",)),
    "bullets": (_counted(lambda text: len(bullet_items(text)), "bullet line"), ("n",)),
    "numbered": (_numbered, ("n",)),
    "include": (_with_words(True, "The answer lacks", "Every required word occurs."), ("words",)),
    "avoid": (
        _with_words(False, "The answer uses what was forbidden", "No forbidden word occurs."),
        ("words",),
    ),
    "no_commas": (_none(",", "comma"), ()),
    "lowercase": (_all(str.islower, str.isupper, "capital letter; all must be lower case"), ()),
    "uppercase": (_all(str.isupper, str.islower, "small letter; all must be capitals"), ()),
    "title": (_title, ()),
    "json": (_json, ("keys",)),
    "start_with": (_start_with, ("text",)),
    "end_with": (_end_with, ("text",)),
    "exact_numbers": (_counted(lambda text: len(re.findall(r"[0-9]+", text)), "number"), ("n",)),
    "quoted": (_quoted, ()),
    "postscript": (_postscript, ()),
    "letter_count": (_letter_count, ("letter", "n")),
    "two_versions": (_two_versions, ()),
    "placeholders": (
        _at_least(lambda text: len(re.findall(r"\[[^\[\]\n]+\]", text)), "placeholder", " in [ ]"),
        ("n",),
    ),
    "headings": (_counted(lambda text: len(_HEADINGS.findall(text)), "heading"), ("n",)),
    "no_digits": (_none(r"\d", "digit"), ()),
    "alphabetical": (_alphabetical, ("n",)),
}

KINDS: tuple[str, ...] = tuple(_TABLE)

PARAMETERS: Mapping[str, tuple[str, ...]] = {kind: row[1] for kind, row in _TABLE.items()}


_LIST_NUMBER = re.compile(r"^[ \t]*\d+\.(?=\s)", re.MULTILINE)
_ABBREVIATION = re.compile(r"\b(?:P\.S|e\.g|i\.e|Mrs?|Ms|Dr|vs)\.(?=\s+\S)", re.IGNORECASE)
_LINE_NUMBER = re.compile(r"^([0-9]{1,6})\.[ \t]", re.MULTILINE)
_VERSION_LINE = re.compile(r"^[ \t]*\*{6}[ \t]*$", re.MULTILINE)


def words(text: str) -> tuple[str, ...]:
    """White-space separated tokens that hold a letter or a digit ("don't" is one word)."""
    return tuple(token for token in text.split() if any(c.isalnum() for c in token))


def sentences(text: str) -> tuple[str, ...]:
    """Pieces that end in . ! or ? before white space or the end; line breaks alone end nothing.
    List numbers ("1. ") and a few common abbreviations ("P.S.", "e.g.") do not end a sentence; a
    last piece without a full stop counts if it holds a word."""
    text = _ABBREVIATION.sub(lambda m: m[0].replace(".", " "), _LIST_NUMBER.sub(" ", text))
    ends = [0, *(m.end() for m in re.finditer(r"[.!?]+[\"'”’)\]*_]*(?=\s|$)", text)), len(text)]
    pieces = (text[a:b].strip() for a, b in pairwise(ends))
    return tuple(piece for piece in pieces if words(piece))


def paragraphs(text: str) -> tuple[str, ...]:
    """Non-blank blocks between blank lines."""
    text = text.replace("\r\n", "\n")
    return tuple(p.strip() for p in re.split(r"\n[ \t]*(?:\n[ \t]*)+", text) if p.strip())


def bullet_items(text: str) -> tuple[str, ...]:
    """The text after "- " on the lines that start with it."""
    return tuple(line[2:].strip() for line in text.splitlines() if line.startswith("- "))
