"""The simulated author, encoder and generator. `improve` is one rewrite for every caller and may do
harm: it adopts orders, keeps to the cap and removes what the feedback calls harmful. The encoder
sees noisy surface words: it prefers instincts whose condition holds or whose words resemble the
input's. The generator states a conditional order where its condition holds and mostly drops it
elsewhere."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from promptcodebook.paper.simulated.critic import wrong_claims
from promptcodebook.paper.simulated.mind import ListedItem, Mind, fenced
from promptcodebook.paper.simulated.orders import (
    Instruction,
    asked_number,
    content_stems,
    matches,
    says,
    sentences,
)

_NO_SKILL = -1  # in a skill's place: advice that is about none
_LONG = 100  # words from which on a text is a directive, whose opening says what the role is
_HOW = ("Take care of", "Think about", "Mind", "Look at", "Keep in mind", "Weigh")
_WHAT = ("the purpose", "the reader", "the order of ideas", "the tone", "each detail", "the topic")


@dataclass(slots=True)
class _Unit:
    line: int
    text: str
    skills: frozenset[int]
    new: bool = False


def improve(mind: Mind) -> str:
    user, system = mind.asked.request.user, mind.asked.request.system
    blocks, quoted = fenced(user), matches("quoted_text", user)
    text = mind.section("text") or "".join(blocks[:1]) or mind.section("prompt")
    text = text or "".join(quoted[:1])
    sections = (mind.section(name) for name in ("feedback", "verdict", "reward"))
    feedback = "\n".join(filter(None, sections)) or "\n".join(blocks[1:]) or user.replace(text, " ")
    cap = asked_number(user.lower() + mind.asked.reading.system_frame, "cap")
    new = _rewritten(mind, text.strip(), feedback, cap)
    if says("fences_asked", user + system):
        new = f"```\n{new}\n```"
    return mind.asked.shape.fill({"prose": new}, new)


def _rewritten(mind: Mind, text: str, feedback: str, cap: int | None) -> str:
    """The text with the feedback's advice taken up, within `cap` words (None = no cap)."""
    obedient = mind.settings.obedient
    bad = {k for s in sentences(feedback) if says("harmful", s) for k in mind.ordered(s)}
    units: list[_Unit] = []
    for number, line in enumerate(text.split("\n")):
        pieces = re.split(r"(?<=[.!?])\s+", line) if line.strip() else [""]
        units += [_Unit(number, piece, mind.ordered(piece)) for piece in pieces]
    units = [u for u in units if not (u.skills if obedient and bad else u.skills & bad)]
    if not units:  # nothing can stay: a general sentence that the request does not list
        general = (p for p in _plain(mind) if p not in mind.asked.request.user)
        units.append(_Unit(0, next(general), frozenset()))
    last = max(u.line for u in units)
    bulleted = text.rsplit("\n", 1)[-1].lstrip().startswith("- ") and "\n" in text
    advice = [(k, wanted) for k, wanted in _advice(mind, text, feedback) if k not in bad]
    for skill, sentence in advice[: mind.settings.updater_uptake]:
        if sentence in text:
            continue
        # A new wording of an order takes the place of the old one, condition and all.
        units = [
            u for u in units if not (skill in u.skills or (obedient and u.skills and not u.new))
        ]
        last += bulleted
        wanted = f"- {sentence}" if bulleted else sentence
        units.append(_Unit(last, wanted, frozenset((skill,)), new=True))
    # At temperature, now and then a sentence goes missing; never the only one.
    old = [u for u in units if not u.new and u.text.strip()]
    chance = mind.settings.updater_loss * mind.asked.request.temperature
    if len(old) > 1 and mind.happens(chance, "lose"):
        units.remove(mind.pick(old, "which"))
    # The cap takes a sentence without an order first, then what is new; the opening of a directive
    # last.
    while cap is not None and len(units) > 1:
        words = sum(len(u.text.split()) for u in units)
        if words <= cap:
            break
        opening = units[0] if words > _LONG else None
        units.remove(min(units, key=lambda u: (u is opening, bool(u.skills), not u.new)))
    lines: dict[int, list[str]] = {}
    for unit in units:
        lines.setdefault(unit.line, []).append(unit.text)
    return "\n".join(" ".join(parts) for _, parts in sorted(lines.items())).strip()


