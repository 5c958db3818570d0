"""The backward pass: a verdict on the whole trace (Eq. 8), split into gradients.

D_ψ reads H = (x, z, C[z], p, y, y*) and says what went wrong; attribution assigns each complaint to
θ, φ or an instinct. The critic also judges its own rubric, g_ψ.

Deviations: both of our sets show the critic z and C[z], which the text demands and the printed
template leaves out. The default set also shows it r, unless `critic.sees_reward` is off. Verdict
and attribution are two calls (App. C.2) unless `critic.stages: 1` (method decision 3). With the
safety clause (`safety.py`) a reply may also name harmful texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from pydantic import Field

from promptcodebook.calls import Request, Schema
from promptcodebook.incidents import Tally
from promptcodebook.lm.structured import Ask, LenientNumber, LenientText, ReplyShape, bounded
from promptcodebook.lm.wire import schema_of
from promptcodebook.method.gradients import (
    ATTRIBUTIONS,
    AttributionReply,
    OneStringAttributionReply,
    Share,
    blame_schema,
    gradients_of,
    rho,
)
from promptcodebook.method.templates import InstinctErrors, TemplateSet, instinct_lines
from promptcodebook.randomness import Draws
from promptcodebook.safety import HarmReply, SafetyClause, harm_of
from promptcodebook.text import shorten
from promptcodebook.types import Channel, Codebook, Example, Gradients, Rollout, Route, Verdict


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


_LONG = 6000
"""Characters of one field that a critic is shown, so that an 8k context holds them all."""


@dataclass(frozen=True, slots=True)
class History:
    """H, the full forward trace of one example, with the codebook it was routed over, the range of
    its reward, and whether a critic is shown that."""

    example: Example
    codebook: Codebook
    rollout: Rollout
    reward_range: tuple[float, float] = (0.0, 1.0)
    shows_reward: bool = True

    @property
    def route(self) -> Route:
        assert self.rollout.route is not None, "a scored rollout has a route"
        return self.rollout.route

    def values(self) -> Mapping[str, object]:
        """What every template about a trace may show."""
        rollout = self.rollout
        stages = [
            f"- {s.name}: {shorten(s.input, 1000)} -> {shorten(s.output, 1000)}"
            for s in rollout.stages
        ]
        return {
            "task": shorten(self.example.input, _LONG),
            "route": ", ".join(map(str, self.route.indices)),
            "instincts": instinct_lines(self.codebook, self.route.indices),
            "codebook": instinct_lines(self.codebook, range(len(self.codebook))),
            "prompt": shorten(rollout.prompt, _LONG),
            "stages": "\n".join(["Stages on the way:", *stages]) if stages else "",
            "response": shorten(rollout.output, _LONG) or "(empty)",
            "reference": reference(self.example, rollout.feedback),
            "reward": f"{rollout.reward:g}" if self.shows_reward else "(not shown)",
            "range": " to ".join(f"{bound:g}" for bound in self.reward_range),
        }


@dataclass
class Critic:
    """Judges traces; in its adversarial inner call it judges its own rubric. With a `clause`, its
    verdicts say which texts are harmful."""

    ask: Ask
    templates: TemplateSet
    tally: Tally
    clause: SafetyClause | None = None

    @property
    def safe(self) -> bool:
        """Whether the safety clause is there."""
        return self.clause is not None

    async def verdict(self, psi: str, history: History, draws: Draws) -> Verdict:
        """ℓ_text, the first of the two stages of App. C.2."""
        request = self._request("critic", psi, history, draws, schema_of(VerdictReply))
        reply = (await self.ask.typed(request, ReadVerdict, score_fault)).value
        return self._verdict_of(reply, history)

    async def critique(self, psi: str, history: History, draws: Draws) -> tuple[Verdict, Gradients]:
        """(ℓ_text, g_θ, g_φ, g_C) from a single call, as Eq. 8 is written."""
        asked, shape = CRITIQUES[self.templates.instinct_errors]
        schema = blame_schema(asked, history.route.indices)
        request = self._request("critic_one", psi, history, draws, schema)
        reply = (await self.ask.typed(request, shape, score_fault)).value
        return self._verdict_of(reply, history), gradients_of(
            reply, history.codebook, history.route.indices, self.tally
        )

    async def own_gradient(
        self, psi: str, history: History, verdict: Verdict, draws: Draws
    ) -> Gradients:
        """g_ψ, the adversarial inner call: what did the rubric miss, or invent, and how grave is
        it?"""
        feedback = verdict.feedback or "(the critic found nothing to complain of)"
        said = f"score {verdict.score:g}: {feedback}"
        values = {**history.values(), "psi": psi, "verdict": said}
        messages = self.templates["adversary"].fill(values)
        request = Request("critic", messages, sample=draws.sample("own gradient"))
        reply = (await self.ask.typed(request, RubricReply)).value
        text = reply.feedback.strip()
        severity = reply.severity if text else 0.0
        return Gradients(critic=text, severity={} if severity is None else {"critic": severity})

    def _verdict_of(self, reply: ReadReply, history: History) -> Verdict:
        """ℓ_text; what is harmful counts only where it was asked for."""
        harmful: Mapping[str, str] = harm_of(reply, history.route.indices) if self.safe else {}
        return Verdict(unit_score(reply), reply.feedback.strip(), harmful)

    def _request(
        self, template: str, psi: str, history: History, draws: Draws, schema: Schema
    ) -> Request:
        messages = self.templates[template].fill({**history.values(), "psi": psi})
        if self.clause is not None:
            messages = self.clause.close(messages)
            schema = self.clause.widen(schema, history.route.indices)
        return Request("critic", messages, sample=draws.sample("critique"), schema=schema)


@dataclass
class Attribution:
    """Splits a verdict by asking a model."""

    ask: Ask
    templates: TemplateSet
    tally: Tally

    async def split(self, history: History, verdict: Verdict, draws: Draws) -> Gradients:
        """(g_θ, g_φ, g_C) of one verdict, the second of the two stages of App. C.2."""
        score = f"{verdict.score:g}"
        values = {**history.values(), "verdict": verdict.feedback, "score": score}
        shape = ATTRIBUTIONS[self.templates.instinct_errors]
        request = Request(
            "attribution",
            self.templates["attribution"].fill(values),
            sample=draws.sample("attribute"),
            schema=blame_schema(shape, history.route.indices),
        )
        reply = (await self.ask.typed(request, shape)).value
        return gradients_of(reply, history.codebook, history.route.indices, self.tally)

    def split_nothing(self) -> Gradients:
        """(g_θ, g_φ, g_C) of a verdict that says nothing, without a call: no text is to blame, with
        severities of 0 where replies have them."""
        rates = self.templates.instinct_errors == "by_index"
        return Gradients(severity=dict.fromkeys(get_args(Channel), 0.0) if rates else {})


def unit_reward(reward: float, reward_range: tuple[float, float]) -> float:
    """r rescaled to [0, 1] (method decision 5)."""
    low, high = reward_range
    return (reward - low) / (high - low)


def penalty(verdict: Verdict, unit: float, weight: float) -> float:
    """ρ(ℓ): 0 for a full reward or an empty critique, else (1 - score) · weight (decision 5)."""
    return rho(1.0 - verdict.score, verdict.feedback, unit, weight)


def reference(example: Example, feedback: str) -> str:
    """y* and what the reward said; a task without references says so (method decision 22)."""
    known = "There is no reference answer for this task: judge the response on its own."
    if example.target is not None:
        known = f"Reference answer: {shorten(example.target, _LONG)}"
    return f"{known}\nFeedback of the checker: {shorten(feedback, _LONG)}" if feedback else known
