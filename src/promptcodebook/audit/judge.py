"""The judge of hazards, and personal data as Microsoft Presidio finds it (extra `[presidio]`).

The role `judge` reads each text and names the hazards that it causes. Its prompt (judge.md,
hazards.toml) is no part of a set of templates: the author of a policy's templates must not write
what the policy is audited by.

Presidio finds names and the numbers of many countries. Names need one of spaCy's English models;
without one the audit says that names were left out. Presidio's recognisers of e-mail addresses and
URLs are off, since they fetch a list of domains and our own patterns find both.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Any, cast

from pydantic import BeforeValidator

from promptcodebook.calls import Request, Schema
from promptcodebook.errors import import_extra
from promptcodebook.lm.structured import Ask, LenientText, ReplyShape
from promptcodebook.method.failures import gather_all
from promptcodebook.method.templates import Template
from promptcodebook.policy.scan import Finding, excerpt
from promptcodebook.policy.traces import Severity


@dataclass(frozen=True, slots=True)
class Hazard:
    """A category: its code, its name, and what a text of it does."""

    code: str
    title: str
    about: str


@cache
def hazards() -> Mapping[str, Hazard]:
    """The categories by code: AILuminate's twelve, and 'integrity', which is ours."""
    tree = tomllib.loads(_read("hazards.toml"))
    return {each["code"]: Hazard(**each) for each in tree["hazards"]}


def _read(name: str) -> str:
    return (resources.files("promptcodebook.audit") / name).read_text("utf-8")


def _read_severity(value: object) -> Severity:
    """What is no severity is taken for the worst."""
    said = str(value).strip().lower()
    return cast("Severity", said) if said in ("medium", "low") else "high"


def _read_code(value: object) -> str:
    """By code or by title; what is neither stays as it is, to be asked about."""
    said = str(value).strip().lower()
    return next((h.code for h in hazards().values() if said in (h.code, h.title)), said)


class HazardClaim(ReplyShape):
    """One hazard that the judge sees in a text."""

    hazard: Annotated[str, BeforeValidator(_read_code)]
    severity: Annotated[Severity, BeforeValidator(_read_severity)] = "high"
    quote: LenientText = ""
    reason: LenientText = ""


class HazardsReply(ReplyShape):
    """What the judge sees in one text; an empty list = it is harmless."""

    findings: list[HazardClaim]


@cache
def hazards_schema() -> Schema:
    """What a reply may be: at most four findings, so that the longest fits into the judge's cap."""
    fields = {
        "hazard": {"type": "string", "enum": list(hazards())},
        "severity": {"type": "string", "enum": ["high", "medium", "low"]},
        "quote": {"type": "string", "maxLength": 120},
        "reason": {"type": "string", "maxLength": 160},
    }
    claim = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    listed = {"type": "array", "maxItems": 4, "items": claim}
    body = {
        "type": "object",
        "properties": {"findings": listed},
        "required": ["findings"],
        "additionalProperties": False,
    }
    return Schema("HazardsReply", body)


def _unknown_hazard(reply: HazardsReply) -> str | None:
    for claim in reply.findings:
        if claim.hazard not in hazards():
            return f"hazard: {claim.hazard!r} is none of {', '.join(hazards())}"
    return None


class HazardJudge:
    """Asks the role `judge` about texts, each by itself; `model` is who that is."""

    def __init__(self, ask: Ask, model: str) -> None:
        self._ask = ask
        self.model = model
        self._template = Template(_read("judge.md"))

    async def findings(self, texts: Mapping[str, str]) -> list[Finding]:
        """What it sees in each text, by its place. Raises LMError where one got no usable reply:
        a text that nobody judged must not pass for harmless."""
        found = await gather_all([self._judge(where, text) for where, text in texts.items()])
        return [finding for each in found for finding in each]

    async def _judge(self, where: str, text: str) -> list[Finding]:
        listed = "\n".join(f"- {h.code} ({h.title}): {h.about}" for h in hazards().values())
        values = {
            "what": _describe(where),
            "hazards": listed,
            # As JSON, so that nothing in it can pass for the end of it.
            "text": json.dumps(text, ensure_ascii=True),
        }
        messages = self._template.fill(values)
        request = Request(role="judge", messages=messages, schema=hazards_schema(), greedy=True)
        reply = (await self._ask.typed(request, HazardsReply, _unknown_hazard)).value
        return [_finding(where, text, claim) for claim in reply.findings]


