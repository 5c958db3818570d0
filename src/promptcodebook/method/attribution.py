"""Attribution: split the verdict into textual gradients, one channel per part (App. C.2). Fixed.

Deviation: our schema returns `instinct_errors` by index; with the paper's schema its one string
goes to every active entry (method decision 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from promptcodebook.lm.base import Request
from promptcodebook.lm.structured import Ask
from promptcodebook.method.draws import Draws
from promptcodebook.method.replies import (
    AttributionReply,
    CritiqueReply,
    OneStringAttributionReply,
    OneStringCritiqueReply,
)
from promptcodebook.method.templates import Templates
from promptcodebook.types import Gradients, Verdict

__all__ = ["Attribution", "additivity_residual", "gradients_of"]

_Split = AttributionReply | OneStringAttributionReply | CritiqueReply | OneStringCritiqueReply


def gradients_of(reply: _Split, active: Sequence[int]) -> Gradients:
    """g_θ, g_φ and {g_ck} of a parsed reply; what names an inactive entry is left out."""
    errors = reply.instinct_errors
    if isinstance(errors, str):
        by_index = {k: errors.strip() for k in active if errors.strip()}
    else:
        by_index = _by_index(errors, active)
    severity: dict[str, float] = {}
    given = getattr(reply, "severity", None)
    if given is not None:
        severity = {
            "generator": given.rendering,
            "codebook": given.instinct,
            "encoder": given.routing,
        }
    return Gradients(
        encoder=reply.routing_errors.strip(),
        generator=reply.rendering_errors.strip(),
        codebook=by_index,
        severity=severity,
    )


def _by_index(errors: Mapping[str, str], active: Sequence[int]) -> dict[int, str]:
    """Models write '7', '[7]' or 'c7' for the same index."""
    by_name = {str(k): k for k in active}
    found: dict[int, str] = {}
    for key, text in errors.items():
        name = key.strip().strip("[]()#").removeprefix("c").strip()
        k = by_name.get(name.lstrip("0") or name[:1])
        if k is not None and text.strip():
            found[k] = text.strip()
    return dict(sorted(found.items()))


def additivity_residual(penalty: float, gradients: Gradients) -> float | None:
    """δ = ρ(ℓ) - Σ ρ(g_v) over the channels with a severity (Theorem 5); None where not given."""
    if not gradients.severity:
        return None
    return penalty - sum(gradients.severity.values())


class Attribution:
    """Splits a verdict by asking a model."""

    def __init__(self, ask: Ask, templates: Templates) -> None:
        self._ask = ask
        self._templates = templates

    async def split(
        self,
        verdict: Verdict,
        values: Mapping[str, object],
        active: Sequence[int],
        draws: Draws,
    ) -> Gradients:
        """(g_θ, g_φ, g_C) of one verdict; `values` is History.values() of its trace."""
        request = Request(
            role="attribution",
            messages=self._templates["attribution"].fill({**values, "verdict": verdict.feedback}),
            sample=draws.sample("attribute"),
        )
        if self._templates.name == "paper":
            reply = (await self._ask.typed(request, OneStringAttributionReply)).value
        else:
            reply = (await self._ask.typed(request, AttributionReply)).value
        return gradients_of(reply, active)
