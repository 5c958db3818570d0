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
import textwrap
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import Any, Literal, cast

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# ASCII, which most texts are, is read without a pattern: each letter small, all else a blank.
_SPACED = {code: chr(code).lower() if chr(code).isalnum() else " " for code in range(128)}
# What full-width signs are elsewhere, and marks that no answer is wrong for.
_WIDE = {code + 0xFEE0: chr(code) for code in range(0x21, 0x7F)} | dict.fromkeys(
    map(ord, "。、｡･・「」『』《》〈〉【】…—–“”„‘’«»؟،؛۔।॥။၊។"), " "
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")
_FENCED = re.compile(r"\A(```|~~~)[\w-]*[ \t]*\n(.*?)\n?\1\Z", re.DOTALL)
# What is not closed ends with the text: else each opening would be looked for to its end.
_MARKUP = re.compile(
    r"<!--(?:.*?-->|.*)|<(script|style)\b(?:.*?</\1\s*>|.*)|<[^>]*>?", re.DOTALL | re.IGNORECASE
)
_PIECES = re.compile(r"[\w'’-]+\s*|[^\w\s]\s*|\s+")
# Beyond this comparing two texts would take seconds; characters at the end that may be one.
_MOST_PIECES, _FAREWELL_AT_MOST = 1200, 800


@cache
def shipped_table(module: str, name: str) -> dict[str, Any]:
    """What a .toml file of this package holds, `name` beside the file of a `module`; read once."""
    return tomllib.loads(Path(module).with_name(name).read_text("utf-8"))


def _forms() -> Mapping[str, Any]:
    return shipped_table(__file__, "text.toml")


@cache
def _patterns(name: str) -> Sequence[re.Pattern[str]]:
    """Those of text.toml: one, or a list of several."""
    every = {**_forms(), **_forms()["no_text"]}

    def whole(pattern: str) -> str:
        return re.sub(r"\{([a-z_]+)\}", lambda named: whole(every[named[1]]), pattern)

    listed = every[name] if isinstance(every[name], list) else [every[name]]
    return [re.compile(whole(each), re.IGNORECASE | re.DOTALL) for each in listed]


@cache
def pattern_of(name: str) -> str:
    """A pattern of text.toml, with those that it names."""
    return _patterns(name)[0].pattern


def words_of(text: str) -> list[str]:
    """Lower-cased words without punctuation, composed, and of one width. Each letter is one in a
    script that puts no blanks between words (`word` of text.toml)."""
    if text.isascii():
        return text.translate(_SPACED).split()
    (word,) = _patterns("word")
    words = word.findall(text.lower())
    if unicodedata.is_normalized("NFKC", text):
        return words
    return [unicodedata.normalize("NFKC", each) for each in words]


def word_spans(text: str) -> list[tuple[str, int, int]]:
    """The same words, each with its start and end in the text."""
    (word,) = _patterns("word")
    found = word.finditer(text)
    return [(unicodedata.normalize("NFKC", m.group().lower()), *m.span()) for m in found]


def long_words(text: str, least: int) -> set[str]:
    """The words that say something: of `least` letters or more, and pairs of letters in scripts
    whose letters say much (Chinese, Japanese, Korean, Thai)."""
    long = {word for word in words_of(text) if len(word) >= least}
    if not text.isascii():
        (dense,) = _patterns("dense")
        for run in dense.findall(text):
            long |= {run[at : at + 2] for at in range(max(1, len(run) - 1))}
    return long


# Fifths of a word that a text's word is worth: one of a single letter says less than one of many.
_WORD_WORTH = 5


@lru_cache(maxsize=2**14)
def _worth(word: str) -> int:
    (han,), (unspaced,) = _patterns("han"), _patterns("unspaced")
    return 4 if han.match(word) else 2 if unspaced.match(word) else _WORD_WORTH


def count_words(text: str) -> int:
    """How long a text is: the words between its blanks, or what its letters are worth in a script
    without blanks (5 of Chinese are 4 words, 5 of Thai 2)."""
    if text.isascii() or not _patterns("unspaced")[0].search(text):
        return len(text.split())
    worth = sum(map(_worth, words_of(text)))
    return max(min(worth, 1), round(worth / _WORD_WORTH))


def runs_of(words: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    """Each run of words that is worth `size` words, by its start; where it has as many letters of
    scripts without blanks, it is longer."""
    if "".join(words).isascii():
        return [words[at : at + size] for at in range(len(words) - size + 1)]
    runs, end, worth = list[tuple[str, ...]](), 0, 0
    for start, word in enumerate(words):
        while worth < size * _WORD_WORTH and end < len(words):
            worth += _worth(words[end])
            end += 1
        if worth >= size * _WORD_WORTH:
            runs.append(words[start:end])
        worth -= _worth(word)
    return runs


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


def answer_tokens(text: str) -> list[str]:
    """The words of `answer_words`, in every script: a letter alone where there are no blanks, and
    without full-width and other marks."""
    (unspaced,) = _patterns("unspaced")
    plain = answer_words(text.translate(_WIDE))
    return unspaced.sub(r" \g<0> ", plain).split()


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
    return match[2].strip() if match else body


def strip_tags(text: str) -> str:
    """The words of a page of HTML or XML; any other text as it is."""
    bare = _MARKUP.sub(" ", text) if text.lstrip().startswith("<") else ""
    return " ".join(html.unescape(bare).split()) if bare else text


def sentences_of(text: str) -> list[str]:
    """The sentences of a text; a line or an item of a list is one at least, and what only leads to
    a list ("Rules:") is left out. What leans on the one before ("It must ...") stays with that."""
    lines = map(_sentences, text.splitlines())
    return [sentence for line in lines for sentence in line if not sentence.endswith(_LEADS)]


_LEADS = (":", "：")


def _sentences(line: str) -> list[str]:
    """Those of a line, without the mark of a list."""
    (opened,), (cut,), (leaning,) = map(_patterns, ("opened", "cut", "leaning"))
    whole, cuts = opened.sub("", line).strip(), [0]
    if not words_of(whole):
        return []
    for end in (match.end() for match in cut.finditer(whole)):
        if not (_is_open(whole[cuts[-1] : end]) or leaning.match(whole, end)):
            cuts.append(end)
    sentences = (whole[start:end].strip() for start, end in pairwise((*cuts, len(whole))))
    return [sentence for sentence in sentences if sentence]


_FENCE = re.compile(r"\s*(```+|~~~+)")
_TABLE = re.compile(r"\s*\||[^|\n]+\|.*\n[\s|:]*-[-\s|:]*(?:\n|\Z)")
_TAG = re.compile(r"[<\[]([^\W\d][\w.:-]*)(?:\s[^<>\[\]]*)?(?<!/)[>\]]")
_LETTERED = re.compile(r"\s*(?:\w{1,3}[.)]|\d{1,2}(?:\.\d{1,2})+\.?)\s")
_NUMBERED = re.compile(r"\s*\(?(\d{1,2})[.)]\s")


def parts_of(text: str) -> list[str]:
    """A prompt in parts that each make sense alone: its sentences, and whole a fenced block, a
    table, a tagged block and an item with what lies below it. What leads to a block ("Answer so:")
    stays with it; a line that is wrapped is one with the next."""
    (opened,), lines, parts, at = _patterns("opened"), text.splitlines(), list[str](), 0
    while at < len(lines):
        start, at = at, _block_end(lines, at)
        if at > start:
            lead = f"{parts.pop()}\n" if parts and parts[-1].endswith(_LEADS) else ""
            parts.append(lead + textwrap.dedent("\n".join(lines[start:at])).strip())
            continue
        at = _item_end(lines, start)
        inner = range(start + 1, at)
        if any(_is_item(lines[n]) or _block_end(lines, n) > n for n in inner):
            parts.append("\n".join((opened.sub("", lines[start]), *lines[start + 1 : at])).strip())
        else:
            parts += _sentences(" ".join(line.strip() for line in lines[start:at]))
    return [part for part in parts if not part.endswith(_LEADS)]


def _is_item(line: str) -> bool:
    return bool(_patterns("opened")[0].match(line) or _LETTERED.match(line))


def _block_end(lines: Sequence[str], at: int) -> int:
    """The line behind the fenced block, table or tagged block that begins here; or `at`."""
    line, last = lines[at], range(at + 1, len(lines))
    if fence := _FENCE.match(line):
        bare = ((n, lines[n].strip()) for n in last)
        ends = (n + 1 for n, each in bare if each.startswith(fence[1]) and not each.strip("`~"))
        return next(ends, at)
    if _TABLE.match("\n".join(lines[at : at + 2])):
        end = next((n for n in last if "|" not in lines[n]), len(lines))
        return end if end > at + 1 else at
    for tag in _TAG.finditer(line):
        rest, depth = "\n".join(lines[at:])[tag.start() :], 0
        same = rf"(?i)[<\[](/?){re.escape(tag[1])}(?:\s[^<>\[\]]*)?(?<!/)[>\]]"
        for each in re.finditer(same, rest):
            depth += -1 if each[1] else 1
            if depth == 0:
                end = at + rest.count("\n", 0, each.end()) + 1
                if end > at + 1 or line.lstrip().startswith("<"):
                    return end
                break
    return _open_end(lines, at)


def _open_end(lines: Sequence[str], at: int) -> int:
    """The line behind a block of braces, or what is set deeper below a lead, that begins here; or
    `at`."""
    if (opening := lines[at].rstrip()[-1:]) and opening in "{[":
        depth, closing = 0, {"{": "}", "[": "]"}[opening]
        for n in range(at, len(lines)):
            depth += lines[n].count(opening) - lines[n].count(closing)
            if depth <= 0:
                return n + 1
    before = "".join(lines[:at]).rstrip()
    if before.endswith(_LEADS) and (margin := _depth(lines[at])) > 1 and not _is_item(lines[at]):
        deep = takewhile(lambda n: not lines[n].strip() or _depth(lines[n]) >= margin,
                         range(at + 1, len(lines)))  # fmt: skip
        return max((n + 1 for n in deep if lines[n].strip()), default=at + 1)
    return at


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _item_end(lines: Sequence[str], at: int) -> int:
    """The line behind what begins here: an item with all that is set deeper, or a sentence whose
    next line begins with a small letter."""
    line, end = lines[at], at + 1
    if item := _is_item(line):
        number = _NUMBERED.match(line)
        below = re.compile(rf"\s*{number[1]}\.\d" if number else r"\b\B")  # 1.1 below 1.

        def is_deeper(n: int) -> bool:
            each = lines[n]
            return not each.strip() or _depth(each) > _depth(line) or bool(below.match(each))

        deeper = takewhile(is_deeper, range(at + 1, len(lines)))
        end = max((n + 1 for n in deeper if lines[n].strip()), default=end)
    if not (item or line.lstrip()[:1].isupper()):  # one small line after the other is a list
        return end
    while end < len(lines) and lines[end].lstrip()[:1].islower() and not _is_item(lines[end]):
        if lines[end - 1].rstrip().endswith((".", "!", "?", *_LEADS)):
            break
        end += 1
    return end


def cut_at_sentence(text: str, words: int) -> str:
    """The longest beginning of at most `words` words that ends with a sentence or an item."""
    (cut,), (item,) = _patterns("cut"), _patterns("item")
    ends = {m.end() for m in cut.finditer(text)} | {m.start() for m in item.finditer(text)}
    for end in sorted(ends, reverse=True):
        start = text[:end]
        whole = not (start.rstrip().endswith(_LEADS) or _is_open(start))
        if whole and count_words(start) <= words:
            return start.rstrip()
    return ""


def _is_open(text: str) -> bool:
    """Whether a quotation is not closed in it, or it ends with an abbreviation."""
    (abbreviated,) = _patterns("abbreviated")
    quoted = text.count('"') % 2 == 1 or text.count("“") > text.count("”") + text.count("„")
    paired = any(text.count(one) > text.count(two) for one, two in ("「」", "『』", "（）", "｢｣"))
    return quoted or paired or abbreviated.search(text) is not None


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
    return strip_fence(body) if body.count(body[:3]) == 2 else body


def _text_in_json(body: str) -> str:
    """The one text in an object or a list of JSON; '' where there is none, or several."""
    tree: Any = None
    if body[:1] in ("{", "["):
        with suppress(ValueError):
            tree = parse_json(body)
    (aside,) = _patterns("aside")
    if isinstance(tree, list):
        listed = cast("list[Any]", tree)
        only: Any = listed[0] if len(listed) == 1 else None
        tree = cast("Any", only) if isinstance(only, dict) else {"": only}
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
