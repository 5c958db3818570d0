"""Writes answers that keep exactly the constraints that came out well, and break the others.

No answer is judged here: the task's own checks score the text like anyone else's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, cycle, islice
from typing import cast

from promptcodebook.simulated.world import Demand

__all__ = ["write_constraints"]

_TEXT = (
    "a plain start helps the reader to settle and see the point of this note before it grows and "
    "then each idea finds its own place near the next one so that the whole stays clear and calm "
    "while the details come in at a steady pace and nothing gets lost on the road from the first "
    "line to the end which leaves room for a second look at the choice that was made and for the "
    "small steps that follow from it at home or at work with little effort and less doubt"
)
_PASSAGE = _TEXT.split()
_RICH = {
    "a": "banana", "b": "bubble", "c": "circle", "d": "added", "e": "between", "f": "fluff",
    "g": "giggle", "h": "hitch", "i": "initial", "j": "jujube", "k": "knock", "l": "little",
    "m": "memento", "n": "noun", "o": "cocoon", "p": "puppet", "q": "quick", "r": "mirror",
    "s": "session", "t": "tattle", "u": "tutu", "v": "vivid", "w": "willow", "x": "exit",
    "y": "yearly", "z": "puzzle",
}  # fmt: skip
_FILLED = ("name", "date", "place", "time", "amount", "colour", "topic", "title", "phone", "link")
_ITEMS = ("air", "bread", "calm", "dusk", "earth", "field", "green", "hill", "ink", "jar", "lamp")
_HEADS = ("Start", "Middle", "Close", "Notes", "Terms", "Details", "Hints", "Tools", "Ideas")
_LEAST = 3
"""Filler words of a sentence at the least."""


@dataclass(slots=True)
class _Draft:
    """What is written so far; `broken` and `kept` map a kind to its constraint."""

    kept: Mapping[str, Mapping[str, object]]
    broken: Mapping[str, Mapping[str, object]]
    variant: int
    words: list[str] = field(default_factory=lambda: list[str]())
    """The filler words that may be used."""
    extras: list[str] = field(default_factory=lambda: list[str]())
    """Words the text must hold."""

    def number(self, kind: str, default: int = 0) -> int:
        if kind in self.kept:
            return _n(self.kept[kind])
        if kind in self.broken:
            return _n(self.broken[kind]) + 2
        return default


def write_constraints(demands: Iterable[Demand], met: frozenset[str], variant: int) -> str:
    """A text in which the constraints with the keys in `met` hold."""
    known = {d.key: d.constraint for d in demands}
    kinds = {key: str(c["kind"]) for key, c in known.items()}
    draft = _Draft(
        kept={kinds[k]: c for k, c in known.items() if k in met},
        broken={kinds[k]: c for k, c in known.items() if k not in met},
        variant=variant,
    )
    draft.words = _vocabulary(draft)
    draft.extras = _extras(draft)
    target = _target(draft)
    bare = _compose(draft, 0)
    missing = target - _count(bare)
    text = _compose(draft, missing) if missing > 0 else bare
    return _cased(draft, text)


def _n(constraint: Mapping[str, object]) -> int:
    return int(float(str(constraint.get("n") or 0)))


def _texts(constraint: Mapping[str, object], name: str) -> list[str]:
    return [str(v) for v in cast("Iterable[object]", constraint.get(name) or ())]


def _count(text: str) -> int:
    return sum(1 for token in text.split() if any(c.isalnum() for c in token))


def _vocabulary(draft: _Draft) -> list[str]:
    """Filler without the words and letters that would decide a constraint by accident."""
    taboo = {w.lower() for w in _texts(draft.kept.get("avoid", {}), "words")}
    taboo |= {w.lower() for w in _texts(draft.broken.get("include", {}), "words")}
    letter = str(draft.broken.get("letter_count", {}).get("letter", "")).lower()
    fit = [w for w in _PASSAGE if w not in taboo and not (letter and letter in w)]
    fit = fit or ["so"]
    start = draft.variant % len(fit)
    return fit[start:] + fit[:start]


def _extras(draft: _Draft) -> list[str]:
    """Words, numbers and gaps that single constraints ask for, or that break them."""
    kept, broken = draft.kept, draft.broken
    extras = list(_texts(kept.get("include", {}), "words"))
    extras += _texts(broken.get("avoid", {}), "words")[:1]
    if "letter_count" in kept:
        letter = str(kept["letter_count"]["letter"]).lower()
        rich = _RICH.get(letter, letter)
        extras += [rich] * -(-_n(kept["letter_count"]) // max(1, rich.count(letter)))
    extras += [f"[{_FILLED[k % len(_FILLED)]}]" for k in range(_gaps(draft))]
    if "exact_numbers" in kept:
        extras += [str(k + 2) for k in range(_n(kept["exact_numbers"]))]
    elif "no_digits" in broken:
        extras += ["24", "7"]
    if "no_commas" in broken:
        extras += ["calm,", "then"]
    return extras


def _gaps(draft: _Draft) -> int:
    return _n(draft.kept["placeholders"]) if "placeholders" in draft.kept else 0


def _target(draft: _Draft) -> int:
    """Words of the whole text."""
    kept, broken = draft.kept, draft.broken
    if "max_words" in broken:
        return _n(broken["max_words"]) + 12
    if "min_words" in broken:
        return 0
    low = _n(kept["min_words"]) + 3 if "min_words" in kept else 30
    if "max_words" in kept:
        high = _n(kept["max_words"]) - 2
        return min(high, max(low, min(high, 40)))
    return low


def _compose(draft: _Draft, more: int) -> str:
    """The text, with `more` filler words spread over its sentences."""
    count = _body_sentences(draft)
    words = cycle(draft.words)
    extras = [list[str]() for _ in range(count)]
    for place, extra in enumerate(draft.extras):
        extras[place % count].append(extra)
    body: list[str] = []
    for k in range(count):
        share = more // count + (1 if k < more % count else 0)
        filler = list(islice(words, _LEAST + share))
        body.append(" ".join(chain(filler, extras[k])))
    if "json" in draft.kept:
        return _as_json(draft, body)
    return _as_text(draft, body)


def _body_sentences(draft: _Draft) -> int:
    """Free sentences, without those that end_with and a postscript bring."""
    if "json" in draft.kept:
        return max(1, len(_texts(draft.kept["json"], "keys")))
    wanted = draft.number("sentences")
    if wanted:
        closing = str(draft.kept.get("end_with", {}).get("text", ""))
        own = sum(closing.count(mark) for mark in ".!?")
        return max(1, wanted - own - ("postscript" in draft.kept))
    blocks = _paragraphs(draft)
    return max(2, blocks, _headings(draft))


def _paragraphs(draft: _Draft) -> int:
    wanted = draft.number("paragraphs")
    return max(1, wanted - ("postscript" in draft.kept)) if wanted else 0


def _headings(draft: _Draft) -> int:
    return _n(draft.kept["headings"]) if "headings" in draft.kept else 0


def _as_json(draft: _Draft, body: list[str]) -> str:
    keys = _texts(draft.kept["json"], "keys") or ["answer"]
    return json.dumps(dict(zip(keys, (_sentence(b) for b in body), strict=False)))


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _as_text(draft: _Draft, body: list[str]) -> str:
    said = [_sentence(b) for b in body]
    if "start_with" in draft.kept:
        said[0] = f"{draft.kept['start_with']['text']} {body[0]}."
    blocks = _blocks(draft, said)
    if "title" in draft.kept:
        blocks[0] = f"<<A note>>\n{blocks[0]}"
    if "end_with" in draft.kept:
        joint = "\n" if "\n" in blocks[-1] else " "
        blocks[-1] = f"{blocks[-1]}{joint}{draft.kept['end_with']['text']}"
    if "postscript" in draft.kept:
        blocks.append("P.S. " + " ".join(islice(cycle(draft.words), 4)) + ".")
    text = "\n\n".join(blocks)
    return f'"{text}"' if "quoted" in draft.kept else text


def _blocks(draft: _Draft, said: list[str]) -> list[str]:
    """The sentences in paragraphs, parts under headings, or two versions, with the list if any."""
    lines = _list_lines(draft)
    if "two_versions" in draft.kept:
        half = len(said) // 2
        return ["\n".join((" ".join(said[:half]), "******", " ".join(said[half:])))]
    headings = _headings(draft)
    if headings:
        parts = _dealt(said, headings)
        blocks = [f"## {_HEADS[k % len(_HEADS)]}\n{p}" for k, p in enumerate(parts)]
    else:
        blocks = _dealt(said, max(1, min(len(said), _paragraphs(draft))))
        # A prompt may ask for more paragraphs than sentences; single words then stand alone.
        blocks += ["So"] * (_paragraphs(draft) - len(blocks))
    if lines:
        blocks[-1] = "\n".join((blocks[-1], *lines))
    return blocks


def _dealt(said: list[str], count: int) -> list[str]:
    """Sentences dealt to `count` paragraphs in order."""
    size, rest = divmod(len(said), count)
    found: list[str] = []
    at = 0
    for k in range(count):
        end = at + size + (1 if k < rest else 0)
        found.append(" ".join(said[at:end]))
        at = end
    return found


def _list_lines(draft: _Draft) -> list[str]:
    kept = draft.kept
    if "alphabetical" in kept:
        return [f"- {w}" for w in sorted(_items(draft, _n(kept["alphabetical"])))]
    if "alphabetical" in draft.broken:
        items = sorted(_items(draft, _n(draft.broken["alphabetical"])), reverse=True)
        return [f"- {w}" for w in items]
    if "bullets" in kept or "bullets" in draft.broken:
        return [f"- {w}" for w in _items(draft, draft.number("bullets"))]
    if "numbered" in kept:
        items = _items(draft, _n(kept["numbered"]))
        return [f"{k}. {w}" for k, w in enumerate(items, 1)]
    if "numbered" in draft.broken:
        return [f"({w})" for w in _items(draft, 2)]
    return []


def _items(draft: _Draft, count: int) -> list[str]:
    letter = str(draft.broken.get("letter_count", {}).get("letter", ""))
    fit = [w for w in _ITEMS if not (letter and letter in w)]
    names = [w if k < len(fit) else f"{w} again" for k, w in enumerate(islice(cycle(fit), count))]
    return names


def _cased(draft: _Draft, text: str) -> str:
    if "lowercase" in draft.kept:
        return text.lower()
    return text.upper() if "uppercase" in draft.kept else text
