"""IFBench, group `custom`: fixed requests, each with its own check; three ask for tables."""

from __future__ import annotations

import csv
import io
import re
import string
import unicodedata
from collections.abc import Mapping
from itertools import pairwise

from promptcodebook.tasks.ifbench.instruction import EDGES, Arguments, Check, Text

_CITY_HEADER = ["ID", "Country", "City", "Year", "Count"]
_SPECIAL = re.compile(r"[^\w\s]")


def _header(names: str, separator: str) -> re.Pattern[str]:
    fields = (f'(?:{name}|"{name}")' for name in names.split())
    return re.compile(rf"{separator}[ \t]*".join(fields))


_PRODUCTS = _header("ProductID Category Brand Price Stock", ",")
_STUDENTS = _header("StudentID Subject Grade Semester Score", "\t")


def _city(text: Text, args: Arguments) -> bool:
    rows = _rows(text.value, ",")
    if len(rows) != 8 or rows[0] != _CITY_HEADER:
        return False
    return all(len(row) == 5 for row in rows)


def _special_character(text: Text, args: Arguments) -> bool:
    if not _PRODUCTS.fullmatch(_first_line(text.value)):
        return False
    rows = _rows(_triple_quotes(text.value), ",")
    if len(rows) != 15:
        return False
    for row in rows:
        if len(row) != 5:
            return False
        # The public scorer stops here and does not look at the rows that follow.
        if any(_holds_special(field) for field in row):
            return True
    return False


def _holds_special(field: str) -> bool:
    line = field.split("\n", 1)[0]
    end = line.rfind('"')
    return line.startswith('"') and end > 0 and _SPECIAL.search(line[1:end]) is not None


def _quotes(text: Text, args: Arguments) -> bool:
    if not _STUDENTS.fullmatch(_first_line(text.value)):
        return False
    rows = _rows(_triple_quotes(text.value), "\t")
    return len(rows) == 4 and all(
        len(row) == 5 and all(_is_quoted(field.strip()) for field in row) for row in rows
    )


def _is_quoted(field: str) -> bool:
    return field.startswith('"') and field.endswith('"')


def _triple_quotes(value: str) -> str:
    """Every double quote tripled, so that the fields keep theirs when they are read."""
    return value.replace('"', '"""')


def _first_line(value: str) -> str:
    return value.split("\n", 1)[0].strip()


def _rows(value: str, delimiter: str) -> list[list[str]]:
    """The rows, a blank line being one; none where the public scorer cannot read them."""
    try:
        return list(csv.reader(io.StringIO(value), delimiter=delimiter))
    except csv.Error:
        return []


_DIGITS = re.compile(r"\d+")
_QUESTION = re.compile(r"Question \d+[.|):;]?\s*")
_OPTION = re.compile(r"[A-Ea-e][.|)]\s*\w+")
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")

_CAPITALS = re.findall(
    r"\w+",
    "Reykjavik, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius, Minsk, "
    "Dublin, Berlin, Amsterdam, Warsaw, London, Brussels, Prague, Luxembourg, Paris, Vienna, "
    "Bratislava, Budapest, Vaduz, Chisinau, Bern, Ljubljana, Zagreb",
)

_MULTIPLES = [str(7 * i) for i in range(2, 8)]

_LAST_DAY = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}


def _multiples(text: Text, args: Arguments) -> bool:
    return _DIGITS.findall(text.value.replace(",", ", ")) == _MULTIPLES


def _mcq_count_length(text: Text, args: Arguments) -> bool:
    if not text.value.startswith("Question"):
        return False
    parts = [part.strip() for part in _QUESTION.split(text.value)]
    lengths = [_question_length(part) for part in parts if part]
    if len(lengths) != 4 or None in lengths:
        return False
    known = [length for length in lengths if length is not None]
    return all(before < after for before, after in pairwise(known))


def _question_length(part: str) -> int | None:
    """Characters of the question before its five options; None when there are not five."""
    lines = [line.strip() for line in part.split("\n")]
    options = [at for at, line in enumerate(lines) if _OPTION.match(line)]
    if len(options) != 5:
        return None
    return len(" ".join(lines[: options[0]]).strip())


def _reverse_newline(text: Text, args: Arguments) -> bool:
    lines = [line for line in (raw.strip(EDGES) for raw in text.value.split("\n")) if line]
    start = next((at for at, line in enumerate(lines) if "Zimbabwe" in line), None)
    if start is None or len(lines) - start < 52:
        return False
    names = [_ascii(line) for line in lines[start:]]
    return all(one >= other for one, other in pairwise(names))


def _word_reverse(text: Text, args: Arguments) -> bool:
    value = " ".join(reversed(text.bare_lower))
    return "bald eagle" in value and len(text.language.sentences(value)) == 1


def _character_reverse(text: Text, args: Arguments) -> bool:
    return "elgae dlab" in text.lower


def _sentence_alphabet(text: Text, args: Arguments) -> bool:
    firsts = [sentence.strip()[:1].lower() for sentence in text.sentences]
    return firsts == list(string.ascii_lowercase)


def _european_capitals_sort(text: Text, args: Arguments) -> bool:
    names = (name.strip() for name in _ascii(text.value).split(","))
    return [name for name in names if name] == _CAPITALS


def _date_format_list(text: Text, args: Arguments) -> bool:
    return all(_in_range(piece.strip()) for piece in text.value.strip().split(","))


def _in_range(piece: str) -> bool:
    found = _DATE.fullmatch(piece)
    if not found:
        return False
    year, month, day = (int(part) for part in found.groups())
    if not 1769 <= year <= 1821 or month > 12:
        return False
    # Month 00 has no last day, and day 00 passes, as in the public scorer.
    return month == 0 or day <= _LAST_DAY.get(month, 31)


def _ascii(value: str) -> str:
    return unicodedata.normalize("NFKD", value).encode("ascii", "ignore").decode("ascii")


CUSTOM: Mapping[str, Check] = {
    "custom:csv_city": _city,
    "custom:csv_special_character": _special_character,
    "custom:csv_quotes": _quotes,
    "custom:multiples": _multiples,
    "custom:mcq_count_length": _mcq_count_length,
    "custom:reverse_newline": _reverse_newline,
    "custom:word_reverse": _word_reverse,
    "custom:character_reverse": _character_reverse,
    "custom:sentence_alphabet": _sentence_alphabet,
    "custom:european_capitals_sort": _european_capitals_sort,
    "custom:date_format_list": _date_format_list,
}
