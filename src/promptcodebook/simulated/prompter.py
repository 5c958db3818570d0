"""The simulated encoder and generator: which instincts, and what of them goes into a prompt.

The encoder sees surface words through noise, not what the executor lacks. The generator says a
conditional order plainly where its condition holds and mostly drops it elsewhere.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.orders import Order
from promptcodebook.simulated.request import Entry
from promptcodebook.simulated.words import asked_number, content_stems, sentences

_INDEX_PREFERENCE, _JITTER = 0.004, 0.08
"""What each place further down the list costs an instinct, and the noise on its relevance."""
_SELECTED = _SENTENCES = 4
"""Instincts to choose, and sentences to write, where the request names no number."""
_BULLET = re.compile(r"^\s*[-*•]\s+(.+)$", re.MULTILINE)


def route(mind: Mind) -> str:
    """The reply to a routing request: S distinct indices of the listed instincts."""
    reading, said = mind.asked.reading, mind.asked.input
    wanted = asked_number(reading.frame, "select")
    ranked = _ranked(mind, reading.codebook())
    chosen = sorted(e.index for e in ranked[: _SELECTED if wanted is None else wanted])
    values: dict[str, object] = {
        "constraints": [s for s in sentences(said) if mind.world.skills.shown(s)][:4],
        "indices": chosen,
        "prose": "These come closest to what the input asks for.",
    }
    return mind.fill(values, ", ".join(map(str, chosen)))


def _seen_words(mind: Mind) -> frozenset[str]:
    """The input's content stems, some of them overlooked (the encoder's noise)."""
    noise, text = mind.settings.encoder_noise, mind.asked.input
    of = mind.keyed(text)
    return frozenset(w for w in content_stems(text) if _unit(of, w) >= noise)


def _unit(of: int, word: str) -> float:
    """A number in [0, 1) decided by both arguments (FNV-1a): cheap, as each word asks for one."""
    state = of & 0xFFFFFFFFFFFFFFFF
    for letter in word:
        state = ((state ^ ord(letter)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    state ^= state >> 29
    return ((state * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF) / 2**64


def _ranked(mind: Mind, entries: Sequence[Entry]) -> list[Entry]:
    settings, problem = mind.settings, mind.problem
    words = _seen_words(mind)
    spread = Counter(w for e in entries for w in content_stems(e.text))
    called = frozenset(mind.noted(mind.asked.request.system, "choose the instinct"))

    def likeness(text: str) -> float:
        """How much a text's words look like the input's; those that stand everywhere count less."""
        own = content_stems(text)
        total = math.fsum(math.log((len(entries) + 1) / (spread[w] + 0.5)) for w in words & own)
        return max(0.0, total) / math.sqrt(4 + len(own))

    def score(place: int, entry: Entry) -> float:
        value = likeness(entry.text)
        value += settings.success_weight * (0.5 if entry.rate is None else entry.rate)
        value += _JITTER * mind.unit("jitter", entry.index) - _INDEX_PREFERENCE * place
        conditional = (o for o in mind.orders(entry.text) if o.when is not None)
        fits = {o.skill for o in conditional if o.applies(problem.shown, words)}
        if fits and not mind.happens(settings.encoder_noise, "overlook", entry.index):
            value += 1.0
        return value + (0.5 if called & fits else 0.0)

    scored = [(score(place, e), -place, e) for place, e in enumerate(entries)]
    return [e for _, _, e in sorted(scored, key=lambda s: s[:2], reverse=True)]


def compose(mind: Mind) -> str:
    """The reply to a composition request: the composed prompt's text."""
    asked = mind.asked
    texts = [e.text for e in asked.reading.active()] or _plain_strategies(mind)
    words = _seen_words(mind)
    said = [clause for text in texts for clause in _rendered(mind, text, words)]
    notes = mind.noted(asked.request.system, "keep this in the prompt")
    said += [mind.world.skills.say(skill, None) for skill in notes]
    most = asked_number(asked.reading.frame, "sentences")
    text = _packed(list(dict.fromkeys(said)), max(1, _SENTENCES if most is None else most))
    text = text or "Answer the request with care."
    return mind.fill({"prose": text}, text) if asked.request.schema else text


def _plain_strategies(mind: Mind) -> list[str]:
    """Strategies given without numbers."""
    listed, blocks = mind.section("active"), mind.asked.reading.blocks
    if not listed and blocks:
        return [e.text for e in max(blocks, key=lambda b: len(b.entries)).entries]
    listed = listed or mind.section("codebook")
    return _BULLET.findall(listed) or [line for line in listed.split("\n") if line.strip()]


def _rendered(mind: Mind, text: str, words: frozenset[str]) -> list[str]:
    """What of one strategy goes into the prompt."""
    found: list[str] = []
    for sentence in sentences(text):
        if mind.happens(
            mind.settings.generator_drop * mind.asked.request.temperature, "drop", sentence
        ):
            continue
        orders = mind.world.skills.orders_of_sentence(sentence)
        if orders:
            found += filter(None, (_said(mind, order, words) for order in orders))
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
        return "" if order.against else mind.world.skills.say(order.skill, None)
    return order.text if _stays(mind, order.text) else ""


def _packed(clauses: list[str], most: int) -> str:
    """Clauses as at most `most` sentences, later ones joined to earlier ones."""
    bare = [c.rstrip(" .;,") for c in clauses]
    packed: list[str] = []
    for head, tail in zip_longest(bare[:most], bare[most : 2 * most], fillvalue=""):
        joined = f", and {tail[:1].lower()}{tail[1:]}" if tail else ""
        packed.append(f"{head[:1].upper()}{head[1:]}{joined}.")
    return " ".join(packed)
