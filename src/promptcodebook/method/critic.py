"""The backward pass: a verdict on the whole trace (Eq. 8), split into textual gradients.

D_ψ reads H = (x, z, C[z], p, y, y*) and says what went wrong; attribution assigns each complaint to
θ, φ or an instinct. The adversary judges the critic's rubric (g_ψ), in a call of role critic.

Deviations: our critics see z and C[z], which the text demands and the printed template omits, and
by default r. Verdict and attribution are two calls (App. C.2) unless `critic.stages: 1` (method
decision 3). With the safety clause (`safety.py`) a reply also names harmful texts. g_C comes by
index, with a severity for each channel, where the set of templates says so (4, 20). Advice that no
instinct holds goes to the nearest active one, and so does a complaint about θ or φ that fewer than
`update.shared_by` examples of a batch share (28)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from promptcodebook.base.incidents import Incident, Tally
from promptcodebook.base.randomness import Draws
from promptcodebook.base.text import long_words, place_in, sentences_of, shorten, words_of
from promptcodebook.calls import Request, Schema, schema_of
from promptcodebook.lm.structured import (
    Ask,
    LenientNumber,
    LenientText,
    ReplyShape,
    bounded,
    leading_index,
    read_by_name,
    read_number,
)
from promptcodebook.method.safety import HarmReply, SafetyClause, harm_of
from promptcodebook.method.templates import InstinctErrors, TemplateSet, instinct_lines
from promptcodebook.types import (
    Channel,
    Codebook,
    Component,
    Critique,
    Example,
    Gradients,
    Rollout,
    Route,
)

T = TypeVar("T", bound="VerdictReply")
_CHANNELS: tuple[Channel, ...] = get_args(Channel)
_SEVERITIES: Mapping[str, Channel] = {
    "rendering": "generator",
    "instinct": "codebook",
    "routing": "encoder",
}
_SHARE: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": 1}
_BLAMED = re.compile(r"\b(?:prompt|choice|missing|\d+)\b")
_MISSING = "missing"  # where a reply puts advice that no instinct has yet
# Characters asked for of g_θ or g_φ, and of all g_C; and shown of a field in an 8k context.
_ERRORS, _INSTINCTS_ERRORS, _LONG = 300, 1000, 6000


def _read_share(value: object) -> float | None:
    with suppress(ValueError):
        return min(max(read_number(value), 0.0), 1.0)
    return None


def _read_severity(value: object) -> dict[str, float] | None:
    """By channel name, held to [0, 1]; None where any is no number: none is invented (20)."""
    found: dict[str, float | None] = {}
    for key, rated in cast("dict[str, object]", value).items() if isinstance(value, dict) else ():
        for name in _SEVERITIES:
            if key.lower().startswith(name):
                found[name] = _read_share(rated)
    known = {name: share for name, share in found.items() if share is not None}
    return known if known and len(known) == len(found) else None


class VerdictReply(HarmReply):
    """Critic: ℓ_text as a score and prose. A text field that is added here, and asked for in the
    templates `critic` and `critic_one`, becomes one of the critique's notes. The longest legal
    reply must fit the critic's 1,024 tokens, so shorten `feedback` by what a new field takes."""

    score: LenientNumber = Field(json_schema_extra={"minimum": 0, "maximum": 1})
    feedback: LenientText = bounded(900)


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


# The last base's fields come first: the verdict before the blame, as they are asked for.
class CritiqueReply(AttributionReply, VerdictReply):
    """Eq. 8 in one call, our schema."""


class OneStringCritiqueReply(OneStringAttributionReply, VerdictReply):
    """Eq. 8 in one call, the printed schemas."""


class RubricReply(ReplyShape):
    """g_ψ: what the rubric should look for, or stop looking for, and how grave that is."""

    feedback: LenientText = bounded(600)
    # A factory, so that the schema names no default that it does not allow.
    severity: Annotated[float | None, BeforeValidator(_read_share), WithJsonSchema(_SHARE)] = Field(
        default_factory=lambda: None
    )


