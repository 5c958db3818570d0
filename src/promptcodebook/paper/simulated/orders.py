"""Skills and orders: what a demand is about, and what a prompt tells its reader to do about it. An
order is a clause that opens with an imperative, reads as language (not as a list of words) and is
about a skill. It is obeyed everywhere, unless it has a condition ("when ...", "as asked")."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from promptcodebook.base.text import shipped_table

_WORD = re.compile(r"[a-z0-9]+")
_TOKEN = re.compile(r"[A-Za-z]{1,8}|[0-9]{1,3}|[^\sA-Za-z0-9]")
_SENTENCE = re.compile(r"(?<=[.!?])[\"'”’)]*\s+|[;\n]+")
_MARK = re.compile(r"^\s*(?:[-*•]\s+|\d{1,2}[.)]\s+|\[\d+\]\s*|#+\s+)")
_ENDINGS = ("ational", "ation", "ions", "ion", "ings", "ing", "edly", "ed", "ly", "es", "s")


def read_table(name: str) -> Mapping[str, Any]:
    """The table in `simulated/NAME.toml`."""
    return shipped_table(__file__, f"{name}.toml")


@cache
def patterns(table: str) -> Mapping[str, re.Pattern[str]]:
    """A table of `wording.toml` as patterns, in the file's order."""
    return {name: re.compile(text) for name, text in read_table("wording")[table].items()}


@lru_cache(maxsize=16384)
def says(name: str, text: str) -> re.Match[str] | None:
    """Where a text says, for the first time, what the pattern among `marks` looks for."""
    return patterns("marks")[name].search(text)


def matches(name: str, text: str) -> list[Any]:
    """All that the pattern among `marks` finds in a text: strings, or tuples of its groups."""
    return patterns("marks")[name].findall(text)


@lru_cache(maxsize=4096)
def meaning(table: str, text: str) -> str:
    """The name of the table's first pattern that the text fits; '' if none does."""
    return next((name for name, found in patterns(table).items() if found.search(text)), "")


@cache
def listed(name: str) -> tuple[str, ...]:
    """A list of words in `wording.toml`, in its order."""
    return tuple(read_table("wording")["words"][name].split())


@cache
def word_list(name: str) -> frozenset[str]:
    return frozenset(listed(name))


def asked_number(text: str, name: str) -> int | None:
    """The number that a text asks for, by the first fitting pattern of `numbers`."""
    words = listed("numbers")
    for wanted in read_table("wording")["numbers"][name]:
        number = rf"(\d{{1,4}}|{'|'.join(words)})"
        match = re.search(wanted.replace("#", number), text, re.IGNORECASE)
        if match is not None:
            word = match[1].lower()
            return words.index(word) if word in words else int(word)
    return None


@lru_cache(maxsize=8192)
def _stem(word: str) -> str:
    """A lower-case word without its ending; alike for `count`, `counts`, `counting`, `counted`."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            if ending == "s" and word.endswith(("ss", "us", "is")):
                break
            word = word[: -len(ending)]
            if ending.startswith(("ing", "ed")) and word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


@lru_cache(maxsize=2048)
def content_stems(text: str) -> frozenset[str]:
    """The stems of the words that say what a text is about."""
    found, common = _WORD.findall(text.lower()), word_list("common")
    return frozenset(_stem(w) for w in found if w not in common and len(w) > 1)


@lru_cache(maxsize=4096)
def sentences(text: str) -> tuple[str, ...]:
    """Directives of a text: pieces between full stops, semicolons and line ends, unmarked."""
    pieces = (_MARK.sub("", p).strip() for p in _SENTENCE.split(text))
    return tuple(p for p in pieces if any(c.isalnum() for c in p))


@lru_cache(maxsize=2048)
def tokens(text: str) -> tuple[str, ...]:
    """Tokens as the simulated model counts them: runs of up to 8 letters or 3 digits, signs."""
    return tuple(_TOKEN.findall(text))


def cut_tokens(text: str, most: int) -> str:
    """The text's first `most` tokens."""
    for number, match in enumerate(_TOKEN.finditer(text), 1):
        if number > most:
            return text[: match.start()].rstrip()
    return text


_CLAUSE = re.compile(r",\s+(?:and|then|and then)\s+|;\s+")
_NOT = re.compile(r"^(?:never|do not|don't|must not|you must not)\s+", re.IGNORECASE)
_GLUED = 0.2  # share of little words that language has and a list of cue words has not
_MOST = 2  # skills that one clause can be an order about; what names more is a list
_NUMBER = re.compile(r"\b(\d{1,4})\b")


