"""The simulated generator: composes the chosen instincts into a short prompt for one input.

A conditional order whose condition holds is said plainly; one whose condition does not hold mostly
falls away; an unconditional order stays. Orders that its own style guide gives stand in every
prompt.
"""

from __future__ import annotations

import re

from promptcodebook.simulated.encoder import seen_words
from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.orders import Order
from promptcodebook.simulated.words import content_stems, sentences
from promptcodebook.simulated.world import say

__all__ = ["compose"]

_SPAN = re.compile(r"(\d+)\s*(?:to|-|–|—)+\s*(\d+)\s+sentences?")
_CAP = re.compile(r"(?:at most|up to|no more than|within)\s+(\d+)\s+sentences?")
_BULLET = re.compile(r"^\s*[-*•]\s+(.+)$", re.MULTILINE)
_DEFAULT = 4
"""Sentences where the request names no number."""


def compose(mind: Mind) -> str:
    """The reply to a composition request: the composed prompt's text."""
    asked = mind.asked
    texts = [e.text for e in asked.reading.active()] or _plain_strategies(mind)
    said = [clause for text in texts for clause in _rendered(mind, text)]
    for order in mind.noted(asked.request.system, "keep this in the prompt"):
        said.append(say(mind.world.skills, order.skill, None))
    text = " ".join(_packed(list(dict.fromkeys(said)), _sentences_asked(mind)))
    text = text or "Answer the request with care."
    return asked.shape.fill({"prose": text}, text) if asked.request.schema else text


def _plain_strategies(mind: Mind) -> list[str]:
    """Strategies given without numbers."""
    listed = mind.section("active")
    if not listed:
        blocks = mind.asked.reading.blocks
        if blocks:
            return [e.text for e in max(blocks, key=lambda b: len(b.entries)).entries]
        listed = mind.section("codebook")
    bullets = _BULLET.findall(listed)
    return bullets or [line for line in listed.split("\n") if line.strip()]


def _sentences_asked(mind: Mind) -> int:
    frame = mind.asked.reading.frame
    span, cap = _SPAN.search(frame), _CAP.search(frame)
    found = int(span[2]) if span is not None else int(cap[1]) if cap is not None else _DEFAULT
    return max(1, found)


def _rendered(mind: Mind, text: str) -> list[str]:
    """What of one strategy goes into the prompt."""
    words = seen_words(mind, mind.asked.input)
    found: list[str] = []
    for sentence in sentences(text):
        if mind.happens(mind.settings.generator_drop * mind.temperature, "drop", sentence):
            continue
        orders = mind.world.orders.of_sentence(sentence)
        if orders:
            found += [said for order in orders if (said := _said(mind, order, words))]
        elif words & content_stems(sentence) or _stays(mind, sentence):
            found.append(sentence)
    return found


def _stays(mind: Mind, sentence: str) -> bool:
    """Whether something that does not bear on the input is kept all the same."""
    return mind.happens(mind.settings.generator_idle, "idle", sentence)


def _said(mind: Mind, order: Order, words: frozenset[str]) -> str:
    if order.when is None:
        return order.text
    if order.applies(mind.problem.shown, words):
        return "" if order.against else say(mind.world.skills, order.skill, None)
    return order.text if _stays(mind, order.text) else ""


def _packed(clauses: list[str], most: int) -> list[str]:
    """Clauses as at most `most` sentences, later ones joined to earlier ones."""
    bare = [c.rstrip(" .;,") for c in clauses]
    heads, tails = bare[:most], bare[most : 2 * most]
    packed: list[str] = []
    for k, head in enumerate(heads):
        said = f"{head[:1].upper()}{head[1:]}"
        if k < len(tails):
            said += f", and {tails[k][:1].lower()}{tails[k][1:]}"
        packed.append(f"{said}.")
    return packed
