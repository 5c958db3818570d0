"""How an answer is read: which words it holds as a whole, which label it names, which number it
gives, and which answers a reference accepts."""

from __future__ import annotations

import ast
import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from promptcodebook.base.text import parse_json, pattern_of, strip_fence
from promptcodebook.errors import ConfigError

# --- accepted answers


@lru_cache(maxsize=2**12)
def accepted_answers(target: str) -> tuple[str, ...]:
    """The texts of a cell that is a list of texts or numbers, as JSON or as Python and NumPy print
    it; any other cell is the one answer."""
    if not target.lstrip().startswith("["):
        return (target,)
    try:
        listed = parse_json(target)
    except ValueError:
        # NumPy puts no commas, and Python would read such texts as one.
        python = re.sub(r"(['\"])\s+(?=['\"])", r"\1, ", target.strip())
        try:
            listed = ast.literal_eval(python)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return (target,)
    plain = bool(listed) and all(isinstance(each, str | int | float) for each in listed)
    return tuple(e if isinstance(e, str) else json.dumps(e) for e in listed) if plain else (target,)


def members_of(target: str) -> tuple[str, ...]:
    """The labels that a cell holds: a list of them, or a text with , ; or | between them."""
    if (listed := accepted_answers(target)) != (target,):
        return listed
    parts = (part.strip() for part in re.split(r"[,;|]", target.strip().removesuffix("[]")))
    return tuple(part for part in parts if part)


# --- whole words

_SIGNS = {
    **dict.fromkeys(map(ord, "‐‑‒–—−"), "-"),
    **dict.fromkeys(map(ord, "‘’"), "'"),
    **dict.fromkeys(map(ord, "“”„"), '"'),
    **dict.fromkeys(map(ord, "™®©"), None),
}


