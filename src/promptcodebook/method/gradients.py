"""Textual gradients: what a reply may blame, and g_θ, g_φ and {g_ck} made of what it blames.

Deviations: g_C comes by index where the set of templates asks for it so, with a severity for each
channel (method decisions 4, 20); advice that stands in no instinct goes to the active one that is
nearest in words, else to the emptiest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, Field

from promptcodebook.calls import Schema
from promptcodebook.incidents import Incident, Tally
from promptcodebook.lm.shapes import (
    LenientText,
    ReplyShape,
    bounded,
    leading_index,
    read_by_name,
    read_number,
)
from promptcodebook.lm.wire import schema_of
from promptcodebook.method.templates import InstinctErrors
from promptcodebook.text import words_of
from promptcodebook.types import Channel, Codebook, Gradients

__all__ = [
    "ATTRIBUTIONS",
    "AttributionReply",
    "OneStringAttributionReply",
    "additivity_residual",
    "blame_schema",
    "gradients_of",
    "nearest_instinct",
]

_SEVERITIES: Mapping[str, Channel] = {
    "rendering": "generator",
    "instinct": "codebook",
    "routing": "encoder",
}
_SHARE = {"type": "number", "minimum": 0, "maximum": 1}
_ERRORS = 300
_INSTINCTS_ERRORS = 1000
"""Characters asked for: of g_θ or g_φ, and of g_C as a whole."""
_COMMON = frozenset(
    words_of(
        "about also always answer before does each every from have instead instinct into must "
        "never only prompt should text than that their them then there these they this when where "
        "which with without"
    )
)
_MISSING = "missing"
"""Where a reply puts advice that stands in no instinct."""


def _read_severity(value: object) -> dict[str, float] | None:
    """By the name of its channel, held to [0, 1]. None where any of it is no number: a severity is
    left out, not invented (method decision 20)."""
    if not isinstance(value, dict):
        return None
    found: dict[str, float] = {}
    for key, told in cast("dict[str, object]", value).items():
        name = next((n for n in _SEVERITIES if key.lower().startswith(n)), None)
        if name is not None:
            try:
                found[name] = min(max(read_number(told), 0.0), 1.0)
            except ValueError:
                return None
    return found or None


class AttributionReply(ReplyShape):
    """Attribution, our schema: instinct errors by index (method decision 4) and ρ by channel."""

    rendering_errors: LenientText = bounded(_ERRORS)
    instinct_errors: Annotated[dict[str, str], BeforeValidator(read_by_name)] = Field(
        default_factory=dict
    )
    routing_errors: LenientText = bounded(_ERRORS)
    severity: Annotated[dict[str, float] | None, BeforeValidator(_read_severity)] = None


class OneStringAttributionReply(ReplyShape):
    """Attribution, the printed schema: one string for all active instincts, no severities."""

    rendering_errors: LenientText = bounded(_ERRORS)
    instinct_errors: LenientText = bounded(_INSTINCTS_ERRORS)
    routing_errors: LenientText = bounded(_ERRORS)


ATTRIBUTIONS: Mapping[InstinctErrors, type[AttributionReply | OneStringAttributionReply]] = {
    "by_index": AttributionReply,
    "one_string": OneStringAttributionReply,
}


@lru_cache(maxsize=4096)
def blame_schema(shape: type[ReplyShape], active: tuple[int, ...]) -> Schema:
    """What a reply may be that blames the active instincts: each by its index, and "missing"."""
    schema = schema_of(shape)
    fields = cast("dict[str, Any]", schema.body["properties"])
    if not issubclass(shape, AttributionReply):
        return schema
    text = {"type": "string", "maxLength": _INSTINCTS_ERRORS // (len(active) + 1)}
    named = {
        "instinct_errors": dict.fromkeys([*map(str, active), _MISSING], text),
        "severity": dict.fromkeys(_SEVERITIES, _SHARE),
    }
    objects = {
        name: {"type": "object", "properties": within, "additionalProperties": False}
        for name, within in named.items()
    }
    return Schema(schema.name, {**schema.body, "properties": {**fields, **objects}})


def gradients_of(
    reply: AttributionReply | OneStringAttributionReply,
    codebook: Codebook,
    active: Sequence[int],
    tally: Tally,
) -> Gradients:
    """g_θ, g_φ and {g_ck} of a parsed reply; `active` are the route's indices."""
    severity: dict[Channel, float] = {}
    if isinstance(reply, AttributionReply):
        by_index = _by_index(reply.instinct_errors, codebook, active, tally)
        if reply.severity is not None:
            severity = {_SEVERITIES[name]: share for name, share in reply.severity.items()}
    else:
        text = reply.instinct_errors.strip()
        by_index = dict.fromkeys(active, text) if text else {}
    return Gradients(
        encoder=reply.routing_errors.strip(),
        generator=reply.rendering_errors.strip(),
        codebook=by_index,
        severity=severity,
    )


def _by_index(
    errors: Mapping[str, str], codebook: Codebook, active: Sequence[int], tally: Tally
) -> dict[int, str]:
    """What each active instinct is blamed for.

    An index that is not active is passed over, since that instinct was not at work; what names none
    is advice that is missing. Both are counted, unless it was put under "missing".
    """
    blamed: dict[int, list[str]] = {}
    for key, text in errors.items():
        k = leading_index(key)
        if k not in active and key.lower() not in ("", _MISSING):
            tally(Incident.UNKNOWN_INSTINCTS)
        if k is None and active:
            k = nearest_instinct(text, codebook, active)
        if k is not None and k in active:
            blamed.setdefault(k, []).append(text)
    return {k: " ".join(texts) for k, texts in sorted(blamed.items())}


def nearest_instinct(advice: str, codebook: Codebook, active: Sequence[int]) -> int:
    """Which active instinct is to carry advice that stands in none.

    The one that shares most of its longer words, at least two; where none does, or several do
    alike, the one of fewest words; then the lowest index. One that may not be rewritten comes last.
    """
    wanted = _long_words(advice)

    def fit(k: int) -> tuple[bool, int, int, int]:
        instinct = codebook[k]
        shared = len(wanted & _long_words(instinct.text))
        return instinct.frozen, -shared if shared > 1 else 0, len(words_of(instinct.text)), k

    return min(active, key=fit)


def _long_words(text: str) -> frozenset[str]:
    """By how they begin, so that 'counted' and 'count' are one; without those that say little."""
    return frozenset(w[:5] for w in words_of(text) if len(w) > 3 and w not in _COMMON)


def additivity_residual(penalty: float, gradients: Gradients) -> float | None:
    """δ = ρ(ℓ) - Σ ρ(g_v) over the channels with a severity (Theorem 5); None where not given."""
    if not gradients.severity:
        return None
    return penalty - sum(gradients.severity.values())