@dataclass(frozen=True, slots=True)
class Skill:
    """`when` and `do` word a condition and its order; `order` and `sign` tell them in a text;
    `breaks` = skills it works against; one may forbid something by itself."""

    when: str
    do: tuple[str, ...]
    order: re.Pattern[str]
    sign: re.Pattern[str]
    breaks: frozenset[int]
    forbids: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """Holds where one of `skills` shows in the input; by its words where it names none."""

    skills: frozenset[int]
    stems: frozenset[str]

    def holds(self, shown: frozenset[int], words: frozenset[str]) -> bool:
        if self.skills:
            return bool(self.skills & shown)
        return bool(self.stems) and 2 * len(self.stems & words) >= len(self.stems)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One order. `when` None = always; `against` = not to do it; a `number` in it; its `text`."""

    skill: int
    when: Condition | None
    text: str
    against: bool = False
    number: int | None = None

    @property
    def about(self) -> int | None:
        """The skill that its condition can be worded by; None where there is none."""
        return min(self.when.skills, default=None) if self.when is not None else None

    def applies(self, shown: frozenset[int], words: frozenset[str]) -> bool:
        return self.when is None or self.when.holds(shown, words)


class Skills:
    """A table of skills, addressed by place: which of them a text shows, names and orders."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.names = tuple(table)
        self._place = {name: k for k, name in enumerate(self.names)}
        self._rows = tuple(
            Skill(
                row["when"],
                tuple(row["do"]),
                re.compile(row["order"]),
                re.compile(row["sign"]),
                frozenset(self._place[other] for other in row.get("breaks", ())),
                bool(row.get("forbids", False)),
            )
            for row in table.values()
        )
        stems = [content_stems(row.when) for row in self._rows]
        often = Counter(s for found in stems for s in found)
        self._conditions = [{s: 1.0 / often[s] for s in found} for found in stems]
        # The same texts are read again and again.
        for name in ("shown", "shown_in", "orders", "orders_of_sentence", "_meant", "_ordered"):
            setattr(self, name, lru_cache(maxsize=8192)(getattr(self, name)))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, k: int) -> Skill:
        return self._rows[k]

    def place(self, name: str) -> int | None:
        return self._place.get(name)

    def contradict(self, a: int, b: int) -> bool:
        return b in self._rows[a].breaks or a in self._rows[b].breaks

    def say(self, order: int, condition: int | None, phrase: int = 0) -> str:
        """Advice in words: an order, under the condition of a skill (None = for every input)."""
        row = self._rows[order]
        do = row.do[phrase % len(row.do)]
        if condition is None:
            return f"{do[:1].upper()}{do[1:]}."
        return f"When {self._rows[condition].when}, {do}."

    def shown(self, sentence: str) -> frozenset[int]:
        """Skills whose demand shows in one sentence of an input or a report."""
        text = sentence.lower()
        return frozenset(k for k, row in enumerate(self._rows) if row.sign.search(text))

    def shown_in(self, text: str) -> frozenset[int]:
        return frozenset[int]().union(*(self.shown(s) for s in sentences(text)))

    def orders(self, text: str) -> tuple[Instruction, ...]:
        """The orders in a text, whatever input they are for."""
        return tuple(order for s in sentences(text) for order in self.orders_of_sentence(s))

    def orders_of_sentence(self, sentence: str) -> tuple[Instruction, ...]:
        """The orders of one sentence; what introduces them before a colon is passed over."""
        parts = re.split(r":\s+", sentence)
        texts = (": ".join(parts[start:]).strip(' "') for start in range(len(parts)))
        return next(filter(None, (self._read(text, sentence) for text in texts)), ())

    def _read(self, text: str, sentence: str) -> tuple[Instruction, ...]:
        condition, body = "", text
        if ahead := says("ahead", text):
            condition, body = ahead[1], ahead[2]
        elif behind := says("behind", text):
            condition, body = behind[2], behind[1]
        found: list[Instruction] = []
        for clause in _CLAUSE.split(body):
            for skill, against in self._ordered(clause):
                own: Condition | None = None
                if condition:
                    own = Condition(self._meant(condition), content_stems(condition))
                elif says("defers", clause):
                    own = Condition(frozenset((skill,)), frozenset())
                number = _NUMBER.search(clause)
                found.append(Instruction(skill, own, sentence, against, number and int(number[1])))
        return tuple(found)

    def _meant(self, condition: str) -> frozenset[int]:
        """Skills that a condition speaks of: by its words, else by the signs in it."""
        stems = content_stems(condition)
        scores = [math.fsum(w for s, w in own.items() if s in stems) for own in self._conditions]
        best = max(scores, default=0.0)
        if best >= 1.0:
            return frozenset(k for k, score in enumerate(scores) if score == best)
        return self.shown(condition)

    def _ordered(self, clause: str) -> tuple[tuple[int, bool], ...]:
        """The skills that a clause is an order about, each with whether it forbids it."""
        text = clause.strip().lower()
        lead = says("lead", text)
        text = text[lead.end() :] if lead is not None else text
        bare = _NOT.sub("", text)
        words = re.findall(r"[a-z']+", bare)
        if len(text.split()) < 3 or not words or words[0] not in word_list("imperatives"):
            return ()
        if sum(w in word_list("little") for w in words) < _GLUED * len(words):
            return ()
        skills = [k for k, row in enumerate(self._rows) if row.order.search(bare)]
        if len(skills) > _MOST:
            return ()
        return tuple((k, bare != text and not self._rows[k].forbids) for k in skills)


@cache
def read_skills(name: str) -> Skills:
    """The table in `simulated/NAME.toml`."""
    return Skills(read_table(name))
