"""IFBench, group `custom`: the three requests for delimited tables."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping

from promptcodebook.tasks.ifbench.arguments import Arguments
from promptcodebook.tasks.ifbench.constraint import Constraint
from promptcodebook.tasks.ifbench.text import Text

__all__ = ["TABLES"]

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
    rows = _rows(_quoted(text.value), ",")
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
    rows = _rows(_quoted(text.value), "\t")
    return len(rows) == 4 and all(
        len(row) == 5 and all(_is_quoted(field.strip()) for field in row) for row in rows
    )


def _is_quoted(field: str) -> bool:
    return field.startswith('"') and field.endswith('"')


def _quoted(value: str) -> str:
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


TABLES: Mapping[str, Constraint] = {
    "custom:csv_city": Constraint(
        _city,
        "The response must be CSV with the columns ID, Country, City, Year, Count and seven rows.",
    ),
    "custom:csv_special_character": Constraint(
        _special_character,
        "The response must be CSV with the columns ProductID, Category, Brand, Price, Stock and "
        "14 rows, one field with a special character in double quotes.",
    ),
    "custom:csv_quotes": Constraint(
        _quotes,
        "The response must be tab-separated with the columns StudentID, Subject, Grade, Semester, "
        "Score and three rows, every field in double quotes.",
    ),
}
