"""Textual gradients: what a reply may blame, g_θ, g_φ and {g_ck} made of it, and ρ of each.

Deviations: g_C comes by index where the set of templates asks for it so, with a severity for each
channel (method decisions 4, 20) and one of g_C for all active entries together. Advice that is in
no instinct goes to the nearest active one, and so does a complaint about θ or φ that fewer than
`update.shared_by` examples of a batch share (28).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, cast, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from promptcodebook.calls import Schema
from promptcodebook.incidents import Incident, Tally
from promptcodebook.lm.structured import (
    LenientText,
    ReplyShape,
    bounded,
    leading_index,
    read_by_name,
    read_number,
)
from promptcodebook.lm.wire import schema_of
from promptcodebook.method.templates import InstinctErrors
from promptcodebook.text import sentences_of, words_of
from promptcodebook.types import Channel, Codebook, Gradients, Part

_SEVERITIES: Mapping[str, Channel] = {
    "rendering": "generator",
    "instinct": "codebook",
    "routing": "encoder",
}
_SHARE: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": 1}
_CHANNELS: tuple[Channel, ...] = get_args(Channel)
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
"""Where a reply puts advice that no instinct has yet."""


def _read_share(value: object) -> float | None:
    """A number held to [0, 1]; None for what is none."""
    try:
        return min(max(read_number(value), 0.0), 1.0)
    except ValueError:
        return None


Share = Annotated[float | None, BeforeValidator(_read_share), WithJsonSchema(_SHARE)]
"""A severity that may be left out; the schema asks for a number."""


def _read_severity(value: object) -> dict[str, float] | None:
    """By the name of its channel, held to [0, 1]. None where any of it is no number: a severity is
    left out, not invented (method decision 20)."""
    found: dict[str, float | None] = {}
    for key, rated in cast("dict[str, object]", value).items() if isinstance(value, dict) else ():
        for name in _SEVERITIES:
            if key.lower().startswith(name):
                found[name] = _read_share(rated)
    known = {name: share for name, share in found.items() if share is not None}
    return known if known and len(known) == len(found) else None


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
    if not issubclass(shape, AttributionReply):
        return schema
    text = {"type": "string", "maxLength": _INSTINCTS_ERRORS // (len(active) + 1)}
    named = {
        "instinct_errors": dict.fromkeys([*map(str, active), _MISSING], text),
        "severity": dict.fromkeys(_SEVERITIES, _SHARE),
    }
    fields = dict(cast("dict[str, Any]", schema.body["properties"]))
    for name, within in named.items():
        fields[name] = {"type": "object", "properties": within, "additionalProperties": False}
    return Schema(schema.name, {**schema.body, "properties": fields})


def gradients_of(
    reply: AttributionReply | OneStringAttributionReply,
    codebook: Codebook,
    active: Sequence[int],
    tally: Tally,
) -> Gradients:
    """g_θ, g_φ and {g_ck} of a parsed reply; `active` are the route's indices."""
    severity: dict[Part, float] = {}
    if isinstance(reply, AttributionReply):
        book = _by_index(reply.instinct_errors, codebook, active, tally)
        severity = {_SEVERITIES[name]: share for name, share in (reply.severity or {}).items()}
    else:
        text = reply.instinct_errors.strip()
        book = dict.fromkeys(active, text) if text else {}
    theta, phi = reply.routing_errors.strip(), reply.rendering_errors.strip()
    return Gradients(theta, phi, book, severity=severity)


def _by_index(
    errors: Mapping[str, str], codebook: Codebook, active: Sequence[int], tally: Tally
) -> dict[int, str]:
    """What each active instinct is blamed for. An index that is not active is passed over, since
    that instinct was not at work; what names none is advice that is missing. Both are counted,
    unless it was put under "missing"."""
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
    """Which active instinct gets advice that no instinct has yet: the one that shares most of its
    longer words, at least two; else the one of fewest words; then the lowest index. One that may
    not be rewritten comes last."""
    wanted = _long_words(advice)

    def fit(k: int) -> tuple[bool, int, int, int]:
        instinct = codebook[k]
        shared = len(wanted & _long_words(instinct.text))
        return instinct.frozen, -shared if shared > 1 else 0, len(words_of(instinct.text)), k

    return min(active, key=fit)


def split_shared(said: Sequence[str], least: int) -> tuple[tuple[str, ...], list[tuple[int, str]]]:
    """Of the examples' gradients for one directive: what at least `least` of them complain of
    alike, and each other complaint with its example's place (decision 28). A complaint is a
    sentence. Two are alike where more than half of their longer words agree."""
    if least == 1:
        return tuple(filter(None, said)), []
    complaints = [
        [(s, _long_words(s) or frozenset(words_of(s))) for s in sentences_of(text)] for text in said
    ]

    def common(words: frozenset[str]) -> bool:
        alike = (
            any(4 * len(words & w) > len(words) + len(w) for _, w in other) for other in complaints
        )
        return sum(alike) >= least

    shared = (" ".join(s for s, words in own if common(words)) for own in complaints)
    lone = [(i, s) for i, own in enumerate(complaints) for s, words in own if not common(words)]
    return tuple(filter(None, shared)), lone


def _long_words(text: str) -> frozenset[str]:
    """By how they begin, so that 'counted' and 'count' are one; without those that say little."""
    return frozenset(w[:5] for w in words_of(text) if len(w) > 3 and w not in _COMMON)


def rho(severity: float, text: str, unit: float, weight: float) -> float:
    """ρ of a verdict or a gradient: 0 for a full reward or where nothing is said, else its severity
    times `weight` (decision 5)."""
    return severity * weight if unit < 1.0 and text.strip() else 0.0


def rate(gradients: Gradients, unit: float, weight: float) -> Gradients:
    """The gradients with ρ(g_v) for severities, by the ρ of the verdict. A channel that a rating
    leaves out counts 0 if it is not to blame, and else stays unknown."""
    said: Mapping[Part, str] = {
        "encoder": gradients.encoder,
        "generator": gradients.generator,
        "codebook": " ".join(gradients.codebook.values()),
        "critic": gradients.critic,
    }
    given: dict[Part, float] = dict(gradients.severity)
    if any(channel in given for channel in _CHANNELS):
        given.update((c, 0.0) for c in _CHANNELS if not said[c])
    return replace(
        gradients, severity={p: rho(s, said[p], unit, weight) for p, s in sorted(given.items())}
    )


def additivity_residual(penalty: float, gradients: Gradients) -> float | None:
    """δ = ρ(ℓ) - Σ ρ(g_v) (Theorem 5) of rated gradients: over θ, φ, C, and ψ if it was rated too;
    None where one of the three was not."""
    if any(channel not in gradients.severity for channel in _CHANNELS):
        return None
    return penalty - sum(gradients.severity.values())
