"""What the executor says: the gold answer, a plausible wrong one, or a text that keeps some
constraints and breaks the others, as its outcome decided.

The task's own checks score the text like any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from string import ascii_lowercase
from typing import cast

from promptcodebook.randomness import keyed_int
from promptcodebook.simulated.orders import listed
from promptcodebook.simulated.world import Demand, Problem

_OPENING = "Working from what is given, a few steps settle it."
_OTHERS = ("not stated", "none of these", "the other one", "unknown", "both", "no")
_LEAST = 3  # filler words of a sentence at the least


def write_answer(problem: Problem, right: bool, variant: int) -> str:
    """The gold in the form that the question asks for, or a wrong one; without a gold a pertinent
    or a vague text."""
    gold, text = problem.gold, problem.input
    if gold is None:
        words = " ".join(text.split()[:12])
        return f"On the matter of {words}: settled as asked." if right else f"It depends: {words}."
    said = gold if right else wrong_answer(gold, text, variant)
    if re.fullmatch(r"[A-Ea-e]", gold) and "five times" in text:
        return f"{_OPENING}\n\n{said.upper() * 5}"
    if "boxed" in text or re.fullmatch(r"\d{1,3}", gold):
        return f"{_OPENING}\n\nThe answer is \\boxed{{{said}}}."
    return f"Answer: {said}" if gold.count(",") > 1 else said


def wrong_answer(gold: str, text: str, variant: int) -> str:
    """Something of the gold's form that is not the gold."""
    start = keyed_int("wrong", text, variant % 3)
    if re.fullmatch(r"[A-Ea-e]", gold):
        return "ABCDE".replace(gold.upper(), "")[start % 4]
    parts = [p.strip() for p in gold.split(",")]
    if len(parts) > 2:
        return ",".join(parts[1:] + parts[:1])
    number = re.search(r"[-+]?\d+(?:[.,]\d+)*", gold)
    if number is not None:
        value = int(re.sub(r"\D", "", number[0]))
        near = [v for v in (value + 1, value - 1, value * 2, value + 10) if 0 <= v != value]
        near = [v for v in near if v <= 999 or value > 999]
        return gold[: number.start()] + str(near[start % len(near)]) + gold[number.end() :]
    labels = {"SUPPORTED": "NOT_SUPPORTED", "NOT_SUPPORTED": "SUPPORTED"}
    if gold.strip().upper() in labels:
        return labels[gold.strip().upper()]
    words = [w for w in re.findall(r"\b[A-Z][a-z]{2,}\b", text) if w.lower() not in gold.lower()]
    others = words or [o for o in _OTHERS if o not in gold.lower()]
    return others[start % len(others)]


def outside(request: str) -> str:
    """An outside model's answer: it knows nothing but the request, and takes up its words."""
    return (
        "Here is a general way to go about it: say what it is for, go through it point by point "
        f"and close politely. Taking up what was asked: {' '.join(request.split()[:400])}"
    )


def write_constraints(demands: Iterable[Demand], met: frozenset[str], variant: int) -> str:
    """A text in which the constraints with the keys in `met` hold."""
    kept, broken = dict[str, Mapping[str, object]](), dict[str, Mapping[str, object]]()
    for demand in demands:
        (kept if demand.key in met else broken)[str(demand.constraint["kind"])] = demand.constraint
    draft = _Draft(kept, broken, variant)
    bare = _compose(draft, 0)
    missing = _target(draft) - sum(any(c.isalnum() for c in token) for token in bare.split())
    text = _compose(draft, missing) if missing > 0 else bare
    if "lowercase" in kept:
        return text.lower()
    return text.upper() if "uppercase" in kept else text


