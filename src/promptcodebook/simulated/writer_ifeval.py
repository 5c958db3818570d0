"""Writes responses that keep exactly the IFEval constraints whose demands are met.

An example with a test constraint of IFBench is served by that constraint's own writer. No response
is judged here: the task's checks score it like anyone else's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import cast

from promptcodebook.simulated.problem import Problem
from promptcodebook.simulated.writer_ifbench import TEST_WRITERS
from promptcodebook.simulated.writer_languages import LANGUAGES

__all__ = ["IFEVAL", "UNKEPT", "write_ifbench"]

_PASSAGE = [
    "a",
    "plain",
    "start",
    "helps",
    "the",
    "reader",
    "to",
    "see",
    "the",
    "point",
    "of",
    "this",
    "note",
    "before",
    "it",
    "grows",
    "and",
    "then",
    "each",
    "idea",
    "finds",
    "its",
    "own",
    "place",
    "near",
    "the",
    "next",
    "one",
    "so",
    "that",
    "the",
    "whole",
    "stays",
    "clear",
    "and",
    "calm",
    "while",
    "the",
    "details",
    "come",
    "in",
    "at",
    "a",
    "steady",
    "pace",
    "and",
    "nothing",
    "gets",
    "lost",
    "on",
    "the",
    "road",
    "from",
    "the",
    "first",
    "line",
    "to",
    "the",
    "end",
    "which",
    "leaves",
    "room",
    "for",
    "a",
    "second",
    "look",
    "at",
    "the",
    "choice",
    "that",
    "was",
    "made",
]
UNKEPT = (
    "A plain start, and a plain start again and again and again.\n\n"
    'Now it says * or so they say: "it is"'
)
"""A response that was written without a thought for constraints."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """The constraints by id: those to be kept and those to be broken."""

    kept: Mapping[str, Mapping[str, object]]
    broken: Mapping[str, Mapping[str, object]]
    words: list[str] = field(default_factory=lambda: list[str]())

    def amount(self, one: str, name: str, relation: str = "relation", plain: int = 0) -> int:
        """How many of something to write: as asked, or just not; `plain` where nobody asks."""
        given = self.kept.get(one) or self.broken.get(one)
        if given is None:
            return plain
        asked = _n(given, name)
        less = str(given.get(relation) or "at least") == "less than"
        if one in self.kept:
            return max(0, min(plain, asked - 1)) if less else max(plain, asked)
        return max(plain, asked + 1) if less else max(0, asked - 1)


def write_ifbench(problem: Problem, met: frozenset[str], variant: int) -> str:
    """A response in which the constraints with the keys in `met` hold."""
    known = {d.key: d.constraint for d in problem.demands if d.constraint is not None}
    tests = [k for k, c in known.items() if str(c["kind"]) not in IFEVAL]
    if tests:
        kept = [k for k in tests if k in met and str(known[k]["kind"]) in TEST_WRITERS]
        return TEST_WRITERS[str(known[kept[0]]["kind"])](known[kept[0]]) if kept else UNKEPT
    kept = {str(c["kind"]): c for k, c in known.items() if k in met}
    broken = {str(c["kind"]): c for k, c in known.items() if k not in met}
    draft = _Draft(kept, broken)
    draft.words.extend(_vocabulary(draft, variant))
    return _dressed(draft, _laid_out(draft, _sentences(draft)))


def _n(given: Mapping[str, object], name: str) -> int:
    return int(float(str(given.get(name) or 0)))


def _list(given: Mapping[str, object], name: str) -> list[str]:
    return [str(v) for v in cast("Iterable[object]", given.get(name) or ())]


def _vocabulary(draft: _Draft, variant: int) -> list[str]:
    """Filler without the words and letters that would decide a constraint by accident."""
    taboo = {
        w.lower() for w in _list(draft.kept.get("keywords:forbidden_words", {}), "forbidden_words")
    }
    taboo |= {w.lower() for w in _list(draft.broken.get("keywords:existence", {}), "keywords")}
    letters = (
        draft.kept.get("keywords:letter_frequency"),
        draft.broken.get("keywords:letter_frequency"),
    )
    letter = str((letters[0] or letters[1] or {}).get("letter") or "").lower()
    if "language:response_language" in draft.kept:
        name = str(draft.kept["language:response_language"].get("language"))
        return LANGUAGES.get(name, "").split() or ["so"]
    fit = [w for w in _PASSAGE if w not in taboo and not (letter and letter in w)] or ["so"]
    start = variant % len(fit)
    return fit[start:] + fit[:start]


def _extras(draft: _Draft) -> list[str]:
    """Words that single constraints want, or that break them."""
    kept, broken = draft.kept, draft.broken
    extras = _list(kept.get("keywords:existence", {}), "keywords")
    extras += _list(broken.get("keywords:forbidden_words", {}), "forbidden_words")[:1]
    for one, word, name in (
        ("keywords:frequency", "keyword", "frequency"),
        ("keywords:letter_frequency", "letter", "let_frequency"),
    ):
        given = kept.get(one) or broken.get(one)
        if given is not None:
            relation = "let_relation" if word == "letter" else "relation"
            extras += [str(given.get(word))] * draft.amount(one, name, relation)
    count = draft.amount(
        "change_case:capital_word_frequency", "capital_frequency", "capital_relation"
    )
    extras += ["NOW"] * count
    gaps = draft.amount("detectable_content:number_placeholders", "num_placeholders")
    extras += [f"[gap {k}]" for k in range(gaps)]
    marks = draft.amount("detectable_format:number_highlighted_sections", "num_highlights")
    extras += [f"*part {k}*" for k in range(marks)]
    if "punctuation:no_comma" in broken:
        extras.append("yes, well")
    return extras


def _sentences(draft: _Draft) -> list[str]:
    """The body's sentences: as many, and as long, as asked."""
    count = max(1, draft.amount("length_constraints:number_sentences", "num_sentences", plain=3))
    asked = draft.amount("length_constraints:number_words", "num_words", plain=24)
    extras = _extras(draft)
    closing = draft.kept.get("startend:end_checker")
    if closing is not None and "length_constraints:number_sentences" in draft.kept:
        count = max(1, count - 1)
    fill = max(count, asked - sum(len(e.split()) for e in extras))
    words = list(islice(cycle(draft.words), fill))
    found: list[str] = []
    for k in range(count):
        own = words[k * fill // count : (k + 1) * fill // count] + extras[k::count]
        text = " ".join(own)
        found.append(f"{text[:1].upper()}{text[1:]}.")
    return found


def _laid_out(draft: _Draft, said: list[str]) -> str:
    """The sentences in paragraphs, sections, two versions, or JSON, with the list if any."""
    kept = draft.kept
    if "detectable_format:json_format" in kept:
        return json.dumps({"text": " ".join(said)}, ensure_ascii=False)
    if "combination:two_responses" in kept:
        half = max(1, len(said) // 2)
        return f"{' '.join(said[:half])}\n******\n{' '.join(said[half:]) or 'So.'}"
    parts, joint = _parts(draft, said)
    bullets = draft.amount("detectable_format:number_bullet_lists", "num_bullets")
    if bullets or "detectable_format:number_bullet_lists" in draft.broken:
        wrong = "detectable_format:number_bullet_lists" in draft.broken
        lines = [f"- {draft.words[k % len(draft.words)]}" for k in range(bullets + 2 * wrong)]
        parts[-1] = "\n".join((parts[-1], *lines))
    return joint.join(parts)


def _parts(draft: _Draft, said: list[str]) -> tuple[list[str], str]:
    kept, broken = draft.kept, draft.broken
    one = "length_constraints:number_paragraphs"
    if one in kept or one in broken:
        count = _n(kept.get(one) or broken[one], "num_paragraphs") + (one in broken)
        return _dealt(said, count), "\n\n***\n\n"
    one = "length_constraints:nth_paragraph_first_word"
    if one in kept or one in broken:
        given = kept.get(one) or broken[one]
        parts = _dealt(said, _n(given, "num_paragraphs"))
        place = min(len(parts), max(1, _n(given, "nth_paragraph"))) - 1
        opening = str(given.get("first_word")) if one in kept else "Other"
        parts[place] = f"{opening} {parts[place]}"
        return parts, "\n\n"
    one = "detectable_format:multiple_sections"
    if one in kept:
        label = str(kept[one].get("section_spliter"))
        parts = _dealt(said, _n(kept[one], "num_sections"))
        return [f"{label} {k}\n{p}" for k, p in enumerate(parts, 1)], "\n"
    return [" ".join(said)], "\n"


def _dealt(said: list[str], count: int) -> list[str]:
    """The sentences in `count` pieces; where they are too few, single words stand alone."""
    count = max(1, count)
    size = max(1, -(-len(said) // count))
    parts = [" ".join(said[k : k + size]) for k in range(0, len(said), size)]
    return [*parts, *["So"] * (count - len(parts))]


def _dressed(draft: _Draft, text: str) -> str:
    """What stands before, after and around the text, and its case."""
    kept = draft.kept
    if "detectable_format:title" in kept:
        text = f"<<a note>>\n{text}"
    if "detectable_format:constrained_response" in kept:
        text = f"My answer is yes.\n{text}"
    if "combination:repeat_prompt" in kept:
        text = f"{str(kept['combination:repeat_prompt'].get('prompt_to_repeat')).strip()}\n{text}"
    if "detectable_content:postscript" in kept:
        marker = str(kept["detectable_content:postscript"].get("postscript_marker"))
        text = f"{text}\n{marker} {' '.join(draft.words[:3])}"
    if "startend:end_checker" in kept:
        text = f"{text}\n{str(kept['startend:end_checker'].get('end_phrase')).strip()}"
    if "change_case:english_capital" in kept:
        text = text.upper()
    if "change_case:english_lowercase" in kept:
        text = text.lower()
    return f'"{text}"' if "startend:quotation" in kept else text


IFEVAL = frozenset(
    (
        "keywords:existence", "keywords:frequency", "keywords:forbidden_words",
        "keywords:letter_frequency", "language:response_language",
        "length_constraints:number_sentences", "length_constraints:number_words",
        "length_constraints:number_paragraphs", "length_constraints:nth_paragraph_first_word",
        "detectable_content:number_placeholders", "detectable_content:postscript",
        "detectable_format:number_bullet_lists", "detectable_format:constrained_response",
        "detectable_format:number_highlighted_sections", "detectable_format:multiple_sections",
        "detectable_format:json_format", "detectable_format:title", "combination:two_responses",
        "combination:repeat_prompt", "startend:end_checker", "startend:quotation",
        "change_case:capital_word_frequency", "change_case:english_capital",
        "change_case:english_lowercase", "punctuation:no_comma",
    )
)  # fmt: skip
