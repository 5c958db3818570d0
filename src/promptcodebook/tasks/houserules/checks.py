"""What a house rule asks of a reply: one small pure check per kind, in one table.

Each check says what it found, in a clause that follows "the reply"; `check` puts it into a
sentence. A reply that is blank or says the same thing over and over keeps no rule at all. List
marks and white space around a line do not count, nor do capitals where texts are compared.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from promptcodebook.errors import TaskError, did_you_mean
from promptcodebook.tasks.constraints.checks import CheckResult, sentences, words

__all__ = ["KINDS", "MARKS", "check", "guess_language", "plain", "spoiled"]

Found = tuple[bool, str]


def check(kind: str, reply: str) -> CheckResult:
    """Does the reply keep a rule of this kind? TaskError for a kind that there is not."""
    if kind not in _TABLE:
        raise TaskError(
            f"unknown house rule {kind!r}{did_you_mean(kind, KINDS)}",
            hint=f"known kinds: {', '.join(KINDS)}",
        )
    rule = _TABLE[kind]
    fault = spoiled(reply)
    held, found = (False, fault) if fault else rule.holds(reply)
    verb = "must" if not held else "had to"
    return CheckResult(held, f"The reply {verb} {rule.asked}; it {found}.")


def plain(reply: str) -> CheckResult:
    """Is the reply plain English prose without the marks of any house rule?"""
    found = spoiled(reply)
    if not found and guess_language(reply) != "english":
        found = "is not recognisably English"
    if not found:
        worn = [_TABLE[kind].asked for kind in MARKS if _TABLE[kind].holds(reply)[0]]
        found = f"looks as if it had to {worn[0]}" if worn else ""
    wanted = "No house rule applies, so the reply must be plain English"
    return CheckResult(not found, f"{wanted}; it {found or 'is'}.")


def spoiled(reply: str) -> str:
    """What makes a reply worthless, whatever it was to be, in a clause; '' for a sound one.

    Blank, or a line or sentence makes up at least half of three or more.
    """
    if not words(reply):
        return "is empty"
    for name, pieces in (("line", _lines(reply)), ("sentence", sentences(reply))):
        bare = [_bare(piece) for piece in pieces]
        times = max(Counter(bare).values(), default=0)
        if times >= 3 and 2 * times >= len(bare):
            return f"repeats one {name} {times} times"
    return ""


def guess_language(text: str) -> str:
    """The language whose frequent words are most of the text's; '' when too few tell.

    One of the names in stop_words.toml. At least 3 words, at least 2 and a seventh of them
    frequent ones, and more of them than of any other language.
    """
    found = re.findall(r"[^\W\d_]+", text.lower())
    counts = Counter({name: sum(w in known for w in found) for name, known in _stop_words()})
    (best, most), (_, second) = counts.most_common(2)
    return best if len(found) >= 3 and most >= max(2, len(found) / 7, second + 1) else ""


@cache
def _stop_words() -> tuple[tuple[str, frozenset[str]], ...]:
    file = resources.files("promptcodebook.tasks.houserules").joinpath("stop_words.toml")
    texts = tomllib.loads(file.read_text("utf-8"))
    return tuple((name, frozenset(text.split())) for name, text in texts.items())


_LIST_MARK = re.compile(r"^(?:[-*•]|\(?\d{1,3}[.):]|[>#]+)\s*")


def _lines(text: str) -> list[str]:
    """The lines that hold a word, stripped."""
    return [line.strip() for line in text.splitlines() if words(line)]


def _bare(line: str) -> str:
    """A line without its list mark, case or the white space around it."""
    return _LIST_MARK.sub("", line.strip()).strip().lower()


def _many(count: int, noun: str) -> str:
    return f"has {count} {noun}" if count == 1 else f"has {count} {noun}s"


def _numbered(reply: str) -> Found:
    """Three lines or more, numbered 1, 2, 3 in order."""
    numbers = re.findall(r"^[ \t]*(?:\*\*)?(\d{1,3})[.)](?:\*\*)?[ \t]+\S", reply, re.MULTILINE)
    return numbers[:3] == ["1", "2", "3"], _many(len(numbers), "numbered line")


def _bullets(reply: str) -> Found:
    """Three lines or more that start with "-", "*" or "•"."""
    count = len(re.findall(r"^[ \t]*[-*•][ \t]+\S", reply, re.MULTILINE))
    return count >= 3, _many(count, "bullet line")


def _language(name: str) -> Callable[[str], Found]:
    def holds(reply: str) -> Found:
        guess = guess_language(reply)
        return guess == name, f"seems to be {guess.title()}" if guess else "is hard to place"

    return holds


def _one_sentence(reply: str) -> Found:
    """One sentence of at most 20 words."""
    count, length = len(sentences(reply)), len(words(reply))
    return count == 1 and length <= 20, f"{_many(count, 'sentence')} and {length} words"


def _poem(reply: str) -> Found:
    """Four lines or more, and at least three quarters of all, have 2 to 12 words and no mark."""
    lines = _lines(reply)
    short = [x for x in lines if 2 <= len(words(x)) <= 12 and not _LIST_MARK.match(x)]
    short = [line for line in short if "|" not in line and not line.endswith(":")]
    held = len(short) >= 4 and 4 * len(short) >= 3 * len(lines)
    return held, f"has {len(short)} lines of verse among {len(lines)}"


def _question(reply: str) -> Found:
    """The last character but quotation marks is a question mark."""
    end = reply.rstrip().rstrip("\"'”’*_)")
    return end.endswith("?"), f"ends with {end[-12:]!r}"


def _heading(reply: str) -> Found:
    """The first line is "#" marks, a space, and a word."""
    first = _lines(reply)[0]
    return bool(re.match(r"#{1,6}[ \t]+\S", first)), f"starts with {first[:20]!r}"


def _table(reply: str) -> Found:
    """Three lines or more with two "|" or more."""
    count = sum(line.count("|") >= 2 for line in reply.splitlines())
    return count >= 3, _many(count, "table row")


def _subject(reply: str) -> Found:
    """A line begins with "Subject:" and a word follows."""
    held = re.search(r"^\W*subject\W*:\W*\w", reply, re.IGNORECASE | re.MULTILINE) is not None
    return held, "has a subject line" if held else "has no line that begins with Subject:"


def _story(reply: str) -> Found:
    """ "Once upon a time" occurs."""
    held = "once upon a time" in reply.lower()
    return held, "says so" if held else "does not say so"


def _excited(reply: str) -> Found:
    """At least half of the sentences end with an exclamation mark."""
    ends = [piece.rstrip("\"'”’*_)").endswith("!") for piece in sentences(reply)]
    return 2 * sum(ends) >= len(ends), f"has {sum(ends)} of {len(ends)} sentences with one"


def _hashtags(reply: str) -> Found:
    """A word with # before it."""
    count = len(re.findall(r"(?<!\S)#[A-Za-z]\w+", reply))
    return count >= 1, _many(count, "hashtag")