@dataclass(frozen=True, slots=True)
class _Draft:
    """What decides a text; `kept` and `broken` map a kind to its constraint."""

    kept: Mapping[str, Mapping[str, object]]
    broken: Mapping[str, Mapping[str, object]]
    variant: int

    def asked(self, kind: str) -> int:
        """The number of a constraint that is kept; 0 = none is."""
        return _n(self.kept.get(kind, {}))

    def number(self, kind: str) -> int:
        """The number to write: as asked, or two more to break it; 0 = none is asked."""
        broken = kind in self.broken and kind not in self.kept
        return _n(self.broken[kind]) + 2 if broken else self.asked(kind)

    def filler(self) -> Sequence[str]:
        """Words without those and the letter that would decide a constraint by accident."""
        taboo = {w.lower() for w in _texts(self.kept.get("avoid", {}), "words")}
        taboo |= {w.lower() for w in _texts(self.broken.get("include", {}), "words")}
        fit = [w for w in self.plain("passage") if w not in taboo] or ["so"]
        start = self.variant % len(fit)
        return fit[start:] + fit[:start]

    def plain(self, name: str) -> Sequence[str]:
        """A list of words without the letter whose number is to be missed."""
        letter = str(self.broken.get("letter_count", {}).get("letter", "")).lower()
        return [w for w in listed(name) if not (letter and letter in w)]

    def extras(self) -> Sequence[str]:
        """Words, numbers and gaps that single constraints ask for, or that break them."""
        extras = list(_texts(self.kept.get("include", {}), "words"))
        extras += _texts(self.broken.get("avoid", {}), "words")[:1]
        if "letter_count" in self.kept:
            letter = str(self.kept["letter_count"]["letter"]).lower()
            rich = dict(zip(ascii_lowercase, listed("rich"), strict=True)).get(letter, letter)
            extras += [rich] * -(-self.asked("letter_count") // max(1, rich.count(letter)))
        gaps = islice(cycle(listed("gaps")), self.asked("placeholders"))
        extras += [f"[{gap}]" for gap in gaps]
        if "exact_numbers" in self.kept:
            extras += [str(k + 2) for k in range(self.asked("exact_numbers"))]
        elif "no_digits" in self.broken:
            extras += ["24", "7"]
        return [*extras, "calm,", "then"] if "no_commas" in self.broken else extras


def _n(constraint: Mapping[str, object]) -> int:
    return int(float(str(constraint.get("n") or 0)))


def _texts(constraint: Mapping[str, object], name: str) -> list[str]:
    return [str(v) for v in cast("Iterable[object]", constraint.get(name) or ())]


def _target(draft: _Draft) -> int:
    """Words of the whole text."""
    if "max_words" in draft.broken:
        return _n(draft.broken["max_words"]) + 12
    if "min_words" in draft.broken:
        return 0
    low = draft.asked("min_words") + 3 if "min_words" in draft.kept else 30
    if "max_words" in draft.kept:
        high = draft.asked("max_words") - 2
        return min(high, max(low, min(high, 40)))
    return low


def _compose(draft: _Draft, more: int) -> str:
    """The text, with `more` filler words spread over its sentences."""
    count, extras = _body_sentences(draft), draft.extras()
    words = cycle(draft.filler())
    body: list[str] = []
    for k in range(count):
        filler = islice(words, _LEAST + more // count + (k < more % count))
        body.append(" ".join((*filler, *extras[k::count])))
    if "json" not in draft.kept:
        return _as_text(draft, body)
    keys = _texts(draft.kept["json"], "keys") or ["answer"]
    return json.dumps(dict(zip(keys, map(_sentence, body), strict=False)))


def _body_sentences(draft: _Draft) -> int:
    """Free sentences, without those that end_with and a postscript bring."""
    if "json" in draft.kept:
        return max(1, len(_texts(draft.kept["json"], "keys")))
    wanted = draft.number("sentences")
    if wanted:
        closing = str(draft.kept.get("end_with", {}).get("text", ""))
        own = sum(closing.count(mark) for mark in ".!?")
        return max(1, wanted - own - ("postscript" in draft.kept))
    return max(2, _paragraphs(draft), draft.asked("headings"))


def _paragraphs(draft: _Draft) -> int:
    wanted = draft.number("paragraphs")
    return max(1, wanted - ("postscript" in draft.kept)) if wanted else 0


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
        blocks.append("P.S. " + " ".join(islice(cycle(draft.filler()), 4)) + ".")
    text = "\n\n".join(blocks)
    return f'"{text}"' if "quoted" in draft.kept else text


def _blocks(draft: _Draft, said: list[str]) -> list[str]:
    """The sentences in paragraphs, parts under headings, or two versions, with the list if any."""
    if "two_versions" in draft.kept:
        half = len(said) // 2
        return ["\n".join((" ".join(said[:half]), "******", " ".join(said[half:])))]
    headings = draft.asked("headings")
    if headings:
        heads = cycle(listed("heads"))
        blocks = [f"## {h}\n{p}" for h, p in zip(heads, _dealt(said, headings), strict=False)]
    else:
        blocks = _dealt(said, max(1, min(len(said), _paragraphs(draft))))
        # A prompt may ask for more paragraphs than sentences; single words then stand alone.
        blocks += ["So"] * (_paragraphs(draft) - len(blocks))
    blocks[-1] = "\n".join((blocks[-1], *_list_lines(draft)))
    return blocks


def _dealt(said: list[str], count: int) -> list[str]:
    """Sentences dealt to `count` paragraphs in order."""
    size, rest = divmod(len(said), count)
    ends = [k * size + min(k, rest) for k in range(count + 1)]
    return [" ".join(said[start:end]) for start, end in pairwise(ends)]


def _list_lines(draft: _Draft) -> list[str]:
    kept, broken = draft.kept, draft.broken
    if "alphabetical" in kept or "alphabetical" in broken:
        count = _n(kept.get("alphabetical") or broken["alphabetical"])
        items = sorted(_items(draft, count), reverse="alphabetical" not in kept)
        return [f"- {w}" for w in items]
    if "bullets" in kept or "bullets" in broken:
        return [f"- {w}" for w in _items(draft, draft.number("bullets"))]
    if "numbered" in kept:
        items = _items(draft, draft.asked("numbered"))
        return [f"{k}. {w}" for k, w in enumerate(items, 1)]
    return [f"({w})" for w in _items(draft, 2)] if "numbered" in broken else []


def _items(draft: _Draft, count: int) -> list[str]:
    fit = draft.plain("items")
    return [w if k < len(fit) else f"{w} again" for k, w in enumerate(islice(cycle(fit), count))]
