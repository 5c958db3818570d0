"""Texts as they are compared, cut, shown and set beside each other: one home for each way. As a
part of another language, written by one function for each, none becomes code there."""

from __future__ import annotations

import difflib
import html
import json
import math
import re
import shlex
import string
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal, cast

_WORD = re.compile(r"[^\W_]+", re.UNICODE)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")
_FENCED = re.compile(r"\A```[\w-]*[ \t]*\n(.*?)\n?```\Z", re.DOTALL)
# What is not closed ends with the text: else each opening would be looked for to its end.
_MARKUP = re.compile(
    r"<!--(?:.*?-->|.*)|<(script|style)\b(?:.*?</\1\s*>|.*)|<[^>]*>?", re.DOTALL | re.IGNORECASE
)
_BULLET = re.compile(r"^\s*(?:[-*•–]|\(?\d{1,2}[.)]|#{1,6})\s+")
_ITEM = re.compile(r"\n\s*(?:[-*•–]|\(?\d{1,2}[.)])\s+")
_CUT = re.compile(r"[.!?][\"'”’)\]]*\s+(?=[\"'“‘(\[]?[^\W_a-z])")
_PIECES = re.compile(r"[\w'’-]+\s*|[^\w\s]\s*|\s+")
# Beyond this comparing two texts would take seconds; characters at the end that may be one.
_MOST_PIECES, _FAREWELL_AT_MOST = 1200, 800


@cache
def _forms() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("text.toml").read_text("utf-8"))


@cache
def _patterns(name: str) -> Sequence[re.Pattern[str]]:
    """Those of text.toml: one, or a list of several."""
    every = {**_forms(), **_forms()["no_text"]}

    def whole(pattern: str) -> str:
        return re.sub(r"\{([a-z_]+)\}", lambda named: whole(every[named[1]]), pattern)

    listed = every[name] if isinstance(every[name], list) else [every[name]]
    return [re.compile(whole(each), re.IGNORECASE | re.DOTALL) for each in listed]


def words_of(text: str) -> list[str]:
    """Lower-cased words without punctuation."""
    return _WORD.findall(text.lower())


def word_spans(text: str) -> list[tuple[str, int, int]]:
    """The same words, each with its start and end in the text."""
    return [(m.group().lower(), *m.span()) for m in _WORD.finditer(text)]


def fold_text(text: str) -> str:
    """The text for comparing inputs: Unicode NFC, case folded, white space collapsed."""
    whole = text if text.isascii() else unicodedata.normalize("NFC", text)
    return " ".join(whole.casefold().split())


def answer_words(text: str, *, nfd: bool = True) -> str:
    """The text for comparing answers (SQuAD): lower case, no ASCII punctuation, no articles; with
    `nfd` accented letters are decomposed, as in the GEPA artifact."""
    if nfd:
        text = unicodedata.normalize("NFD", text)
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def printable(text: str) -> str:
    """Without control characters but line breaks and tabs: it must not steer a terminal."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL.sub(" ", text).encode("utf-8", "replace").decode()


def quote(text: str, most: int = 300) -> str:
    """The text in quotation marks, cut for a critic's eyes."""
    text = text.strip()
    return f"'{text}'" if len(text) <= most else f"'{text[:most].rstrip()} …'"