def _html(reply: str) -> Found:
    """A tag of a page, paragraph, heading or list."""
    tags = re.findall(r"<(?:html|body|div|p|h[1-6]|ul|ol|li)\b[^<>]*>", reply, re.IGNORECASE)
    return bool(tags), _many(len(tags), "HTML tag")


def _questions_and_answers(reply: str) -> Found:
    """A line that begins with "Q:" and one with "A:"."""
    named = [bool(re.search(rf"^\W*{x}\W*\d*\W*:", reply, re.MULTILINE)) for x in ("Q", "A")]
    return all(named), f"has {sum(named)} of the two"


@dataclass(frozen=True, slots=True)
class _Rule:
    """What is asked, after "the reply must", and the check; `mark`: a plain reply lacks it."""

    asked: str
    holds: Callable[[str], Found]
    mark: bool = True


_TABLE: Mapping[str, _Rule] = {
    "numbered": _Rule("be a numbered list of three lines or more", _numbered),
    "bullets": _Rule("be a bulleted list of three lines or more", _bullets),
    "german": _Rule("be German", _language("german")),
    "spanish": _Rule("be Spanish", _language("spanish")),
    "french": _Rule("be French", _language("french")),
    "italian": _Rule("be Italian", _language("italian")),
    "one_sentence": _Rule("be one sentence of at most 20 words", _one_sentence, mark=False),
    "poem": _Rule("be a poem of four short lines or more", _poem),
    "question": _Rule("end with a question", _question),
    "heading": _Rule("begin with a heading line marked #", _heading),
    "table": _Rule("hold a table of three rows or more", _table),
    "subject": _Rule("have a subject line", _subject),
    "story": _Rule('be a tale with "Once upon a time"', _story),
    "excited": _Rule("end half its sentences with an exclamation mark", _excited),
    "hashtags": _Rule("carry a hashtag", _hashtags),
    "html": _Rule("be written in HTML", _html),
    "questions_and_answers": _Rule('have lines "Q:" and "A:"', _questions_and_answers),
}

KINDS: tuple[str, ...] = tuple(_TABLE)

MARKS: tuple[str, ...] = tuple(kind for kind, rule in _TABLE.items() if rule.mark)
"""The kinds whose mark a plain reply must not bear; a short answer is plain enough."""