def _advice(mind: Mind, text: str, feedback: str) -> list[tuple[int, str]]:
    """What the feedback wants said, the most often named first: skills and their sentences."""
    named: Counter[int] = Counter()
    lines: dict[int, str] = {}
    for sentence in sentences(feedback):
        if mind.settings.bare and says("keeps_conditions", sentence):
            named[_NO_SKILL] += 1
            lines[_NO_SKILL] = f"{sentence.rstrip('.')}."
        for order in mind.orders(sentence) if not says("harmful", sentence) else ():
            named[order.skill] += 1
            if says("of_part", sentence):
                worded = f"{sentence[:1].upper()}{sentence[1:].rstrip('.')}."
            else:  # as it goes into the text: under its own condition, else under the text's
                scopes = [o.about for o in (order, *mind.orders(text)) if o.when is not None]
                worded = mind.say(order.skill, scopes[0] if scopes else None, order.skill)
            lines.setdefault(order.skill, worded)
    # Raw reports of what failed: advice must be found here, as a critic does, and may be wrong in
    # the same way.
    for claim in dict.fromkeys(wrong_claims(feedback)) if not named else ():
        shown = mind.world.skills.shown(claim)
        if not shown:
            continue
        advice = mind.mislead(shown, shown, claim)
        if mind.happens(mind.settings.capacity, "recognise", claim):
            skill = mind.pick(sorted(shown), claim)
            advice = mind.say(skill, skill, claim)
        for order in mind.orders(advice):
            named[order.skill] += 1
            lines.setdefault(order.skill, advice)
    return [(k, lines[k]) for k in sorted(named, key=lambda k: (-named[k], mind.unit("order", k)))]


def split(mind: Mind) -> str:
    user = mind.asked.request.user
    text = mind.section("prompt", "text") or "".join(fenced(user)[:1])
    most = asked_number(mind.asked.reading.frame, "list") or 16
    return _listed(mind, list(dict.fromkeys(sentences(text or user.split("\n\n", 1)[-1])))[:most])


def write_instincts(mind: Mind) -> str:
    """The reply to a request for general instincts; they concern no skill."""
    return _listed(mind, _plain(mind)[: asked_number(mind.asked.reading.frame, "list") or 8])


def _plain(mind: Mind) -> list[str]:
    plain = (f"{how} {what} of the request." for how in _HOW for what in _WHAT)
    return sorted(plain, key=lambda text: mind.unit("plain", text))


def _listed(mind: Mind, found: list[str]) -> str:
    shape = mind.asked.shape
    cap = asked_number(mind.asked.reading.frame, "words")
    if cap is not None:
        found = [" ".join(t.split()[:cap]) if len(t.split()) > cap else t for t in found]
    if shape.json:
        key = shape.meant("list", "prose")
        name = "list" if key == shape.meant("list") else "prose"
        return shape.fill({name if key else "instincts": found})
    return "\n".join(f"{k}. {text}" for k, text in enumerate(found, 1))


# What each place further down the list costs an instinct, and the noise on its relevance.
_INDEX_PREFERENCE, _JITTER = 0.004, 0.08
# Instincts to choose, and sentences to write, where the request names no number.
_SELECTED = _SENTENCES = 4


def route(mind: Mind) -> str:
    reading, text = mind.asked.reading, mind.asked.input
    wanted = asked_number(reading.frame, "select")
    ranked = _ranked(mind, reading.codebook())
    chosen = sorted(e.index for e in ranked[: _SELECTED if wanted is None else wanted])
    values: dict[str, object] = {
        "constraints": [s for s in sentences(text) if mind.world.skills.shown(s)][:4],
        "indices": chosen,
        "prose": "These come closest to what the input asks for.",
    }
    return mind.asked.shape.fill(values, ", ".join(map(str, chosen)))