def shorten(text: str, limit: int) -> str:
    """The text, its middle cut out where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - limit} characters left out ...]\n{text[-half:]}"


def strip_fence(text: str) -> str:
    """The inside of a text that is one Markdown ``` block, else the text; without outer space."""
    body = text.strip()
    match = _FENCED.match(body)
    return match[1].strip() if match else body


def strip_tags(text: str) -> str:
    """The words of a page of HTML or XML; any other text as it is."""
    bare = _MARKUP.sub(" ", text) if text.lstrip().startswith("<") else ""
    return " ".join(html.unescape(bare).split()) if bare else text


def sentences_of(text: str) -> list[str]:
    """The sentences of a text; a line or an item of a list is one at least, and what only leads to
    a list ("Rules:") is left out. What leans on the one before ("It must ...") stays with that."""
    (leaning,), sentences = _patterns("leaning"), list[str]()
    for line in text.splitlines():
        whole = _BULLET.sub("", line).strip()
        if not whole or whole.endswith(":") or not words_of(whole):
            continue
        cuts = [0]
        for cut in _CUT.finditer(whole):
            before = whole[cuts[-1] : cut.end()]
            if _is_open(before):
                continue
            cuts.append(cut.end())
        for start, end in pairwise((*cuts, len(whole))):
            sentence = whole[start:end].strip()
            if start > 0 and leaning.match(sentence):
                sentences[-1] += f" {sentence}"
            elif sentence:
                sentences.append(sentence)
    return sentences


def cut_at_sentence(text: str, words: int) -> str:
    """The longest beginning of at most `words` words that ends with a sentence or an item."""
    ends = {m.end() for m in _CUT.finditer(text)} | {m.start() for m in _ITEM.finditer(text)}
    for end in sorted(ends, reverse=True):
        start = text[:end]
        whole = not (start.rstrip().endswith(":") or _is_open(start))
        if whole and len(start.split()) <= words:
            return start.rstrip()
    return ""


def _is_open(text: str) -> bool:
    """Whether a quotation is not closed in it, or it ends with an abbreviation."""
    (abbreviated,) = _patterns("abbreviated")
    quoted = text.count('"') % 2 == 1 or text.count("“") > text.count("”")
    return quoted or abbreviated.search(text) is not None


_PLACE = re.compile(r"(?:tool|stage):[\w.-]+: ")


def place_in(text: str) -> str:
    """The "tool:NAME: " or "stage:NAME: " that a text opens with, and so belongs to; "" = none."""
    found = _PLACE.match(text)
    return found[0] if found else ""


def fault_in_text(text: str) -> str | None:
    """Why a reply is not the text that was asked for, in words fit to quote; None: it may be."""
    body = text.strip()
    for fault in _forms()["no_text"]:
        if any(form.fullmatch(body) for form in _patterns(fault)):
            return fault
    if body.startswith("{"):
        with suppress(ValueError):
            parse_json(body)
            return "it is an object of JSON"
    return None


def is_refusal(text: str) -> bool:
    return any(form.fullmatch(text.strip()) for form in _patterns("it is a refusal"))


def strip_wrapping(text: str) -> str:
    """A text that a model was asked to write, without an introduction ("Here is the instinct:"), a
    label, a fence, quotation marks, a tag, an object of JSON, a remark or a farewell. What would
    leave nothing is kept."""
    body = text.strip()
    while (bare := _unwrap_once(body)) and bare != body:
        body = bare
    return body


def _unwrap_once(body: str) -> str:
    for opening in _patterns("openings"):
        match = opening.match(body)
        if match is not None and match.end() < len(body):
            return body[match.end() :]
    for farewell in _patterns("farewells"):
        if match := farewell.search(body, max(0, len(body) - _FAREWELL_AT_MOST)):
            return body[: match.start()].rstrip()
    for wrap in _patterns("wraps"):
        match = wrap.match(body)
        if match is not None and (inner := match[match.lastindex or 0].strip()):
            return inner
    if inner := _text_in_json(body):
        return inner
    return strip_fence(body) if body.count("```") == 2 else body


def _text_in_json(body: str) -> str:
    """The one text in an object or a list of JSON; '' where there is none, or several."""
    tree: Any = None
    if body[:1] in ("{", "["):
        with suppress(ValueError):
            tree = parse_json(body)
    (aside,) = _patterns("aside")
    if isinstance(tree, list):
        listed = cast("list[Any]", tree)
        tree = {"": listed[0]} if len(listed) == 1 else {}
    named = cast("dict[str, Any]", tree) if isinstance(tree, dict) else {}
    texts = [v for key, v in named.items() if isinstance(v, str) and not aside.match(key)]
    return texts[0].strip() if len(texts) == 1 else ""


def word_changes(
    before: str, after: str
) -> Iterator[tuple[Literal["same", "removed", "added"], str]]:
    """The new text in pieces, with what was taken out between them; white space is no change."""
    old, new = _PIECES.findall(before), _PIECES.findall(after)
    if len(old) + len(new) > _MOST_PIECES:
        yield "removed", before
        yield "added", after
        return
    olds, news = [piece.strip() for piece in old], [piece.strip() for piece in new]
    matcher = difflib.SequenceMatcher(None, olds, news, autojunk=False)
    for kind, a1, a2, b1, b2 in matcher.get_opcodes():
        if kind != "equal" and a2 > a1:
            yield "removed", "".join(old[a1:a2])
        if b2 > b1:
            yield "same" if kind == "equal" else "added", "".join(new[b1:b2])


# --- as a part of another language. The pages and sheets of reports and of the viewer are escaped
# where they are rendered (`report/pages.py`).

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHELL_WORD = re.compile(r"[\w@%+=:,./-][\w@%+=:,./#-]*", re.ASCII)
_MARKDOWN = re.compile(r"[\\`*_\[\]#~$]")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;"})


def one_line(text: str) -> str:
    """Printable, its white space as blanks: no line of a screen or a file ends in it."""
    return re.sub(r"\s", " ", _UNSEEN.sub(" ", printable(text)))


