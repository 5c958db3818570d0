"""What the critic may reply: a verdict, a verdict with its blame in one call, and g_ψ.

Each shape is asked for as it stands. What is read may also say which texts are harmful: the safety
clause asks for that, and widens the schema by it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from promptcodebook.lm.shapes import LenientNumber, LenientText, ReplyShape, bounded
from promptcodebook.method.gradients import AttributionReply, OneStringAttributionReply, Share
from promptcodebook.method.safety import HarmReply
from promptcodebook.method.templates import InstinctErrors


class VerdictReply(ReplyShape):
    """Critic: ℓ_text as a score and prose."""

    score: LenientNumber = Field(json_schema_extra={"minimum": 0, "maximum": 1})
    feedback: LenientText = bounded(900)


# The last base's fields come first: the verdict before the blame, as they are asked for.
class CritiqueReply(AttributionReply, VerdictReply):
    """Eq. 8 in one call, our schema."""


class OneStringCritiqueReply(OneStringAttributionReply, VerdictReply):
    """Eq. 8 in one call, the printed schemas."""


class ReadVerdict(HarmReply, VerdictReply):
    """A verdict as it is read."""


class ReadCritique(HarmReply, CritiqueReply):
    """Eq. 8 in one call as it is read, our schema."""


class ReadOneStringCritique(HarmReply, OneStringCritiqueReply):
    """Eq. 8 in one call as it is read, the printed schemas."""


class RubricReply(ReplyShape):
    """g_ψ: what the rubric should look for, or stop looking for, and how grave that is."""

    feedback: LenientText = bounded(600)
    # A factory, so that the schema names no default that it does not allow.
    severity: Share = Field(default_factory=lambda: None)


ReadReply = ReadVerdict | ReadCritique | ReadOneStringCritique
_Asked = type[CritiqueReply | OneStringCritiqueReply]
_Read = type[ReadCritique | ReadOneStringCritique]
CRITIQUES: Mapping[InstinctErrors, tuple[_Asked, _Read]] = {
    "by_index": (CritiqueReply, ReadCritique),
    "one_string": (OneStringCritiqueReply, ReadOneStringCritique),
}
"""What is asked for and what is read in one call, by how a set of templates blames instincts."""


def score_fault(reply: VerdictReply) -> str | None:
    """What is wrong with the score; None where it is in [0, 1]."""
    return None if 0.0 <= reply.score <= 1.0 else f"score: {reply.score:g} lies outside 0..1"


def unit_score(reply: VerdictReply) -> float:
    """The score in [0, 1]: one that stays outside when asked again is one out of ten, or of a
    hundred."""
    score = reply.score
    if score > 1.0:
        score /= 10.0 if score <= 10.0 else 100.0
    return min(max(score, 0.0), 1.0)
