"""The simulated model as author and judge: splits a prompt, writes general instincts, grades."""

from __future__ import annotations

from promptcodebook.simulated.mind import Mind, advice_for
from promptcodebook.simulated.reading import asked_number, fenced
from promptcodebook.simulated.words import content_stems, count_words, sentences

__all__ = ["judge", "split", "write_instincts"]

_COUNTS = (
    r"(?:at most|up to|no more than|exactly)\s+#\s+(?!words)",
    r"\b#\s+(?:[a-z-]+\s+){0,4}?(?:instincts|directives|strategies|guidelines|rules|tips|hints|"
    r"pieces|parts|entries)",
)
_WORDS = r"(?:at most|up to|no more than|within|of)\s+#\s+words"
_PLAIN = (
    "Take a moment to understand the request.",
    "Work carefully and stay on the subject.",
    "Think about who will read the answer.",
    "Prefer what is certain over what is clever.",
    "Use a natural order of ideas.",
    "Be honest about doubt.",
    "Say the important thing plainly.",
    "Look at the matter from more than one side.",
    "Connect each idea with the one before.",
    "Leave out what nobody asked for.",
    "Choose concrete language.",
    "Begin where the reader stands.",
    "Mind the purpose behind the request.",
    "Keep a calm and helpful manner.",
    "Let examples carry the explanation.",
    "Stay consistent in the terms you choose.",
    "Resolve what is ambiguous in the likeliest way.",
    "Put related things together.",
    "Finish with something useful.",
    "Treat every detail as meant.",
    "Weigh what matters most.",
    "Respect the tone of the request.",
    "Move from the known to the new.",
    "Pause before the conclusion.",
)
_SKILLED = 0.25
"""Share of unprompted instincts that happen to bear on a hidden skill."""


def split(mind: Mind) -> str:
    """The reply to: take this prompt apart into instincts."""
    reading = mind.asked.reading
    user = mind.asked.request.user
    blocks = fenced(user)
    text = reading.sections.get("prompt") or reading.sections.get("text") or "".join(blocks[:1])
    text = text or user.split("\n\n", 1)[-1]
    most = _how_many(reading.frame, 16)
    cap = asked_number(reading.frame, _WORDS)
    found = [_capped(s, cap) for s in dict.fromkeys(sentences(text))][:most]
    return _listed(mind, found)


def write_instincts(mind: Mind) -> str:
    """The reply to: write so many general instincts."""
    most = _how_many(mind.asked.reading.frame, 8)
    cap = asked_number(mind.asked.reading.frame, _WORDS)
    draw = mind.draw
    plain = sorted(_PLAIN, key=lambda text: draw.unit("plain", text))
    skills = sorted(range(len(mind.world.skills)), key=lambda k: draw.unit("skill", k))
    found: list[str] = []
    for place in range(most):
        skilled = draw.unit("skilled", place) < _SKILLED or not plain
        if skilled and skills:
            found.append(advice_for(mind, skills.pop(), "author"))
        elif plain:
            found.append(plain.pop())
        else:
            found.append(f"Keep point {place + 1} of the request in mind.")
    return _listed(mind, [_capped(text, cap) for text in found])


def judge(mind: Mind) -> str:
    """The reply to: grade this answer. By likeness to the reference, else by length alone."""
    sections = mind.asked.reading.sections
    response = content_stems(sections.get("response", ""))
    wanted = content_stems(sections.get("reference", ""))
    likeness = len(response & wanted) / max(1, len(wanted))
    score = likeness if wanted else min(1.0, len(response) / 20)
    moved = score + 0.1 * (mind.draw.unit("judge") - 0.5)
    score = round(min(1.0, max(0.0, moved)), 2)
    reason = f"The answer meets about {round(100 * score)} percent of what was wanted."
    values: dict[str, object] = {"score": score, "prose": reason}
    return mind.asked.shape.fill(values, f"{score}\n{reason}")


def _how_many(frame: str, default: int) -> int:
    for pattern in _COUNTS:
        number = asked_number(frame, pattern)
        if number:
            return number
    return default


def _capped(text: str, cap: int | None) -> str:
    if cap is None or count_words(text) <= cap:
        return text
    return " ".join(text.split()[:cap])


def _listed(mind: Mind, found: list[str]) -> str:
    shape = mind.asked.shape
    if shape.json:
        key = next((k for k in shape.keys if shape.meaning(k) in ("list", "prose")), "")
        if key:
            return shape.fill({shape.meaning(key): found})
        return shape.fill({"instincts": found})
    return "\n".join(f"{k}. {text}" for k, text in enumerate(found, 1))