def toml(value: object) -> str:
    """The value on one line of TOML. Signs that a reader cannot see are escapes."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        keys = [key if _BARE_KEY.fullmatch(key) else toml(key) for key, _ in pairs]
        each = (f"{key} = {toml(of)}" for key, (_, of) in zip(keys, pairs, strict=True))
        return f"{{ {', '.join(each)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, cast('Sequence[object]', value)))}]"
    text = json.dumps(value, ensure_ascii=False)
    return _UNSEEN.sub(lambda m: "".join(f"\\u{ord(sign):04x}" for sign in m[0]), text)


def shell(*words: object) -> str:
    """The words as a part of a line to copy into a shell, each of them one word there."""
    # A # within a word begins no comment, and every spec of an endpoint has one.
    texts = map(str, words)
    return " ".join(t if _SHELL_WORD.fullmatch(t) else shlex.quote(t) for t in texts)


def markdown(text: str) -> str:
    """The text as one line of Markdown that reads as it is, also within a table."""
    return _MARKDOWN.sub(r"\\\g<0>", one_line(text).translate(_ENTITIES))


def fenced(text: str) -> str:
    """The text as a block of Markdown that no line of it can end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    clean = text.encode(errors="backslashreplace").decode()
    return f"{fence}text\n{clean}\n{fence}"


_MOST_ROWS, _MOST_CHARACTERS = 100, 4000
# Some notebooks break words wherever a line ends.
_WHOLE = "text-align: left; word-break: normal; overflow-wrap: normal; hyphens: none"


def shown_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as HTML, cut after its first rows; None is an empty cell."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    body = "".join(_row("td", row) for row in cells[:_MOST_ROWS])
    more = len(cells) - _MOST_ROWS
    foot = f"<p>and {more} more</p>" if more > 0 else ""
    return (
        f"<table><caption>{_escape(caption)}</caption><thead>{_row('th', head)}</thead>"
        f"<tbody>{body}</tbody></table>{foot}"
    )


def shown_text(title: str, text: str) -> str:
    """A titled text as HTML, its line breaks kept."""
    style = f"white-space: pre-wrap; {_WHOLE}"
    return f'<p><b>{_escape(title)}</b></p><pre style="{style}">{_escape(text)}</pre>'


def _row(kind: str, cells: Iterable[str]) -> str:
    shown = (f'<{kind} style="{_WHOLE}">{_escape(cell)}</{kind}>' for cell in cells)
    return f"<tr>{''.join(shown)}</tr>"


def _escape(text: str) -> str:
    cut = text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + " …"
    printable = _UNSEEN.sub(" ", cut).encode("utf-8", "replace").decode()
    return html.escape(printable, quote=True)


# Levels of JSON from outside: far under what recursive code of Python can walk.
MOST_DEPTH = 100
_MOST_DIGITS = 300  # of a whole number: float() takes no more than 308


def json_decoder(
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None, *, odd_numbers: bool = False
) -> json.JSONDecoder:
    """What `parse_json` reads with: made once, as making it takes longer than reading a short text.
    `pairs` builds each object. With `odd_numbers` NaN and numbers beyond a float are read as
    None: servers write NaN where they have no figure."""

    def refuse(word: str) -> None:
        if not odd_numbers:
            raise ValueError(f"{word[:20]} is not JSON; write null")

    def whole(digits: str) -> int | None:
        return int(digits) if len(digits) <= _MOST_DIGITS else refuse(digits)

    def broken(digits: str) -> float | None:
        number = float(digits)
        return number if math.isfinite(number) else refuse(digits)

    return json.JSONDecoder(
        object_pairs_hook=pairs, parse_constant=refuse, parse_int=whole, parse_float=broken
    )


_STRICT = json_decoder()
# For what servers answer: a stray NaN must not cost the reply.
LENIENT_JSON = json_decoder(odd_numbers=True)
_TOO_DEEP = "nested too deeply"


def parse_json(data: str | bytes, decoder: json.JSONDecoder = _STRICT) -> Any:
    """The value of a JSON text from outside. Raises ValueError alone, whatever the text is: no
    JSON, deeper than 100 levels, or a number that no float can hold. Its length is for the caller
    to bound, before he reads it."""
    if isinstance(data, bytes):
        data = data.decode("utf-8-sig", "surrogatepass")
    try:
        tree = decoder.decode(data)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if data.count("[") + data.count("{") > MOST_DEPTH:  # few brackets need no look
        level: list[Any] = [[tree]]
        for _ in range(MOST_DEPTH + 1):
            inner = chain.from_iterable(
                cast("dict[str, Any]", each).values() if isinstance(each, dict) else each
                for each in level
            )
            level = [each for each in inner if isinstance(each, dict | list)]
        if level:
            raise ValueError(_TOO_DEEP)
    return tree