_Blame = AttributionReply | OneStringAttributionReply
_SHAPES: Mapping[
    InstinctErrors, tuple[type[_Blame], type[CritiqueReply | OneStringCritiqueReply]]
] = {
    "by_index": (AttributionReply, CritiqueReply),
    "one_string": (OneStringAttributionReply, OneStringCritiqueReply),
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


def score_fault(reply: VerdictReply) -> str | None:
    """What is wrong with the score; None where it is in [0, 1]."""
    return None if 0.0 <= reply.score <= 1.0 else f"score: {reply.score:g} lies outside 0..1"


@dataclass(frozen=True, slots=True)
class History:
    """H, the full forward trace of one example, and whether a critic is shown its reward."""

    example: Example
    codebook: Codebook
    rollout: Rollout
    reward_range: tuple[float, float] = (0.0, 1.0)
    shows_reward: bool = True

    @property
    def unit(self) -> float:
        """r rescaled to [0, 1]."""
        assert self.rollout.reward is not None, "a scored rollout has a reward"
        return unit_reward(self.rollout.reward, self.reward_range)

    @property
    def route(self) -> Route:
        assert self.rollout.route is not None, "a scored rollout has a route"
        return self.rollout.route

    def values(self) -> Mapping[str, object]:
        """What every template about a trace may show."""
        rollout = self.rollout
        stages = (
            f"- {s.name}: {shorten(s.input, 1000)} -> {shorten(s.output, 1000)}"
            for s in rollout.stages
        )
        listed = "\n".join(["Stages on the way:", *stages]) if rollout.stages else ""
        return {
            "task": shorten(self.example.input, _LONG),
            "route": ", ".join(map(str, self.route.indices)),
            "instincts": instinct_lines(self.codebook, self.route.indices),
            "codebook": instinct_lines(self.codebook, range(len(self.codebook))),
            "prompt": shorten(rollout.prompt, _LONG),
            "stages": shorten(listed, 2 * _LONG),
            "response": shorten(rollout.said, _LONG) or "(empty)",
            "reference": reference(self.example, rollout.feedback),
            "reward": f"{rollout.reward:g}" if self.shows_reward else "(not shown)",
            "range": " to ".join(f"{bound:g}" for bound in self.reward_range),
        }


@dataclass
class Critic:
    """D_ψ judges traces, the adversary its rubric. With a `clause`, verdicts name harmful texts."""

    ask: Ask
    templates: TemplateSet
    tally: Tally
    clause: SafetyClause | None = None

    async def verdict(self, psi: str, history: History, draws: Draws) -> Critique:
        """ℓ_text, the first of the two stages of App. C.2."""
        reply = await self._judge("critic", VerdictReply, psi, history, draws)
        return critique_of(reply, history.route.indices, safe=self.clause is not None)

    async def critique(
        self, psi: str, history: History, draws: Draws
    ) -> tuple[Critique, Gradients]:
        """(ℓ_text, g_θ, g_φ, g_C) from a single call, as Eq. 8 is written."""
        shape, active = _SHAPES[self.templates.instinct_errors][1], history.route.indices
        reply = await self._judge("critic_one", shape, psi, history, draws)
        blamed = gradients_of(reply, history.codebook, active, self.tally)
        return critique_of(reply, active, safe=self.clause is not None), blamed

    async def adversary_gradient(
        self, psi: str, history: History, verdict: Critique, draws: Draws
    ) -> Gradients:
        """g_ψ, from the adversary: what did the rubric miss, or invent, and how grave is it?"""
        feedback = verdict.feedback or "(the critic found no fault)"
        values = {**history.values(), "psi": psi}
        values["verdict"] = f"score {verdict.score:g}: {feedback}"
        messages = self.templates["adversary"].fill(values)
        # The key of its draws is older than its name; stored runs hold answers to it.
        request = Request("critic", messages, sample=draws.sample("own gradient"))
        if "adversary" in self.templates.one_line:
            answer = await self.ask.line(request, lambda line: RubricReply(feedback=line))
        else:
            answer = await self.ask.typed(request, RubricReply)
        text = answer.value.feedback.strip()
        severity = answer.value.severity if text else 0.0
        return Gradients(critic=text, severity={} if severity is None else {"critic": severity})

    async def _judge(
        self,
        template: Literal["critic", "critic_one"],
        shape: type[T],
        psi: str,
        history: History,
        draws: Draws,
    ) -> T:
        """The critic's reply. One line is advice that no instinct holds yet, and the reward is its
        score; it names no harmful text."""
        active = history.route.indices
        messages = self.templates[template].fill({**history.values(), "psi": psi})
        request = Request("critic", messages, sample=draws.sample("critique"))
        if template in self.templates.one_line:

            def read(line: str) -> T:
                by_index = self.templates.instinct_errors == "by_index"
                blamed = {_MISSING: line} if by_index else line
                fields = {"feedback": line, "instinct_errors": blamed}
                return shape.model_validate({"score": history.unit, **fields})

            return (await self.ask.line(request, read)).value
        schema = blame_schema(shape, active)
        if self.clause is not None:
            schema = self.clause.widen(schema, active)
            request = replace(request, messages=self.clause.close(messages))
        request = replace(request, schema=schema)
        return (await self.ask.typed(request, shape, score_fault)).value


_OF_NO_NOTE = {"score", "feedback", *HarmReply.model_fields, *AttributionReply.model_fields}


def critique_of(reply: VerdictReply, active: Sequence[int], *, safe: bool) -> Critique:
    """ℓ_text of a parsed reply, with what is harmful where the clause asks for it (`safe`). A score
    that stays outside [0, 1] is one out of ten, or of a hundred."""
    score = reply.score
    if score > 1.0:
        score /= 10.0 if score <= 10.0 else 100.0
    return Critique(
        score=min(max(score, 0.0), 1.0),
        feedback=reply.feedback.strip(),
        harmful=harm_of(reply, active) if safe else {},
        notes={name: str(text) for name, text in reply if text and name not in _OF_NO_NOTE},
    )


@dataclass
class Attribution:
    """Splits a verdict by asking a model; it is fixed, and no text of it is learned."""

    ask: Ask
    templates: TemplateSet
    tally: Tally

    async def split(self, history: History, verdict: Critique, draws: Draws) -> Gradients:
        """(g_θ, g_φ, g_C) of one verdict, the second of the two stages of App. C.2."""
        judged = {"verdict": verdict.feedback, "score": f"{verdict.score:g}"}
        shape, active = _SHAPES[self.templates.instinct_errors][0], history.route.indices
        messages = self.templates["attribution"].fill({**history.values(), **judged})
        request = Request("attribution", messages, sample=draws.sample("attribute"))
        if "attribution" in self.templates.one_line:
            read = partial(read_blame, feedback=verdict.feedback)
            answer = await self.ask.line(request, read)
        else:
            request = replace(request, schema=blame_schema(shape, active))
            answer = await self.ask.typed(request, shape)
        return gradients_of(answer.value, history.codebook, active, self.tally)

    def split_nothing(self) -> Gradients:
        """(g_θ, g_φ, g_C) of a verdict that says nothing, without a call."""
        rates = self.templates.instinct_errors == "by_index"
        return Gradients(severity=dict.fromkeys(_CHANNELS, 0.0) if rates else {})


def read_blame(line: str, feedback: str) -> AttributionReply:
    """What one line blames: "prompt", "choice", "missing" or the number of an instinct. What it
    blames gets the whole `feedback`. Raises ValueError where it names none of them."""
    named = _BLAMED.findall(line.lower())
    if not named:
        raise ValueError("it names neither an instinct nor prompt, choice or missing")
    texts = dict.fromkeys(named, feedback)
    return AttributionReply(
        rendering_errors=texts.pop("prompt", ""),
        routing_errors=texts.pop("choice", ""),
        instinct_errors=texts,
    )


def gradients_of(
    reply: _Blame, codebook: Codebook, active: Sequence[int], tally: Tally
) -> Gradients:
    """g_θ, g_φ and {g_ck} of a parsed reply. It counts an index that is not active, which it passes
    over, and a key that names none, whose advice is missing."""
    theta, phi = reply.routing_errors.strip(), reply.rendering_errors.strip()
    if not isinstance(reply, AttributionReply):
        text = reply.instinct_errors.strip()
        return Gradients(theta, phi, dict.fromkeys(active, text) if text else {})
    blamed: dict[int, list[str]] = {}
    for key, text in reply.instinct_errors.items():
        k = leading_index(key)
        if k not in active and key.lower() not in ("", _MISSING):
            tally(Incident.UNKNOWN_INSTINCTS)
        if k is None and active:
            k = nearest_instinct(text, codebook, active)
        if k is not None and k in active:
            blamed.setdefault(k, []).append(text)
    book = {k: " ".join(texts) for k, texts in sorted(blamed.items())}
    severity: dict[Component, float] = {
        _SEVERITIES[name]: share for name, share in (reply.severity or {}).items()
    }
    return Gradients(theta, phi, book, severity=severity)


def nearest_instinct(advice: str, codebook: Codebook, active: Sequence[int]) -> int:
    """The active instinct that shares two long words or more with the advice, else the shortest."""
    wanted = _long_words(advice)

    def fit(k: int) -> tuple[bool, int, bool, int, int]:
        instinct = codebook[k]
        shared = len(wanted & _long_words(instinct.text))
        alike, placed = -shared if shared > 1 else 0, bool(place_in(instinct.text))
        return instinct.frozen, alike, placed, len(words_of(instinct.text)), k

    return min(active, key=fit)


def split_shared(texts: Sequence[str], least: int) -> tuple[tuple[str, ...], list[tuple[int, str]]]:
    """Of the examples' gradients: what at least `least` of them share, as more than half of their
    longer words agree, and every other sentence with its example's place (decision 28)."""
    if least == 1:
        return tuple(filter(None, texts)), []
    complaints = [
        [(s, _long_words(s) or frozenset(words_of(s))) for s in sentences_of(text)]
        for text in texts
    ]

    def common(words: frozenset[str]) -> bool:
        alike = (
            any(4 * len(words & w) > len(words) + len(w) for _, w in other) for other in complaints
        )
        return sum(alike) >= least

    shared = (" ".join(s for s, words in own if common(words)) for own in complaints)
    lone = [(i, s) for i, own in enumerate(complaints) for s, words in own if not common(words)]
    return tuple(filter(None, shared)), lone


_COMMON = frozenset(
    words_of(
        "about also always answer before does each every from have instead instinct into must "
        "never only prompt should text than that their them then there these they this when where "
        "which with without"
    )
)


def _long_words(text: str) -> frozenset[str]:
    """By their first five letters, so that 'counted' and 'count' are one."""
    return frozenset(w[:5] for w in long_words(text, 4) - _COMMON)


def unit_reward(reward: float, reward_range: tuple[float, float]) -> float:
    """r rescaled to [0, 1] (method decision 5)."""
    low, high = reward_range
    return (reward - low) / (high - low)


def penalty(verdict: Critique, unit: float, weight: float) -> float:
    """ρ(ℓ): 0 for a full reward or an empty critique, else (1 - score) · weight (decision 5)."""
    return rho(1.0 - verdict.score, verdict.feedback, unit, weight)


def rho(severity: float, text: str, unit: float, weight: float) -> float:
    """ρ of a verdict or a gradient: 0 for a full reward or where nothing is said (decision 5)."""
    return severity * weight if unit < 1.0 and text.strip() else 0.0


def rate(gradients: Gradients, unit: float, weight: float) -> Gradients:
    """With ρ(g_v) for severities; a channel without one counts 0 if it is not to blame."""
    texts: Mapping[Component, str] = {
        "encoder": gradients.encoder,
        "generator": gradients.generator,
        "codebook": " ".join(gradients.codebook.values()),
        "critic": gradients.critic,
    }
    rated = {p: rho(s, texts[p], unit, weight) for p, s in gradients.severity.items()}
    if any(channel in rated for channel in _CHANNELS):
        rated.update((c, 0.0) for c in _CHANNELS if not texts[c])
    return replace(gradients, severity=dict(sorted(rated.items())))


def additivity_residual(penalty: float, gradients: Gradients) -> float | None:
    """δ = ρ(ℓ) - Σ ρ(g_v) (Theorem 5) over what was rated; None unless θ, φ and C all were."""
    if any(channel not in gradients.severity for channel in _CHANNELS):
        return None
    return penalty - sum(gradients.severity.values())


def reference(example: Example, feedback: str) -> str:
    """y* and what the reward said; a task without references says so (method decision 22)."""
    known = "There is no reference answer for this task: judge the response on its own."
    if example.target is not None:
        known = f"Reference answer: {shorten(example.target, _LONG)}"
    return f"{known}\nFeedback of the checker: {shorten(feedback, _LONG)}" if feedback else known
