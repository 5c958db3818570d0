"""D_ψ: read the whole trace H = (x, z, C[z], p, y, y*) and say what went wrong (Eq. 8).

Deviations: our template and ours for `templates: paper` both include z and C[z], which the text
demands and the printed template leaves out (method decision 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from promptcodebook.lm.base import Request
from promptcodebook.lm.structured import Ask
from promptcodebook.method.attribution import gradients_of
from promptcodebook.method.draws import Draws
from promptcodebook.method.replies import (
    CritiqueReply,
    OneStringCritiqueReply,
    RubricReply,
    VerdictReply,
)
from promptcodebook.method.shown import instinct_lines, reference, shorten, stage_lines
from promptcodebook.method.templates import Templates
from promptcodebook.types import Codebook, Example, Gradients, Rollout, Route, Verdict

__all__ = ["Critic", "History", "penalty"]


@dataclass(frozen=True, slots=True)
class History:
    """H, the full forward trace of one example, with the codebook it was routed over."""

    example: Example
    codebook: Codebook
    rollout: Rollout

    @property
    def route(self) -> Route:
        assert self.rollout.route is not None, "a scored rollout has a route"
        return self.rollout.route

    def values(self) -> Mapping[str, object]:
        """What every template about a trace may show."""
        rollout = self.rollout
        return {
            "task": shorten(self.example.input),
            "route": ", ".join(map(str, self.route.indices)),
            "instincts": instinct_lines(self.codebook, self.route.indices),
            "codebook": instinct_lines(self.codebook, range(len(self.codebook))),
            "prompt": shorten(rollout.prompt),
            "stages": stage_lines(rollout.stages),
            "response": shorten(rollout.output) or "(empty)",
            "reference": reference(self.example, rollout.feedback),
            "reward": f"{rollout.reward:g}",
        }


def penalty(verdict: Verdict, unit: float, weight: float) -> float:
    """ρ(ℓ): 0 for a full reward or an empty critique, else (1 - score) · weight (decision 5)."""
    if unit >= 1.0 or not verdict.feedback.strip():
        return 0.0
    return (1.0 - verdict.score) * weight


class Critic:
    """Judges traces; in its adversarial inner call it judges its own rubric."""

    def __init__(self, ask: Ask, templates: Templates) -> None:
        self._ask = ask
        self._templates = templates

    async def verdict(self, psi: str, history: History, draws: Draws) -> Verdict:
        """ℓ_text, the first of the two stages of App. C.2."""
        values = {**history.values(), "psi": psi}
        request = Request(
            role="critic",
            messages=self._templates["critic"].fill(values),
            sample=draws.sample("critique"),
        )
        reply = (await self._ask.typed(request, VerdictReply)).value
        return Verdict(reply.score, reply.feedback.strip())

    async def critique(self, psi: str, history: History, draws: Draws) -> tuple[Verdict, Gradients]:
        """(ℓ_text, g_θ, g_φ, g_C) from a single call, as Eq. 8 is written."""
        values = {**history.values(), "psi": psi}
        paper = self._templates.name == "paper"
        request = Request(
            role="critic",
            messages=self._templates["critic_one"].fill(values),
            sample=draws.sample("critique"),
        )
        if paper:
            reply = (await self._ask.typed(request, OneStringCritiqueReply)).value
        else:
            reply = (await self._ask.typed(request, CritiqueReply)).value
        verdict = Verdict(reply.score, reply.feedback.strip())
        return verdict, gradients_of(reply, history.route.indices)

    async def own_gradient(self, psi: str, history: History, verdict: Verdict, draws: Draws) -> str:
        """g_ψ, the adversarial inner call: what did the rubric miss, or invent?"""
        said = verdict.feedback or "(the critic found nothing to complain of)"
        values = {
            **history.values(),
            "psi": psi,
            "verdict": f"score {verdict.score:g}: {said}",
        }
        request = Request(
            role="critic",
            messages=self._templates["adversary"].fill(values),
            sample=draws.sample("own gradient"),
        )
        return (await self._ask.typed(request, RubricReply)).value.feedback.strip()
