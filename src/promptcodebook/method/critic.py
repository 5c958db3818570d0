"""The backward pass: a verdict on the whole trace (Eq. 8), split into gradients, made a penalty.

D_ψ reads H = (x, z, C[z], p, y, y*) and says what went wrong; attribution lays each complaint at
θ, φ or an instinct; Credit does both for one rollout and adds ρ and g_ψ.

Deviations: both of our sets show the critic z and C[z], which the text demands and the printed
template leaves out; verdict and attribution are two calls (App. C.2) unless `critic.stages: 1`
(method decision 3); g_C comes by index, as the set says, and with severities (4, 20); an example
that is solved costs no critic call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, Field

from promptcodebook.calls import Request
from promptcodebook.config import Config
from promptcodebook.errors import LMError
from promptcodebook.lm.structured import Ask
from promptcodebook.method.failures import failure_of, gather_all
from promptcodebook.method.templates import (
    InstinctErrors,
    TemplateSet,
    instinct_lines,
)
from promptcodebook.randomness import Draws
from promptcodebook.text import shorten
from promptcodebook.types import (
    Channel,
    Codebook,
    Example,
    Gradients,
    Rollout,
    Route,
    Stage,
    Trace,
    Verdict,
)

__all__ = [
    "Attribution",
    "AttributionReply",
    "Credit",
    "Critic",
    "CritiqueReply",
    "History",
    "OneStringAttributionReply",
    "OneStringCritiqueReply",
    "RubricReply",
    "SeverityReply",
    "VerdictReply",
    "additivity_residual",
    "gradients_of",
    "penalty",
    "reference",
    "stage_lines",
    "unit_reward",
]

_LONG = 6000
"""Characters of one field that a critic is shown, so that an 8k context holds them all."""


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
            "task": shorten(self.example.input, _LONG),
            "route": ", ".join(map(str, self.route.indices)),
            "instincts": instinct_lines(self.codebook, self.route.indices),
            "codebook": instinct_lines(self.codebook, range(len(self.codebook))),
            "prompt": shorten(rollout.prompt, _LONG),
            "stages": stage_lines(rollout.stages),
            "response": shorten(rollout.output, _LONG) or "(empty)",
            "reference": reference(self.example, rollout.feedback),
            "reward": f"{rollout.reward:g}",
        }


class Critic:
    """Judges traces; in its adversarial inner call it judges its own rubric."""

    def __init__(self, ask: Ask, templates: TemplateSet) -> None:
        self._ask = ask
        self._templates = templates

    async def verdict(self, psi: str, history: History, draws: Draws) -> Verdict:
        """ℓ_text, the first of the two stages of App. C.2."""
        request = self._request("critic", psi, history, draws)
        return _verdict_of((await self._ask.typed(request, VerdictReply)).value)

    async def critique(self, psi: str, history: History, draws: Draws) -> tuple[Verdict, Gradients]:
        """(ℓ_text, g_θ, g_φ, g_C) from a single call, as Eq. 8 is written."""
        request = self._request("critic_one", psi, history, draws)
        shape = _CRITIQUES[self._templates.instinct_errors]
        reply = (await self._ask.typed(request, shape)).value
        return _verdict_of(reply), gradients_of(reply, history.route.indices)

    async def own_gradient(self, psi: str, history: History, verdict: Verdict, draws: Draws) -> str:
        """g_ψ, the adversarial inner call: what did the rubric miss, or invent?"""
        feedback = verdict.feedback or "(the critic found nothing to complain of)"
        values = {
            **history.values(),
            "psi": psi,
            "verdict": f"score {verdict.score:g}: {feedback}",
        }
        request = Request(
            role="critic",
            messages=self._templates["adversary"].fill(values),
            sample=draws.sample("own gradient"),
        )
        return (await self._ask.typed(request, RubricReply)).value.feedback.strip()

    def _request(self, template: str, psi: str, history: History, draws: Draws) -> Request:
        return Request(
            role="critic",
            messages=self._templates[template].fill({**history.values(), "psi": psi}),
            sample=draws.sample("critique"),
        )


class Attribution:
    """Splits a verdict by asking a model."""

    def __init__(self, ask: Ask, templates: TemplateSet) -> None:
        self._ask = ask
        self._templates = templates

    async def split(self, history: History, verdict: Verdict, draws: Draws) -> Gradients:
        """(g_θ, g_φ, g_C) of one verdict, the second of the two stages of App. C.2."""
        values = {**history.values(), "verdict": verdict.feedback}
        request = Request(
            role="attribution",
            messages=self._templates["attribution"].fill(values),
            sample=draws.sample("attribute"),
        )
        shape = _ATTRIBUTIONS[self._templates.instinct_errors]
        reply = (await self._ask.typed(request, shape)).value
        return gradients_of(reply, history.route.indices)


@dataclass(frozen=True)
class Credit:
    """Critic, attribution and the critic's own gradient, with the settings that switch them."""

    critic: Critic
    attribution: Attribution
    config: Config

    async def assign(self, psi: str, history: History, draws: Draws) -> Trace:
        """The trace with verdict, ρ and gradients.

        Method decision 15: where the critic fails, the reward counts alone; where a gradient
        fails, the verdict and its ρ count too; nothing is learned from either.
        """
        rollout = history.rollout
        assert rollout.reward is not None, "only scored rollouts are critiqued"
        unit = unit_reward(rollout.reward, self.config.reward_range)
        trace = Trace(rollout, unit)
        if unit >= 1.0 and self.config.critic.skip_solved:
            return replace(trace, verdict=Verdict(1.0, ""))
        try:
            verdict, blamed = await self._judge(psi, history, draws)
        except LMError as error:
            return replace(trace, failure=failure_of("critique", error))
        rho = penalty(verdict, unit, self.config.critic.penalty_weight)
        trace = replace(trace, verdict=verdict, penalty=rho)
        if not self.config.update.text_updates:
            return trace
        try:
            gradients = await self._gradients(psi, history, verdict, blamed, draws)
        except LMError as error:
            return replace(trace, failure=failure_of("attribute", error))
        return replace(trace, gradients=gradients, residual=additivity_residual(rho, gradients))

    async def _judge(
        self, psi: str, history: History, draws: Draws
    ) -> tuple[Verdict, Gradients | None]:
        """ℓ_text; with `critic.stages: 1` the same call has assigned the blame as well."""
        if self.config.critic.stages == 1:
            return await self.critic.critique(psi, history, draws)
        return await self.critic.verdict(psi, history, draws), None

    async def _gradients(
        self, psi: str, history: History, verdict: Verdict, blamed: Gradients | None, draws: Draws
    ) -> Gradients:
        """g_θ, g_φ and g_C; beside them, from a call of its own, g_ψ."""
        own = self._own(psi, history, verdict, draws)
        if blamed is not None:
            return replace(blamed, critic=(await own).critic)
        split, adversarial = await gather_all([self._split(verdict, history, draws), own])
        return replace(split, critic=adversarial.critic)

    async def _split(self, verdict: Verdict, history: History, draws: Draws) -> Gradients:
        if not verdict.feedback:
            return Gradients()
        return await self.attribution.split(history, verdict, draws)

    async def _own(self, psi: str, history: History, verdict: Verdict, draws: Draws) -> Gradients:
        if not self.config.critic.trainable:
            return Gradients()
        return Gradients(critic=await self.critic.own_gradient(psi, history, verdict, draws))