def _describe(where: str) -> str:
    kinds = {
        "encoder": "the directive of a model that picks instincts for an input",
        "generator": "the directive of a model that composes instincts into a prompt",
    }
    instinct = where[:1] == "c" and where[1:].isdigit()
    return "an instinct, one piece of a system prompt" if instinct else kinds.get(where, "a prompt")


def _finding(where: str, text: str, claim: HazardClaim) -> Finding:
    """The claim with its place: the words quoted, else the whole text."""
    at = text.casefold().find(claim.quote.casefold()) if claim.quote else -1
    start, end = (at, at + len(claim.quote)) if 0 <= at < len(text) else (0, len(text))
    hazard = hazards().get(claim.hazard)
    reason = claim.reason or f"it is of the category {hazard.title if hazard else claim.hazard}"
    quote = excerpt(text[start:end])
    return Finding(where, claim.hazard, claim.severity, start, end, quote, reason, "judge")


_MODELS = ("en_core_web_trf", "en_core_web_lg", "en_core_web_md", "en_core_web_sm")
_FETCHING = ("EmailRecognizer", "UrlRecognizer")
_LEAST_SCORE = 0.4
_SEVERITIES: Mapping[str, Severity] = {
    "PERSON": "medium",
    "IP_ADDRESS": "medium",
    "MAC_ADDRESS": "medium",
    "CREDIT_CARD": "high",
    "CRYPTO": "high",
    "IBAN_CODE": "high",
    "MEDICAL_LICENSE": "high",
    "PHONE_NUMBER": "high",
    "UK_NHS": "high",
    "US_BANK_NUMBER": "high",
    "US_DRIVER_LICENSE": "high",
    "US_ITIN": "high",
    "US_PASSPORT": "high",
    "US_SSN": "high",
}
"""Entities that are personal data of somebody; dates, places and groups are not by themselves."""


class PresidioScan:
    """Presidio with what is installed. Raises MissingExtra."""

    def __init__(self) -> None:
        what = "Presidio's search for personal data"
        modules = ("presidio_analyzer", "presidio_analyzer.nlp_engine", "spacy")
        presidio, engines, spacy = (import_extra(name, what, "presidio") for name in modules)
        model = next((name for name in _MODELS if spacy.util.is_package(name)), None)
        engine: Any = engines.SpacyNlpEngine()
        engine.nlp = {"en": spacy.load(model) if model is not None else spacy.blank("en")}
        registry: Any = presidio.RecognizerRegistry(supported_languages=["en"])
        registry.load_predefined_recognizers(languages=["en"], nlp_engine=engine)
        for name in _FETCHING:
            registry.remove_recognizer(name)
        self._analyzer: Any = presidio.AnalyzerEngine(
            registry=registry, nlp_engine=engine, supported_languages=["en"]
        )
        self.left_out: tuple[str, ...] = ()
        if model is None:
            self.left_out = (
                "names of persons: Presidio finds them with a model of spaCy, and none is "
                "installed (python -m spacy download en_core_web_sm)",
            )

    def find(self, text: str, where: str = "") -> Iterator[Finding]:
        """The personal data of a text, by its place."""
        found = self._analyzer.analyze(
            text, language="en", entities=list(_SEVERITIES), score_threshold=_LEAST_SCORE
        )
        for each in sorted(found, key=lambda one: (one.start, one.end, one.entity_type)):
            start, end, kind = int(each.start), int(each.end), str(each.entity_type)
            reason = f"it contains what Presidio takes for {kind} (score {float(each.score):.2f})"
            quote, severity = excerpt(text[start:end]), _SEVERITIES[kind]
            yield Finding(where, "personal", severity, start, end, quote, reason, "presidio")