def _plain(text: str) -> str:
    """The text with one sign for each kind of dash, quotation mark and blank."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_SIGNS))
    return " ".join(text.split())


@lru_cache(maxsize=2**12)
def _finder(text: str, ignore_case: bool) -> re.Pattern[str]:
    whole = " +".join(map(re.escape, text.split(" ")))
    flags = re.IGNORECASE if ignore_case else 0
    return re.compile(pattern_of("begins") + whole + pattern_of("ends"), flags)


def holds_words(answer: str, text: str, *, ignore_case: bool = True) -> bool:
    """Whether the answer holds the text as whole words: "no" is not in "know"."""
    wanted = _plain(text)
    return not wanted or _finder(wanted, ignore_case).search(_plain(answer)) is not None


# --- labels

_MARKED = re.compile(r"\(?([A-Za-z]|\d{1,3})(?:\)|\s*[.:=-])\s+(\S.*)")
_OPTION = re.compile(
    r"(?:^|\s)[(\[]?([A-Za-z]|\d{1,2})[)\].:]\s+(\S.*?)"
    r"(?=\s+[(\[]?(?:[A-Za-z]|\d{1,2})[)\].:]\s|\s*\n|\s*\Z)"
)
_JOINS = re.compile(r"(?<=[^\W_])[ _-]+(?=[^\W\d_])|(?<=[^\W\d_])[ _-]+(?=[^\W_])")
_TAGGED = re.compile(r"<([A-Za-z]\w*)>(.*?)</\1>", re.DOTALL)
_AROUND = " *_`\"'()[]{}.,:;!?。、，「」"
_BEFORE_NEGATED = 60  # characters in which a negation is looked for


def _key(text: str) -> str:
    return _JOINS.sub(" ", _plain(text).casefold())


def options_of(text: str) -> tuple[tuple[str, str], ...]:
    """The options that an input lists, each with the letter or number beside it."""
    found = [(m[1], m[2]) for m in _OPTION.finditer(text)]
    runs = list[list[tuple[str, str]]]()
    for mark, option in found:
        if mark in ("A", "a", "1", "0") and not (runs and mark == _next(runs[-1])):
            runs.append([(mark, option)])
        elif runs and mark == _next(runs[-1]):
            runs[-1].append((mark, option))
    return next((tuple(run) for run in reversed(runs) if len(run) > 1), ())


def _next(run: Sequence[tuple[str, str]]) -> str:
    """The mark that follows those of a list."""
    last = run[-1][0]
    return str(int(last) + 1) if last.isdecimal() else chr(ord(last) + 1)


@dataclass(frozen=True, slots=True)
class Names:
    """What labels go by: `keys` says which one a whole answer is, `finder` finds them in prose, and
    `owners` says whose each of its groups is."""

    keys: Mapping[str, int]
    finder: re.Pattern[str]
    owners: Sequence[int]

    def named(self, answer: str, most: int | None = 2) -> list[tuple[int, str]]:
        """The different labels that an answer names, each with its words: the first `most`. One
        that is negated is not named."""
        texts = [_TAGGED.sub(r" \2 ", text) for text in _texts_in(answer)]
        whole = [self.owner(text) for text in texts]
        if known := {owner: text for owner, text in zip(whole, texts, strict=True) if owner >= 0}:
            return list(known.items())[:most]
        negation, denial = (
            re.compile(pattern, re.IGNORECASE)
            for pattern in (pattern_of("negation") + r"\Z", pattern_of("denial"))
        )
        found, behind = dict[int, str](), 0
        text = "\n".join(_plain(line) for each in texts for line in each.splitlines())
        for match in self.finder.finditer(text):
            group = match.lastindex or 0
            start = match.start(group)
            before = negation.search(text, max(behind, start - _BEFORE_NEGATED), start)
            if not (before or denial.match(text, match.end())):
                found.setdefault(self.owners[group - 1], match[group])
            behind = match.end()
            if len(found) == most:
                break
        return list(found.items())

    def owner(self, text: str) -> int:
        """Which label a whole text is; -1 = none."""
        return self.keys.get(_key(text), self.keys.get(_key(text.strip(_AROUND)), -1))


def _texts_in(answer: str) -> list[str]:
    """The values of an answer in JSON; else the answer."""
    body = strip_fence(answer)
    try:
        tree = parse_json(body) if body[:1] in ("{", "[") else None
    except ValueError:
        tree = None
    return [str(value) for _, value in leaves(tree)] or [body]


@lru_cache(maxsize=2**10)
def names_of(labels: tuple[str, ...], options: tuple[tuple[str, str], ...] = ()) -> Names:
    """What the labels go by: their own texts, and the letter or number beside each. ConfigError
    names two that are the same to it."""
    keys, names, places = dict[str, int](), list[tuple[str, int]](), list[tuple[str, int]]()

    def add(name: str, owner: int, *, mark: bool = False) -> None:
        plain = _plain(name)
        keys.setdefault(_key(name), owner)
        if plain and not mark:
            names.append((plain, owner))
        if mark or re.fullmatch("[A-Za-z]", plain):
            forms = (pattern_of(place) for place in ("placed", "cued"))
            places.extend((form.replace("MARK", re.escape(plain)), owner) for form in forms)

    for owner, (mark, text) in enumerate(options):
        add(text, owner)
        add(mark, owner, mark=mark.isdecimal())
    known, marked = dict(keys), [_MARKED.fullmatch(_plain(label)) for label in labels]
    marks = {m[1].casefold() for m in marked if m}
    for n, label in enumerate(labels):
        owner, key = len(options) + n, _key(label)
        if key in keys and key not in known:
            twin = labels[keys[key] - len(options)]
            raise ConfigError(
                f"the labels {twin!r} and {label!r} cannot be distinguished",
                hint="merge them in the data, or use a different reward, such as exact",
            )
        owner = known.get(key, owner)
        add(label, owner)
        if (match := marked[n]) and len(marks) == len(labels):
            add(match[2], owner)
            add(match[1], owner, mark=match[1].isdecimal())
    for n, label in enumerate(labels):  # "Urgent!" is also called "urgent"
        if (bare := label.strip(_AROUND)) and _key(bare) not in keys:
            add(bare, known.get(_key(label), len(options) + n))
    # The longest first, so that "very positive" is not "positive" too.
    names.sort(key=lambda name: len(name[0]), reverse=True)
    patterns, owners = [pattern for pattern, _ in places], [owner for _, owner in places]
    # By their first letters: else all of 500 labels would be tried at each letter of an answer.
    for first in dict.fromkeys(name[0].casefold() for name, _ in names):
        alike = [(name, owner) for name, owner in names if name[0].casefold() == first]
        tried = "|".join(f"({_in_prose(name)})" for name, _ in alike)
        start = f"{pattern_of('begins')}(?={re.escape(first)})"
        patterns.append(f"{start}(?:{tried}){pattern_of('ends')}")
        owners += [owner for _, owner in alike]
    finder = re.compile("|".join(patterns) or r"(?!)", re.IGNORECASE)
    return Names(keys, finder, owners)


def _in_prose(name: str) -> str:
    if re.fullmatch("[A-Za-z]", name):  # "a" is a word, and so is "A" before another word
        return f"(?-i:{name.upper()}){pattern_of('article') if name in 'AIai' else ''}"
    return r"[\s_-]+".join(map(re.escape, _JOINS.sub(" ", name).split(" ")))


# --- numbers

_CURRENCY = re.compile(r"([-+]?)\s*\\?[$€£¥₹₩₽₺₫₪฿¢]\s*(?=[-+]?[\d.])")
_FRACTION = re.compile(r"(\d?)\s*\\[dt]?frac\s*(?:\{\s*(\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))")
_POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_DIGITS = r"(?:\d{1,3}(?: \d{3})+(?!\d)(?:[.,]\d+)?|\d++(?:[.,'_]\d+)*+|\.\d+)"
_TO = r"(?:-| - | ?\.\.+ ?| ?… ?| ?~ ?| (?:to|through|bis) )"
_RANGE = re.compile(
    rf"(?<![\d.,'_])[-+]?{_DIGITS}(?:{_TO}{_DIGITS})+"
    rf"|\bbetween {_DIGITS} and {_DIGITS}",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    rf"(?<![A-Za-z_\d.^])(?<![A-Za-z]-)(?<!\d[:/,'_])(?P<sign>[-+](?=[\d.]))?(?P<whole>{_DIGITS})"
    r"(?: (?P<top>\d+)/(?P<under>\d+)| ?/ ?(?P<by>\d+))?(?!\d|/\d|:\d|[.,]\d)"
    r"(?:[eE](?P<e>[-+]?\d+)| ?(?:[×x*·]|\\times|\\cdot) ?10 ?\^ ?\{?(?P<ten>[-+]?\d+)\}?"
    r"|\^ ?\{?(?P<power>[-+]?\d+)\}?)?"
    r"(?: ?\\?(?P<percent>%|percent\b|per cent\b)"
    r"| ?(?P<scale>thousand|million|billion|trillion)\b)?"
)
_SCALES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it is written, and the `factor` of a percent sign or of "million" behind it."""

    written: float
    factor: float = 1.0

    def __str__(self) -> str:
        return f"{self.written * self.factor:.12g}"

    def pairs(self, other: Number) -> Iterator[tuple[float, float]]:
        """The values of both to compare: who leaves the sign out of "15%" may write 15 or 0.15."""
        yield self.written * self.factor, other.written * other.factor
        if 1.0 in (self.factor, other.factor) and 0.01 in (self.factor, other.factor):
            yield self.written, other.written