def unit_reward(reward: float, reward_range: tuple[float, float]) -> float:
    """r rescaled to [0, 1] (method decision 5)."""
    low, high = reward_range
    return (reward - low) / (high - low)


def penalty(verdict: Verdict, unit: float, weight: float) -> float:
    """ρ(ℓ): 0 for a full reward or an empty critique, else (1 - score) · weight (decision 5)."""
    if unit >= 1.0 or not verdict.feedback.strip():
        return 0.0
    return (1.0 - verdict.score) * weight


def additivity_residual(penalty: float, gradients: Gradients) -> float | None:
    """δ = ρ(ℓ) - Σ ρ(g_v) over the channels with a severity (Theorem 5); None where not given."""
    if not gradients.severity:
        return None
    return penalty - sum(gradients.severity.values())


class _Reply(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


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


_ATTRIBUTIONS: Mapping[InstinctErrors, type[AttributionReply | OneStringAttributionReply]] = {
    "by_index": AttributionReply,
    "one_string": OneStringAttributionReply,
}
_CRITIQUES: Mapping[InstinctErrors, type[CritiqueReply | OneStringCritiqueReply]] = {
    "by_index": CritiqueReply,
    "one_string": OneStringCritiqueReply,
}


def gradients_of(
    reply: AttributionReply | OneStringAttributionReply, active: Sequence[int]
) -> Gradients:
    """g_θ, g_φ and {g_ck} of a parsed reply; what names an inactive entry is left out."""
    severity: dict[Channel, float] = {}
    if isinstance(reply, AttributionReply):
        by_index = _by_index(reply.instinct_errors, active)
        if reply.severity is not None:
            severity = {
                "generator": reply.severity.rendering,
                "codebook": reply.severity.instinct,
                "encoder": reply.severity.routing,
            }
    else:
        text = reply.instinct_errors.strip()
        by_index = dict.fromkeys(active, text) if text else {}
    return Gradients(
        encoder=reply.routing_errors.strip(),
        generator=reply.rendering_errors.strip(),
        codebook=by_index,
        severity=severity,
    )


def _by_index(errors: Mapping[str, str], active: Sequence[int]) -> dict[int, str]:
    """Models write '7', '[7]' or 'c7' for the same index."""
    by_name = {str(k): k for k in active}
    blamed: dict[int, str] = {}
    for key, text in errors.items():
        name = key.strip().strip("[]()#").removeprefix("c").strip()
        k = by_name.get(name.lstrip("0") or name[:1])
        if k is not None and text.strip():
            blamed[k] = text.strip()
    return dict(sorted(blamed.items()))


def _verdict_of(reply: VerdictReply) -> Verdict:
    return Verdict(reply.score, reply.feedback.strip())


def reference(example: Example, feedback: str) -> str:
    """y* and what the reward said; a task without references says so (method decision 22)."""
    known = (
        f"Reference answer: {shorten(example.target, _LONG)}"
        if example.target is not None
        else "There is no reference answer for this task: judge the response on its own."
    )
    return f"{known}\nFeedback of the checker: {shorten(feedback, _LONG)}" if feedback else known


def stage_lines(stages: Sequence[Stage]) -> str:
    """The stages of a compound executor, for the critic; '' for a single call."""
    if not stages:
        return ""
    lines = [f"- {s.name}: {shorten(s.input, 1000)} -> {shorten(s.output, 1000)}" for s in stages]
    return "Stages on the way:\n" + "\n".join(lines)
