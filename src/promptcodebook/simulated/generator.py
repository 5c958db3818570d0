"""The simulated generator: a few sentences made of the chosen instincts' key clauses.

What looks like the input comes first, what the style guide speaks of is kept; past a length, and
at high temperature, clauses are lost.
"""

from __future__ import annotations

import re
from collections import Counter

from promptcodebook.simulated.encoder import overlap, seen_words
from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.words import content_stems, count_words, sentences

__all__ = ["compose"]

_SPAN = re.compile(r"(\d+)\s*(?:to|-|–|—)+\s*(\d+)\s+sentences?")
_CAP = re.compile(r"(?:at most|up to|no more than|within)\s+(\d+)\s+sentences?")
_BULLET = re.compile(r"^\s*[-*•]\s+(.+)$", re.MULTILINE)


def compose(mind: Mind) -> str:
    """The reply to a composition request: the composed prompt's text."""
    asked = mind.asked
    texts = [e.text for e in asked.reading.active()] or _plain_strategies(mind)
    most = _sentences_asked(mind)
    clauses = _chosen(mind, texts, 2 * most)
    if not clauses:
        clauses = ["Answer the request with care."]
    text = " ".join(_packed(clauses, most))
    return asked.shape.fill({"prose": text}, text) if asked.request.schema else text


def _plain_strategies(mind: Mind) -> list[str]:
    """Strategies given without numbers."""
    listed = mind.asked.reading.sections.get("active", "")
    if not listed:
        blocks = mind.asked.reading.blocks
        if blocks:
            return [e.text for e in max(blocks, key=lambda b: len(b.entries)).entries]
        listed = mind.asked.reading.sections.get("codebook", "")
    bullets = _BULLET.findall(listed)
    return bullets or [line for line in listed.split("\n") if line.strip()]


def _sentences_asked(mind: Mind) -> int:
    frame = mind.asked.reading.frame
    span = _SPAN.search(frame)
    if span is not None:
        return max(1, int(span[2]))
    cap = _CAP.search(frame)
    return max(1, int(cap[1])) if cap is not None else mind.settings.generator_sentences


def _chosen(mind: Mind, texts: list[str], most: int) -> list[str]:
    """The clauses to be kept, in the order of the strategies."""
    lexicon = mind.world.lexicon
    words = seen_words(mind, mind.asked.input)
    honoured = lexicon.cued_in(mind.asked.reading.system_frame)
    rows = [(place, s) for place, text in enumerate(texts) for s in sentences(text)]
    spread = Counter(w for _, s in rows for w in content_stems(s))
    ranked: list[tuple[float, int, str]] = []
    firsts: set[int] = set()
    for row, (place, clause) in enumerate(rows):
        value = overlap(words, clause, spread, len(rows))
        if value > 0.0 and honoured & lexicon.cued(clause):
            value += 1.0
        if value == 0.0:
            first = place not in firsts
            stays = mind.settings.generator_idle * (1.0 if first else 0.4)
            if mind.draw.unit("idle", clause) >= stays:
                continue
        firsts.add(place)
        if mind.draw.unit("drop", clause) >= mind.settings.generator_drop * mind.temperature:
            ranked.append((-value, row, clause))
    kept = sorted(ranked)[:most]
    return _within(mind, kept)


def _within(mind: Mind, kept: list[tuple[float, int, str]]) -> list[str]:
    """The best clauses that fit the generator's length, in their own order."""
    room = mind.settings.generator_words
    fit: list[tuple[int, str]] = []
    for _, row, clause in kept:
        room -= count_words(clause)
        if room < 0 and fit:
            break
        fit.append((row, clause))
    return [clause for _, clause in sorted(fit)]


def _packed(clauses: list[str], most: int) -> list[str]:
    """Clauses as at most `most` sentences, later ones joined to earlier ones."""
    bare = [c.rstrip(" .;,") for c in dict.fromkeys(clauses)]
    heads, tails = bare[:most], bare[most:]
    packed: list[str] = []
    for k, head in enumerate(heads):
        said = f"{head[:1].upper()}{head[1:]}"
        if k < len(tails):
            said += f", and {tails[k][:1].lower()}{tails[k][1:]}"
        packed.append(f"{said}.")
    return packed
