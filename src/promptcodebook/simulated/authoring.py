"""The simulated model as author: splits a prompt, and writes general instincts."""

from __future__ import annotations

from promptcodebook.simulated.mind import Mind
from promptcodebook.simulated.reading import asked_number, fenced
from promptcodebook.simulated.words import count_words, sentences

__all__ = ["split", "write_instincts"]

_COUNTS = (
    r"(?:at most|up to|no more than|exactly)\s+#\s+(?!words)",
    r"\b#\s+(?:[a-z-]+\s+){0,4}?(?:instincts|directives|strategies|guidelines|rules|tips|hints|"
    r"pieces|parts|entries)",
)
_WORDS = r"(?:at most|up to|no more than|within|of)\s+#\s+words"
_HOW = ("Take care of", "Think about", "Mind", "Look at", "Keep in mind", "Weigh")
_WHAT = (
    "the purpose",
    "the reader",
    "the order of ideas",
    "the tone",
    "each detail",
    "the subject",
)


def split(mind: Mind) -> str:
    """The reply to: take this prompt apart into instincts."""
    user = mind.asked.request.user
    text = mind.section("prompt") or mind.section("text") or "".join(fenced(user)[:1])
    text = text or user.split("\n\n", 1)[-1]
    most = _how_many(mind.asked.reading.frame, 16)
    return _listed(mind, list(dict.fromkeys(sentences(text)))[:most])


def write_instincts(mind: Mind) -> str:
    """The reply to: write so many general instincts; they bear on no skill."""
    plain = [f"{how} {what} of the request." for how in _HOW for what in _WHAT]
    plain.sort(key=lambda text: mind.draw.unit("plain", text))
    return _listed(mind, plain[: _how_many(mind.asked.reading.frame, 8)])


def _how_many(frame: str, default: int) -> int:
    numbers = (asked_number(frame, pattern) for pattern in _COUNTS)
    return next((n for n in numbers if n), default)


def _listed(mind: Mind, found: list[str]) -> str:
    shape = mind.asked.shape
    cap = asked_number(mind.asked.reading.frame, _WORDS)
    if cap is not None:
        found = [" ".join(t.split()[:cap]) if count_words(t) > cap else t for t in found]
    if shape.json:
        key = next((k for k in shape.keys if shape.meaning(k) in ("list", "prose")), "")
        return shape.fill({shape.meaning(key) if key else "instincts": found})
    return "\n".join(f"{k}. {text}" for k, text in enumerate(found, 1))