def last_number(text: str) -> Number | None:
    r"""The number that an answer ends in: what the last \boxed{...} or "####" holds, else the last
    in the text. A range, a date or a version is none."""
    _, marked, final = text.rpartition("####")
    # Behind the mark comes the answer and then, perhaps, more.
    for part, place in ((boxed_answer(text) or "", -1), (final if marked else "", 0), (text, -1)):
        if found := [number for number in _numbers(part) if math.isfinite(number.written)]:
            return found[place]
    return None


def _numbers(text: str) -> Iterator[Number]:
    text = _RAISED.sub(lambda m: f"^{m[0].translate(_POWERS)}", text)
    text = _VULGAR.sub(lambda m: f" {unicodedata.normalize('NFKC', m[0]).replace('⁄', '/')} ", text)
    text = text.replace("{,}", ",").replace(r"\,", "").replace("\n", " \n ")
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).replace("٫", ".").replace("٬", ",")
    text = _FRACTION.sub(lambda m: f"{m[1]}{' ' * bool(m[1])}{m[2] or m[3]}/{m[4] or m[5]}", text)
    text = _RANGE.sub(" ; ", _CURRENCY.sub(r" \1", text))
    for match in _NUMBER.finditer(text):
        value = _value(match["whole"])
        if value is None:
            continue
        factor = 0.01 if match["percent"] else _SCALES.get(match["scale"] or "", 1.0)
        try:
            value += int(match["top"] or 0) / int(match["under"] or 1)
            value /= int(match["by"] or 1)
            value = value ** int(match["power"] or 1) * 10.0 ** int(match["e"] or match["ten"] or 0)
        except (ZeroDivisionError, OverflowError, ValueError):  # beyond any float
            continue
        yield Number(-value if match["sign"] == "-" else value, factor)


def _value(digits: str) -> float | None:
    """A number with separators: the last of two kinds is the decimal one."""
    bare = re.sub(r"[ '_]", "", digits)
    dots, commas = bare.count("."), bare.count(",")
    if dots and commas:
        point = max(".,", key=bare.rfind)
        bare = bare.replace(".,"[point == "."], "").replace(point, ".")
    elif dots > 1 or commas > 1:
        if not re.fullmatch(r"\d{1,3}(?:\.\d{3})+|\d{1,3}(?:,\d{2,3})*,\d{3}", bare):
            return None  # a version, or a list
        bare = re.sub("[.,]", "", bare)
    elif commas:
        bare = bare.replace(",", "" if re.fullmatch(r"[1-9]\d{0,2},\d{3}", bare) else ".")
    return float(bare) if bare.count(".") < 2 else None


def boxed_answer(output: str) -> str | None:
    r"""The content of the last \boxed or \fbox whose braces balance, or None."""
    opened = list[tuple[bool, int]]()
    start, content = -1, None
    for match in re.finditer(r"\\(?:boxed|fbox)\s*\{|[{}]", output):
        if match[0] != "}":
            opened.append((match[0] != "{", match.end()))
        elif opened:
            is_box, at = opened.pop()
            if is_box and at > start:
                start, content = at, output[at : match.start()]
    return content


# --- fields


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of JSON that hold no others, each with its path: a list's share one."""
    if isinstance(tree, dict):
        for key, value in cast("dict[str, Any]", tree).items():
            yield from leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(tree, list):
        listed = cast("list[Any]", tree)
        for n, value in enumerate(listed):
            inner = isinstance(value, dict | list)
            at = (f"{path}.{n}" if path else str(n)) if inner else path
            yield from leaves(value, at)
    elif tree is not None:
        yield path, tree