def _seen_words(mind: Mind) -> frozenset[str]:
    """The input's content stems, some of them overlooked (the encoder's noise)."""
    text = mind.asked.input
    of = mind.keyed(text) & 0xFFFFFFFFFFFFFFFF

    def unit(word: str) -> float:
        """A number in [0, 1) decided by input and word (FNV-1a): cheap, as each word asks."""
        state = of
        for letter in word:
            state = ((state ^ ord(letter)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 29
        return ((state * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF) / 2**64

    return frozenset(w for w in content_stems(text) if unit(w) >= mind.settings.encoder_noise)


def _ranked(mind: Mind, entries: Sequence[ListedItem]) -> list[ListedItem]:
    settings, problem = mind.settings, mind.problem
    words = _seen_words(mind)
    spread = Counter(w for e in entries for w in content_stems(e.text))
    called = frozenset(mind.noted(mind.asked.request.system, "choose the instinct"))

    def score(place: int, entry: ListedItem) -> float:
        # How much its words look like the input's; those that are everywhere count less.
        own = content_stems(entry.text)
        total = math.fsum(math.log((len(entries) + 1) / (spread[w] + 0.5)) for w in words & own)
        value = max(0.0, total) / math.sqrt(4 + len(own))
        value += settings.success_weight * (0.5 if entry.rate is None else entry.rate)
        value += _JITTER * mind.unit("jitter", entry.index) - _INDEX_PREFERENCE * place
        conditional = (o for o in mind.orders(entry.text) if o.when is not None)
        fits = {o.skill for o in conditional if o.applies(problem.shown, words)}
        if fits & mind.world.misled - called:
            return -value  # what the input looks like speaks for the others
        if fits and not mind.happens(settings.encoder_noise, "overlook", entry.index):
            value += 1.0
        return value + (0.5 if called & fits else 0.0)

    scored = [(score(place, e), -place, e) for place, e in enumerate(entries)]
    return [e for _, _, e in sorted(scored, key=lambda s: s[:2], reverse=True)]


def compose(mind: Mind) -> str:
    reading, blocks = mind.asked.reading, mind.asked.reading.blocks
    texts, listed = [e.text for e in reading.active()], mind.section("active")
    if not texts and not listed and blocks:
        texts = [e.text for e in max(blocks, key=lambda b: len(b.entries)).entries]
    elif not texts:
        listed = listed or mind.section("codebook")
        lines = [line for line in listed.split("\n") if line.strip()]
        texts = matches("bullet", listed) or lines
    words = _seen_words(mind)
    clauses = [clause for text in texts for clause in _rendered(mind, text, words)]
    notes = mind.noted(mind.asked.request.system, "keep this in the prompt")
    clauses += [mind.world.skills.say(skill, None) for skill in notes]
    asked = asked_number(reading.frame, "sentences")
    most = max(1, _SENTENCES if asked is None else asked)
    # Clauses as at most `most` sentences, later ones joined to earlier ones.
    bare = [c.rstrip(" .;,") for c in dict.fromkeys(clauses)]
    packed: list[str] = []
    for head, tail in zip_longest(bare[:most], bare[most : 2 * most], fillvalue=""):
        joined = f", and {tail[:1].lower()}{tail[1:]}" if tail else ""
        packed.append(f"{head[:1].upper()}{head[1:]}{joined}.")
    prompt = " ".join(packed) or "Answer the request with care."
    return mind.asked.shape.fill({"prose": prompt}, prompt) if mind.asked.request.schema else prompt


def _rendered(mind: Mind, text: str, words: frozenset[str]) -> list[str]:
    dropped = mind.settings.generator_drop * mind.asked.request.temperature
    keeps = says("keeps_conditions", mind.asked.request.system) is not None

    def stays(text: str) -> bool:
        """Whether something irrelevant is kept all the same."""
        return mind.happens(mind.settings.generator_idle, "idle", text)

    def sentence_of(order: Instruction) -> str:
        if order.when is None:
            return order.text
        if order.applies(mind.problem.shown, words):
            return "" if order.against else mind.world.skills.say(order.skill, None)
        if not keeps and mind.happens(mind.settings.bare, "bare", order.text):
            return mind.world.skills.say(order.skill, None)
        return order.text if stays(order.text) else ""

    found: list[str] = []
    for sentence in sentences(text):
        if mind.happens(dropped, "drop", sentence):
            continue
        orders = mind.world.skills.orders_of_sentence(sentence)
        if orders:
            found += filter(None, map(sentence_of, orders))
        elif words & content_stems(sentence) or stays(sentence):
            found.append(sentence)
    return found
