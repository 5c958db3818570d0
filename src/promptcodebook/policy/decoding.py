"""What a text says once it is decoded and folded, and what of it the rules cannot read at all. A
text is read again in every usual code, alphabet and spelling. What then reads as English, by
words.txt, is scanned like any text; what never does is unreadable."""

from __future__ import annotations

import base64
import binascii
import html
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from urllib.parse import unquote

_STRANGE = "аеіорсухѕјһԁԛԝӏкѵАВЕІКМНОРСТУХЅЈԌΑΒΕΖΗΙΚΜΝΟΡΤΥΧο"
_FAMILIAR = "aeiopcyxsjhdqwlkvABEIKMHOPCTYXSJGABEZHIKMNOPTYXo"
LOOK_ALIKES = dict(zip(_STRANGE, _FAMILIAR, strict=True))
"""Cyrillic and Greek letters that pass for Latin ones, but for Greek ones that formulas need."""
_WORDS = re.compile(r"[!-~]+(?: [!-~]+)*")
"""What most texts are made of is folded at once: a rewrite is scanned at each of its steps."""
_TWICE = re.compile(
    r"(?:do not|don't|never|not) (?:hesitate|fail|forget|be afraid|be shy|neglect|refuse|decline)"
    r"(?: to)?"
)
"""In front of "reveal ..." it leaves an order after all."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A folded text; `origin` has the place in the real text of each of its characters."""

    text: str
    origin: tuple[int, ...]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The piece of the real text that a piece of the folded one was made of."""
        return self.origin[start], self.origin[end - 1] + 1


def fold(text: str) -> Folded:
    """The text as orders are looked for in it: without case, compatibility forms, accents,
    look-alike letters, invisible characters and double negation; white space is one character."""
    pieces, places, blank, at = list[str](), list[int](), False, 0
    while at < len(text):
        words, char, end = _WORDS.match(text, at), text[at], at + 1
        if words is not None:
            piece, end, blank = words.group().lower(), words.end(), False
        elif is_invisible(char):
            piece = ""
        elif char.isspace() and char != "\n":
            piece, blank = "" if blank else " ", True
        else:
            piece, blank = _plain(char), False
        pieces.append(piece)
        places += range(at, end) if words is not None else [at] * len(piece)
        at = end
    plain = "".join(pieces)
    for match in reversed(list(_TWICE.finditer(plain))):
        plain = plain[: match.start()] + plain[match.end() :]
        del places[match.start() : match.end()]
    return Folded(plain, tuple(places))


def _plain(char: str) -> str:
    if char in "\n\u2018\u2019\u02bc":
        return "\n" if char == "\n" else "'"
    whole = unicodedata.normalize("NFKD", LOOK_ALIKES.get(char, char)).casefold()
    return "".join(c for c in whole if not unicodedata.combining(c))


def is_invisible(char: str) -> bool:
    """Control, format, private and unassigned characters, fillers and variation supplements."""
    if " " <= char <= "~" or char in "\n\r\t":
        return False
    fillers = "\u115f\u1160\u3164\uffa0\u2800"
    supplement = 0xE0100 <= ord(char) <= 0xE01EF
    return unicodedata.category(char)[0] == "C" or char in fillers or supplement


@dataclass(frozen=True, slots=True)
class Decoded:
    """What `text[start:end]` says when it is read in another way; `how` completes "text in ...".
    `usual` = harmless texts are often written so, too, such as field_names."""

    said: str
    start: int
    end: int
    how: str
    usual: bool = False


@lru_cache(1024)
def decodings(text: str, deeper: bool = True) -> tuple[Decoded, ...]:
    """Every reading of a piece of the text that is English and that the plain text does not show;
    `deeper` = of what was encoded twice, too. Cached, since two rules read the same text."""
    found: list[Decoded] = []
    for how, run, decode in _CODES:
        for match in run.finditer(text):
            said = decode(match.group())
            inner = iter(decodings(said, deeper=False) if said and deeper else ())
            if _reads(said) or (said := next((each.said for each in inner), "")):
                found.append(Decoded(said, match.start(), match.end(), how))
    found += [*_escapes(text), *_spelled(text), *_digits_for_letters(text)]
    for start, end in _strange(text):
        readings = ((how, read(text[start:end])) for how, read in _ALPHABETS)
        found += [Decoded(said, start, end, how) for how, said in readings if _reads(said)]
    return tuple(found)


# --- codes: runs that stand for bytes or letters


def _bytes_of(decode: Callable[[str], bytes]) -> Callable[[str], str]:
    def said(run: str) -> str:
        try:
            text = decode(run).decode()
        except (ValueError, binascii.Error, OverflowError):
            return ""
        return text if all(c.isprintable() or c.isspace() for c in text) else ""

    return said


@_bytes_of
def _base64(run: str) -> bytes:
    return base64.b64decode(f"{run.rstrip('=')}===", "-_")


@_bytes_of
def _base32(run: str) -> bytes:
    plain = run.rstrip("=")
    return base64.b32decode(plain + "=" * (-len(plain) % 8))


def _in_base(base: int, digits: str) -> Callable[[str], str]:
    def numbers(run: str) -> bytes:
        return bytes(int(number, base) for number in re.findall(digits, run))

    return _bytes_of(numbers)


_SIGNS = """.- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- ...-
.-- -..- -.-- --.."""
_MORSE = {sign: chr(ord("a") + place) for place, sign in enumerate(_SIGNS.split())}


def _morse(run: str) -> str:
    words = (word.split() for word in re.split(r"\s*/\s*|\s{2,}", run.strip()))
    said = " ".join("".join(_MORSE.get(sign, "?") for sign in word) for word in words)
    return "" if "?" in said else said


_CODES: tuple[tuple[str, re.Pattern[str], Callable[[str], str]], ...] = (
    ("base64", re.compile(r"[A-Za-z0-9+/_-]{12,}={0,2}"), _base64),
    ("base32", re.compile(r"\b[A-Z2-7]{16,}={0,6}"), _base32),
    (
        "hex",
        re.compile(r"(?i)\b(?:(?:0x)?[0-9a-f]{2}[\s,:]{0,2}){8,}"),
        _in_base(16, "(?i)(?:0x)?([0-9a-f]{2})"),
    ),
    ("binary", re.compile(r"\b(?:[01]{8}[\s,]{0,2}){6,}"), _in_base(2, "[01]{8}")),
    ("decimal codes", re.compile(r"\b(?:\d{2,3}[\s,]{1,2}){7,}\d{2,3}"), _in_base(10, r"\d+")),
    ("Morse code", re.compile(r"[.-]{1,4}(?:[ /]{1,3}[.-]{1,4}){7,}(?![.-])"), _morse),
)

_ESCAPE = re.compile(
    r"%[0-9a-f]{2}|&#x?[0-9a-f]{1,6};|\\(?:u(?=[0-9a-f]{4})|x)([0-9a-f]{2,4})", re.I
)
_FEW_ESCAPES = 4  # fewer are in many addresses and names


def _escapes(text: str) -> Iterator[Decoded]:
    found = list(_ESCAPE.finditer(text))
    if found:
        plain = _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else m[0], text)
        said, usual = html.unescape(unquote(plain)), len(found) < _FEW_ESCAPES
        yield Decoded(said, found[0].start(), found[-1].end(), "escapes", usual)


# --- spelling: the letters are there, the words are not

_SPACED = re.compile(r"(?<![^\W_])[^\W\d_](?:[\W_]{1,7}[^\W\d_](?![^\W_])){7,}")
_TOGETHER = re.compile(r"(?<![^\W_])[^\W\d_]+(?:[_-][^\W\d_]+){2,}(?![^\W_])|[^\W\d_]{14,}")


def _spelled(text: str) -> Iterator[Decoded]:
    for match in _SPACED.finditer(text):
        parts = re.findall(r"[^\W\d_]|[\W_]+", match.group())
        usual = Counter(map(len, parts[1::2])).most_common(1)[0][0]
        spelled = "".join(" " if len(gap) > usual else "" if i % 2 else gap
                          for i, gap in enumerate(parts))  # fmt: skip
        said = " ".join(_apart(word) for word in spelled.split())
        if _reads(said):
            yield Decoded(said, *match.span(), "single letters")
    for match in _TOGETHER.finditer(text):
        cased = re.sub(r"(?<=[a-z])(?=[A-Z])|[_-]", " ", match.group())
        said = " ".join(_apart(word) for word in cased.split())
        if " " in said and _reads(said):
            yield Decoded(said, *match.span(), "words without blanks", usual=True)


_LONGEST = 400  # letters of a run that is taken apart


def _apart(run: str) -> str:
    """The run as the fewest English words that it is made of; as it is where it is made of none."""
    run = run.lower()
    if _is_known(run) or len(run) > _LONGEST:
        return run
    best: list[tuple[int, str] | None] = [(0, ""), *[None] * len(run)]
    for end in range(1, len(run) + 1):
        for start in range(max(0, end - 16), end):
            before, word = best[start], run[start:end]
            known = word in _words() or word in ("a", "i") or (len(word) > 4 and _is_known(word))
            if before and known:
                one = (before[0] + 1, f"{before[1]} {word}")
                if best[end] is None or one < (best[end] or one):
                    best[end] = one
    whole = best[len(run)]
    return whole[1].strip() if whole else run


_LEET = str.maketrans("0345789@$!|+", "oeastbgasilt")
_LEET_WORD = re.compile(r"(?<![\w@$!|+])(?=\w*[^\W\d_])[\w@$!|+]+")
_FEW_DIGITS = 2  # words with a digit in them that might be chance


def _digits_for_letters(text: str) -> Iterator[Decoded]:
    found = [match for match in _LEET_WORD.finditer(text) if _from_digits(match.group())]
    if found:
        said = re.sub(r"[\w@$!|+]+", lambda match: _from_digits(match[0]) or match[0], text)
        usual = len(found) < _FEW_DIGITS
        yield Decoded(said, found[0].start(), found[-1].end(), "digits for letters", usual)


def _from_digits(word: str) -> str:
    """The English word that one with digits or signs in it spells, '' where there is none."""
    bare = word.rstrip("!|+").lower()
    if bare.isalpha() or len(bare) < 3:
        return ""
    readings = (bare.translate(_LEET).replace("1", letter) for letter in "il")
    return next((said for said in readings if said.isalpha() and _is_known(said)), "")


# --- alphabets: every letter replaces another, or the order is turned round


_SMALL = "abcdefghijklmnopqrstuvwxyz"


def _replacing(alphabet: str) -> Callable[[str], str]:
    table = str.maketrans(_SMALL + _SMALL.upper(), alphabet + alphabet.upper())
    return lambda text: text.translate(table)


_ALPHABETS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("letters from right to left", lambda text: text[::-1]),
    ("words from right to left", lambda text: re.sub(r"\S+", lambda m: m.group()[::-1], text)),
    ("a mirrored alphabet", _replacing(_SMALL[::-1])),
    *((f"ROT{26 - by}", _replacing(_SMALL[by:] + _SMALL[:by])) for by in range(1, 26)),
)


# --- what is English, and what is nothing that can be read

_LEAST_LETTERS = 8  # of a text, to tell what it is
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_LATIN = re.compile(r"[a-zA-Z\u00c0-\u024f\u1e00-\u1eff]")
_ENDINGS = ("'s", "\u2019s", "s", "es", "ed", "d", "ing", "er", "r", "ly", "n't", "n\u2019t")


@cache
def _words() -> frozenset[str]:
    text = (resources.files("promptcodebook.policy") / "words.txt").read_text("utf-8")
    return frozenset(line for line in text.split() if line.isalpha())


@lru_cache(4096)
def _is_known(word: str) -> bool:
    """Whether it is English, as far as a short list and the usual endings can tell."""
    known, word = _words(), word.lower()
    if word in known or word in ("a", "i"):
        return True
    for ending in _ENDINGS if word.endswith(_ENDINGS) else ():
        stem = word.removesuffix(ending)
        if stem != word and len(stem) > 2:
            doubled = stem[:-1] if stem[-1] == stem[-2] else stem
            if not known.isdisjoint((stem, f"{stem}e", doubled, f"{stem[:-1]}y")):
                return True
    return False


def _reads(text: str) -> bool:
    """Whether most of it is English: by letters, for short words are in many languages."""
    plain = text if text.isascii() else fold(text).text
    words = [word for word in _WORD.findall(plain) if len(word) > 1]
    letters = known = sum(map(len, words))
    if len(words) < 2 or letters < _LEAST_LETTERS:
        return False
    # Long words first: nearly all readings are none, and that shows after a few of those.
    for word in sorted(words, key=len, reverse=True):
        known -= 0 if _is_known(word) else len(word)
        if known < 0.7 * letters:
            return False
    return True


def _prose(text: str) -> list[tuple[re.Match[str], bool]]:
    """The words of a text with whether each is known: no names among other words, no code."""

    def of_code(start: int, end: int) -> bool:
        beside = text[start - 1 : start] + text[end : end + 1]
        return any(c in "_\\/<>{}[]=^$@#`" or c.isdigit() for c in beside)

    found = (m for m in _WORD.finditer(text) if len(m.group()) > 1)
    words = [m for m in found if not of_code(*m.span())]
    names = sum(m.group().istitle() for m in words) < 0.5 * len(words)
    known = [(match, _is_known(match.group())) for match in words]
    return [
        (match, is_known)
        for match, is_known in known
        if is_known or not (names and match.group()[:1].isupper() and match.start() > 0)
    ]


def _strange(text: str) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for sentence in re.finditer(r"[^.!?;:\n]+", text):
        words = [word for word in _WORD.findall(sentence.group()) if len(word) > 1]
        known = sum(len(word) for word in words if _is_known(word))
        letters = sum(map(len, words))
        if len(words) > 1 and letters >= _LEAST_LETTERS and known < 0.5 * letters:
            found.append(sentence.span())
    return found + [span for span in _unknown(text, 3) if span not in found]


def _unknown(text: str, least: int) -> list[tuple[int, int]]:
    """Stretches of at least that many words of which none is English."""
    found: list[tuple[int, int]] = []
    run: list[re.Match[str]] = []
    for match, known in [*_prose(text), (None, True)]:
        if match is not None and not known:
            run.append(match)
            continue
        if len(run) >= least:
            found.append((run[0].start(), run[-1].end()))
        run = []
    return found


_LEAST_WORDS, _STRETCH = 5, 5
_SHARE = 0.4


def foreign(text: str) -> tuple[int, int] | None:
    """The piece of a text that the rules cannot read: another language or script, or none."""
    letters = [(i, c) for i, c in enumerate(text) if c.isalpha()]
    other = [i for i, c in letters if not _LATIN.match(c)]
    if len(other) > max(5, 0.4 * len(letters)) or (other and _STRETCH_OF_OTHER.search(text)):
        return other[0], other[-1] + 1
    words = _prose(text)
    known = sum(known for _, known in words)
    if len(words) >= _LEAST_WORDS and known < _SHARE * len(words):
        return words[0][0].start(), words[-1][0].end()
    return next(iter(_unknown(text, _STRETCH)), None)


_STRETCH_OF_OTHER = re.compile(
    r"(?:[^\W\d_a-zA-Z\u00c0-\u024f]{2,}[\s,.;:-]+){2}[^\W\d_a-zA-Z\u00c0-\u024f]{2}|[\u3040-\u9fff\uac00-\ud7af]{8}"
)
_RUN = re.compile(r"(?<![\w+/=])[A-Za-z0-9+/=]{20,}(?![\w+/=])")
_LEAST_BITS = 3.2


def random_runs(text: str, decoded: Sequence[Decoded] = ()) -> Iterator[tuple[int, int]]:
    """Runs of letters and digits that are neither words nor decoded: a digest, a key, a cipher."""
    for match in _RUN.finditer(text):
        run, (start, end) = match.group(), match.span()
        counts = Counter(run)
        bits = -sum(n / len(run) * math.log2(n / len(run)) for n in counts.values())
        readable = any(_reads(part) for part in (_apart(run), re.sub("(?=[A-Z])|/", " ", run)))
        seen = any(each.start < end and start < each.end for each in decoded)
        if bits >= _LEAST_BITS and not readable and not seen:
            yield start, end
