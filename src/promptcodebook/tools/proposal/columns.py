"""What each column of a file is, by its name and its values, and which of them are the input and
the reference.

A name has a rank (`names.toml`), and the column of the best rank is taken. Columns of one rank are
equally likely: then a person decides. Values decide what no name does, and they exclude: constants,
ids, dates and what is noted beside a row are neither, nor is an input that holds the answer."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from statistics import fmean, median
from typing import Any, cast

from promptcodebook.base.randomness import keyed_random
from promptcodebook.base.text import count_words, parse_json, shipped_table
from promptcodebook.data.dataset import split_name
from promptcodebook.data.table import cell_text, parse_input_template
from promptcodebook.errors import DataError
from promptcodebook.tasks.rewards.reading import accepted_answers, boxed_answer

SHORT = 4  # words of a short reference at most
_LABELS = 500  # different references at most that count as labels
_HEAD, _LOOKED_AT = 200, 2000  # rows that are read: the first ones, and with a sample
_RATINGS = 10  # a whole number at most that is a label, unless the numbers are codes without a gap
_MISSING = 1 / 3  # of all rows: a column that lacks more is no reference
_NEARLY_ALL, _MOST = 0.95, 0.9  # of the values
_TABULAR = 20  # columns at most that make one input together, where there is no text
_TWICE = 2  # of two texts the longer one is the input if it has twice the words or more
_UNRANKED = 99.0
_TEXTS = ("text", "SQL", "code")
# Kinds whose values alone show that they are an answer.
_TELLING = ("label", "labels", "SQL", "code", "JSON", "worked solution")
# What a guess takes for the reference; and where the name says that it is.
_ANSWERS = (*_TEXTS, "label", "labels", "answers", "number", "JSON", "worked solution")
_NAMED_ANSWERS = (*_ANSWERS, "date", "link", "id")


def rules() -> Mapping[str, Any]:
    """What names.toml says."""
    return shipped_table(__file__, "names.toml")


def _words(name: str) -> tuple[str, ...]:
    """The words of a name, without case, accents and signs: "expectedOutput" has two."""
    apart = unicodedata.normalize("NFKD", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name))
    bare = "".join(c for c in apart if not unicodedata.combining(c))
    return tuple(re.findall(r"[^\W_]+", bare.casefold()))


@cache
def _names(*path: str) -> Mapping[str, int]:
    """The names of a list of names.toml, each with the rank of its list."""
    listed: Any = rules()
    for key in path:
        listed = listed[key]
    ranks: Any = listed if isinstance(listed[0], list) else [listed]
    return {" ".join(_words(name)): rank for rank, names in enumerate(ranks) for name in names}


@dataclass(frozen=True)
class Column:
    """A column: its cells in the rows that are sampled (None = missing), and how many are missing
    in all `rows`."""

    name: str
    cells: Sequence[object]
    missing: int = 0
    rows: int = 0

    @cached_property
    def texts(self) -> list[str]:
        return [cell_text(cell).strip() for cell in self.cells if cell is not None]

    @cached_property
    def words(self) -> float:
        return median([count_words(text) for text in self.texts] or [0])

    @cached_property
    def different(self) -> list[str]:
        return sorted(set(self.texts))

    @cached_property
    def labels(self) -> list[str]:
        """Its different values, where they are few and short; else none. Numbers are labels if they
        are a rating, or codes without a gap."""
        found = self.different
        few = 2 <= len(found) <= min(_LABELS, len(self.texts) // 3) and self.words <= SHORT
        if few and self.numbers:
            whole = [int(text) for text in found if re.fullmatch(r"[+-]?\d{1,4}", text)]
            codes = min(whole, default=9) in (0, 1) and max(whole) - min(whole) < len(whole)
            few = len(whole) == len(found) and (codes or max(map(abs, whole)) <= _RATINGS)
        return found if few else []

    @cached_property
    def finals(self) -> list[str]:
        """What worked solutions end in, in a LaTeX box or behind ####; '' where none does."""
        ends = (boxed_answer(t) or t.rpartition("####")[2] * ("####" in t) for t in self.texts)
        return [end.strip().strip("$") for end in ends]

    @cached_property
    def numbers(self) -> bool:
        pairs = zip(self.texts, self.finals, strict=True)
        return bool(self.texts) and all(_reads("number", end or text) for text, end in pairs)

    @cached_property
    def lists(self) -> list[tuple[str, ...]]:
        """Its cells where each is a list of texts or numbers, else none."""
        listed = [() if text == "[]" else accepted_answers(text) for text in self.texts]
        pairs = zip(listed, self.texts, strict=True)
        return listed if any(listed) and all(each != (text,) for each, text in pairs) else []

    @cached_property
    def members(self) -> list[str]:
        """The labels of which its cells hold several, in a list or with a sign between them."""
        parts = (re.split(r"[,;|]", text) for text in self.texts)
        sets = self.lists or [tuple(map(str.strip, part)) for part in parts]
        items = Counter(item for each in sets for item in each)
        few = 2 <= len(items) <= min(_LABELS, items.total() // 3) and not self.numbers
        short = all(item and count_words(item) <= SHORT for item in items)
        # A text with commas is no list: lists differ in length, and hold nothing else.
        varied = len({len(each) for each in sets}) > 1 and not 0 < len(self.labels) <= len(items)
        return sorted(items) if few and short and (self.lists or varied) else []

    @cached_property
    def keys(self) -> list[str]:
        """The keys that all its values have, where each is a JSON object."""
        objects = [_as_object(cell) for cell in self.cells if cell not in (None, [], "[]")]
        if not objects or not all(objects):
            return []
        return [key for key in objects[0] if all(key in other for other in objects)]

    def rank(self, purpose: str) -> float:
        """How likely its name makes it the "target" or the "input": 0 is the likeliest. A name
        counts as a whole, then by its last word that says something."""
        words, ranks = _words(self.name), _names(purpose, "ranks")
        if (whole := ranks.get(" ".join(words))) is not None:
            return whole
        if purpose == "target" and len(words) > 1 and words[0] in _names("target", "first"):
            return 0.5
        kept = [w for w in words if w not in _names("target", "general") and not w.isdecimal()]
        return ranks[kept[-1]] + 0.5 if kept and kept[-1] in ranks else _UNRANKED

    def reason(self, purpose: str) -> str:
        return "its name; " * (self.rank(purpose) < _UNRANKED) + self.kind[1]

    @cached_property
    def kind(self) -> tuple[str, str]:
        """What it is, and why, whatever the other columns are."""
        return self._first(rules()["kinds"]["by_name"]) or self.form

    @cached_property
    def form(self) -> tuple[str, str]:
        """What it is by its values alone."""
        return self._first(rules()["kinds"]["by_values"]) or ("text", f"{self.words:g} words")

    def _first(self, kinds: Iterable[Mapping[str, Any]]) -> tuple[str, str] | None:
        """The first of the kinds that fits."""
        words = _words(self.name) or ("",)
        for kind in kinds:
            named = _names("columns", kind["name"]) if "name" in kind else ()
            if (
                ("name" not in kind or words[-1] in named or " ".join(words) in named)
                and ("first" not in kind or words[0] in _names("columns", kind["first"]))
                and all(_TRAITS[trait](self) for trait in kind.get("has", ()))
                and not any(_TRAITS[trait](self) for trait in kind.get("lacks", ()))
                and ("reads" not in kind or self._reads(kind["reads"]))
            ):
                counts = {"missing": self.missing, "rows": self.rows, "keys": ", ".join(self.keys)}
                many = len(self.members or self.labels)
                return kind["kind"], kind["why"].format(**counts, many=many)
        return None

    def _reads(self, pattern: str) -> bool:
        read = sum(_reads(pattern, text) for text in self.texts)
        return read >= _NEARLY_ALL * len(self.texts)


def _counts(column: Column) -> bool:
    head = column.texts[:_HEAD]
    first = int(head[0]) if head[0].isdecimal() else -1
    return len(head) > SHORT and head == [str(first + n) for n in range(len(head))]


def _names_splits(column: Column) -> bool:
    with suppress(DataError):
        return len({split_name(text) for text in column.texts}) > 1
    return False


# What names.toml says of kinds of columns.
_TRAITS: Mapping[str, Callable[[Column], object]] = {
    "values": lambda c: c.texts,
    "variety": lambda c: len(c.different) > 1 or len(c.texts) < 2,
    "chats": lambda c: _is_chat(c.cells),
    "splits": _names_splits,
    "test": lambda c: "test" in c.different,
    "gaps": lambda c: c.missing > _MISSING * c.rows,
    "unique": lambda c: len(c.different) == len(c.texts) > 1 and not c.missing,
    "words": lambda c: (
        c.labels and (c.rank("target") < _UNRANKED or not re.search(r"\d", "".join(c.labels)))
    ),
    "answer's name": lambda c: c.rank("target") < 2,
    "row numbers": _counts,
    "numbers": lambda c: c.numbers,
    "short": lambda c: c.words <= SHORT,
    "objects": lambda c: all(_as_object(x) for x in c.cells if x not in (None, [], "[]")),
    "members": lambda c: c.members,
    "lists": lambda c: c.lists,
    "labels": lambda c: c.labels,
    "results": lambda c: all(c.finals),
}


def _reads(pattern: str, text: str) -> bool:
    form: str = rules()["values"][pattern]
    return re.fullmatch(form, text, re.IGNORECASE | re.DOTALL) is not None


def is_missing(value: object) -> bool:
    return value is None or (isinstance(value, str) and (not value or value.isspace()))


def look_at(rows: Sequence[Mapping[str, object]]) -> dict[str, Column]:
    """The columns of the first rows and of a sample of the others; what is missing, of all."""
    later = range(_HEAD, len(rows))
    drawn = keyed_random("proposal").sample(later, min(len(later), _LOOKED_AT - _HEAD))
    seen = [*rows[:_HEAD], *(rows[at] for at in sorted(drawn))]
    there = Counter(n for row in rows for n, value in row.items() if not is_missing(value))
    cells = {
        name: [None if is_missing(value := row.get(name)) else value for row in seen]
        for name in dict.fromkeys(name for row in rows for name in row)
    }
    return {n: Column(n, of, len(rows) - there[n], len(rows)) for n, of in cells.items()}


def _as_object(value: object) -> dict[str, object]:
    """A JSON object, or the first of a list of them."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = parse_json(value)
    listed = cast("list[object]", value) if isinstance(value, list) else [value]
    first = listed[0] if listed else None
    return cast("dict[str, object]", first) if isinstance(first, dict) else {}


def _is_chat(cells: Iterable[object]) -> bool:
    first = next((cell for cell in cells if cell is not None), None)
    return isinstance(first, list) and "role" in str(cast("list[object]", first)[:1])


@dataclass(frozen=True, slots=True)
class Choice:
    """The likeliest column, or template over several, for a purpose ('' = none), and the next one.
    Where `rivals` are as likely, a person decides, and `doubt` says why."""

    name: str = ""
    rivals: tuple[str, ...] = ()
    doubt: str = ""
    runner_up: str = ""

    @classmethod
    def of(cls, ranked: Mapping[str, float], doubt: str) -> Choice:
        """The name of the lowest rank."""
        names = sorted(ranked, key=ranked.__getitem__)
        best = [name for name in names if ranked[name] == ranked[names[0]]]
        next_one = "".join(names[len(best) : len(best) + 1])
        return cls(names[0], tuple(best[1:]), doubt * (len(best) > 1), next_one)


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """What the columns are taken for: each one's role and the reason, and the choices."""

    roles: Mapping[str, tuple[str, str]]
    input: Choice
    target: Choice
    messages: str = ""
    id: str = ""
    split: str = ""


def read_columns(
    columns: Mapping[str, Column],
    *,
    input: str | None = None,
    target: str | None = None,
    separate: bool = False,
) -> ColumnRoles:
    """What each column is. A person's `input` and `target` are kept (None = guess, '' = none);
    `separate` = the splits are files of their own."""
    roles = {name: column.kind for name, column in columns.items()}

    def of(*kinds: str) -> dict[str, Column]:
        return {name: columns[name] for name, (kind, _) in roles.items() if kind in kinds}

    prose, texts = of("text", "label"), of(*_TEXTS)
    messages = next(iter(of("messages")), "") if input is None else ""
    together = _together(of("text", "label", "mostly missing"))
    named = {n for n, c in prose.items() if c.rank("input") < c.rank("target")}
    if input is not None:
        together = (input,) if input in columns else parse_input_template(input).columns
        named = set(together)
    taken, longest = {*named, *together, *filter(None, [messages])}, Choice()
    likely = {n: rank for n, c in columns.items() if (rank := _likelihood(c)) < _UNRANKED}
    if not taken and min(likely.values(), default=0) >= len(rules()["target"]["ranks"]):
        longest = _longest(texts.values())  # neither a name nor labels tell which is the answer
    likely = {n: rank for n, rank in likely.items() if n not in {*taken, longest.name}}
    reference = _reference(likely, columns) if target is None else Choice(target)
    if answer := columns.get(reference.name):
        others = of(*_ANSWERS, "metadata")
        roles |= {n: ("leak", leak) for n, c in others.items() if (leak := _leak(c, answer))}
        roles[answer.name] = ("reference", answer.reason("target"))
    entry = longest if longest.doubt and target is None else Choice(input or "")
    if not (input or messages or entry.name):
        pool = of(*_TEXTS, "label", "leak", "number", "mostly missing")
        entry = _entry(named, together, pool, roles)
    used = (entry.name,) if entry.name in columns else parse_input_template(entry.name).columns
    roles |= {n: ("input", columns[n].reason("input")) for n in used if n in columns}
    spare = tuple(name for name in of(*_TEXTS) if name in taken)
    if target is None and not reference.name and spare:
        reference = Choice("", spare, "no column is clearly the reference")
    split = "" if separate else next(iter(of("split")), "")
    ids = (n for n in of("id") if " ".join(_words(n)) in _names("columns", "id"))
    return ColumnRoles(roles, entry, reference, messages, next(ids, ""), split)


def _together(columns: Iterable[str]) -> tuple[str, ...]:
    """Columns that make one input together, such as a title and a body."""
    known = {_words(name): name for name in columns}
    for slots in rules()["input"]["together"]:
        found = [[known[_words(n)] for n in slot if _words(n) in known][:1] for slot in slots]
        names = dict.fromkeys(chain(*found))
        if len(names) == len(slots):
            return tuple(names)
    return ()


def _longest(columns: Iterable[Column]) -> Choice:
    """The column of the longest texts, if it is clearly the longest."""
    order = sorted(columns, key=lambda column: -column.words)
    close = [c.name for c in order[1:] if _TWICE * c.words > order[0].words]
    alike = "the columns' texts are about equally long, and no name shows which is the input"
    doubt = alike if close else ""
    return Choice(order[0].name, tuple(close), doubt) if order else Choice()


def _likelihood(column: Column) -> float:
    """The rank of a column as the reference: by its name, else by its values."""
    kind, rank = column.kind[0], column.rank("target")
    if not (kind in _ANSWERS or (rank < 2 and kind in _NAMED_ANSWERS)):
        return _UNRANKED
    unnamed, others = rules()["target"]["unnamed"], len(rules()["target"]["ranks"])
    if rank == _UNRANKED:
        rank = unnamed if kind in _TELLING else others
    return rank if rank < unnamed else int(rank)


def _reference(likely: Mapping[str, float], columns: Mapping[str, Column]) -> Choice:
    best = min(likely.values(), default=_UNRANKED)
    limit = min(best, rules()["target"]["unnamed"])
    for column in columns.values():
        if column.kind[0] == "mostly missing" and column.rank("target") < limit:
            doubt = f"its name suggests the reference, but {column.kind[1]}"
            return Choice(column.name, tuple(n for n in likely if likely[n] == best), doubt)
    if not likely:
        return Choice()
    choice = Choice.of(likely, "equally likely the reference")
    labels = [columns[name] for name in likely if columns[name].kind[0] == "label"]

    def in_words(name: str) -> str:
        """The column that says in words what this one says in codes, if there is one."""
        coded = columns[name] in labels and columns[name].numbers
        others = (c.name for c in labels if not c.numbers and _one_to_one(c, columns[name]))
        return next(others, name) if coded else name

    first, *rivals = dict.fromkeys(map(in_words, (choice.name, *choice.rivals)))
    rivals = [name for name in rivals if not _one_to_one(columns[name], columns[first])]
    return replace(choice, name=first, rivals=tuple(rivals), doubt=choice.doubt * bool(rivals))


def _entry(
    named: Collection[str],
    together: Sequence[str],
    columns: Mapping[str, Column],
    roles: Mapping[str, tuple[str, str]],
) -> Choice:
    """The input: a template over columns that belong together, else the best name, else the longest
    text, else all columns of a table."""
    pool = {n: c for n, c in columns.items() if roles[n][0] not in ("leak", "reference")}
    if together and all(name in pool for name in together):
        return Choice("\n".join(f"{{{'?' * bool(pool[n].missing)}{n}}}" for n in together))
    if ranked := {n: c.rank("input") for n, c in pool.items() if n in named}:
        return Choice.of(ranked, "equally likely the input")
    texts = {n: c for n, c in pool.items() if roles[n][0] in _TEXTS}
    for name in columns:
        if (
            roles[name][0] == "leak"
            and (name in named or not texts)
            and columns[name].words > SHORT
        ):
            return Choice(name, tuple(texts), f"it gives the answer away: {roles[name][1]}")
    if texts:
        return _longest(texts.values())
    cells = [n for n, c in pool.items() if not c.missing and re.fullmatch(r"\w[\w -]*\w|\w", n)]
    doubt = "" if cells else "no column is clearly the input"
    return Choice("\n".join(f"{n}: {{{n}}}" for n in cells[:_TABULAR]), (), doubt)


def _one_to_one(one: Column, other: Column) -> bool:
    """Whether each says the same as the other, row for row, in values that repeat."""
    pairs = _pairs(one, other)
    kinds = set(pairs)
    sides = [{pair[side] for pair in kinds} for side in (0, 1)]
    few = 2 <= len(kinds) <= len(pairs) // 2
    return few and one is not other and len(sides[0]) == len(sides[1]) == len(kinds)


def _leak(column: Column, answer: Column) -> str:
    """How a column gives the answer away; '' = it does not. A text that holds it somewhere, as a
    passage does, gives nothing away; one that always ends or starts with it does."""
    pairs = [(a, accepted_answers(b)[0].casefold()) for a, b in _pairs(column, answer)]
    if column is answer or len(pairs) < SHORT or len({b for _, b in pairs}) < 2:
        return ""
    if _one_to_one(column, answer):
        return "it says the same as the reference, row for row"
    if column.words <= SHORT and column.kind[0] not in _TEXTS:
        return ""
    for at, what in ((2, "ends"), (0, "starts")):
        rests = dict[str, list[str]]()
        for text, wanted in pairs:
            parts = text.casefold().rpartition(wanted) if at else text.casefold().partition(wanted)
            rests.setdefault(wanted, []).append(parts[at] if parts[1] else "-")
        usual = Counter(rest for each in rests.values() for rest in each).most_common(1)[0][0]
        shares = [each.count(usual) / len(each) for each in rests.values()]
        if count_words(usual) < _TWICE and usual != "-" and fmean(shares) >= _MOST:
            return f"it {what} with the reference"
    return ""


def _pairs(one: Column, other: Column) -> list[tuple[str, str]]:
    cells = zip(one.cells, other.cells, strict=True)
    both = [(a, b) for a, b in cells if a is not None and b is not None]
    return [(cell_text(a).strip(), cell_text(b).strip()) for a, b in both]
