"""What each role answers, as the pydantic shapes its replies are parsed into."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "AttributionReply",
    "CritiqueReply",
    "InstinctsReply",
    "OneStringAttributionReply",
    "OneStringCritiqueReply",
    "RouteReply",
    "RubricReply",
    "SeverityReply",
    "VerdictReply",
]


class _Reply(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class RouteReply(_Reply):
    """Encoder: the demands it saw, S indices, and why."""

    constraints: list[str] = Field(default_factory=list, max_length=32)
    selected_indices: list[int] = Field(max_length=1024)
    analysis: str = Field(default="", max_length=4000)


class VerdictReply(_Reply):
    """Critic: ℓ_text as a score and prose."""

    score: float = Field(ge=0.0, le=1.0)
    feedback: str = Field(default="", max_length=8000)


class SeverityReply(_Reply):
    """ρ per channel, each in [0, 1]."""

    rendering: float = Field(default=0.0, ge=0.0, le=1.0)
    instinct: float = Field(default=0.0, ge=0.0, le=1.0)
    routing: float = Field(default=0.0, ge=0.0, le=1.0)


class AttributionReply(_Reply):
    """Attribution, our schema: instinct errors by index (method decision 4)."""

    rendering_errors: str = Field(default="", max_length=4000)
    instinct_errors: dict[str, str] = Field(default_factory=dict)
    routing_errors: str = Field(default="", max_length=4000)
    severity: SeverityReply | None = None


class OneStringAttributionReply(_Reply):
    """Attribution, the printed schema: one string for all active instincts, no severities."""

    rendering_errors: str = Field(default="", max_length=4000)
    instinct_errors: str = Field(default="", max_length=4000)
    routing_errors: str = Field(default="", max_length=4000)


class CritiqueReply(VerdictReply, AttributionReply):
    """Eq. 8 in one call, our schema."""


class OneStringCritiqueReply(VerdictReply, OneStringAttributionReply):
    """Eq. 8 in one call, the printed schemas."""


class RubricReply(_Reply):
    """g_ψ: what the rubric should look for, or stop looking for."""

    feedback: str = Field(default="", max_length=4000)


class InstinctsReply(_Reply):
    """A list of instincts, from random or from_prompt initialisation."""

    instincts: list[str] = Field(max_length=256)
