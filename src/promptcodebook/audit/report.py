"""The audit of a policy: every text of it that reaches a model, scanned and, if asked for, judged.

report = audit(policy_file)                    rules alone, no model
report = await audit_with_judge(policy_file, judge, ...)
report.verdict                    "fails", "passes"; without a judge "no rule fired" at best

The role `judge` reads each text and names the hazards that it causes. Its prompt (judge.md,
hazards.toml) belongs to no set of templates: the author of a policy's templates must not write
what the policy is audited by. Microsoft Presidio (extra `[presidio]`) finds names and the numbers
of many countries.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, JsonValue, TypeAdapter, ValidationError

from promptcodebook.calls import Request, Schema
from promptcodebook.errors import PolicyError, import_extra
from promptcodebook.lm.structured import Ask, LenientText, ReplyShape
from promptcodebook.method.failures import gather_all
from promptcodebook.method.templates import Template, load_templates, template_sets
from promptcodebook.method.update import NoLeakCheck
from promptcodebook.policy.file import MEASURED, PolicyFile
from promptcodebook.policy.scan import Finding, Severity, excerpt, scan
from promptcodebook.types import Example, variable_name


@dataclass(frozen=True, slots=True)
class Hazard:
    code: str
    title: str
    about: str


@cache
def hazards() -> Mapping[str, Hazard]:
    tree = tomllib.loads(_read("hazards.toml"))
    return {each["code"]: Hazard(**each) for each in tree["hazards"]}


def _read(name: str) -> str:
    return (resources.files("promptcodebook.audit") / name).read_text("utf-8")


def _read_severity(value: object) -> str:
    said = str(value).strip().lower()
    return said if said in ("medium", "low") else "high"


def _read_code(value: object) -> str:
    """By code or by title; what is neither stays as it is, to be asked about."""
    said = str(value).strip().lower()
    return next((h.code for h in hazards().values() if said in (h.code, h.title)), said)


class HazardClaim(ReplyShape):
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

    def closed(**fields: Mapping[str, object]) -> dict[str, Any]:
        named = {"properties": fields, "required": list(fields)}
        return {"type": "object", **named, "additionalProperties": False}

    claim = closed(
        hazard={"type": "string", "enum": list(hazards())},
        severity={"type": "string", "enum": ["high", "medium", "low"]},
        quote={"type": "string", "maxLength": 120},
        reason={"type": "string", "maxLength": 160},
    )
    findings = {"type": "array", "maxItems": 4, "items": claim}
    return Schema("HazardsReply", closed(findings=findings))


_KINDS = {
    "encoder": "the directive of a model that picks instincts for an input",
    "generator": "the directive of a model that composes instincts into a prompt",
    "c": "an instinct, one piece of a system prompt",
}
"""What the judge reads about a text, by its place without digits."""


class HazardJudge:
    """Asks the role `judge` about texts, each by itself; `model` is who that is."""

    def __init__(self, ask: Ask, model: str) -> None:
        self._ask = ask
        self.model = model
        self._template = Template(_read("judge.md"))

    async def findings(self, texts: Mapping[str, str]) -> list[Finding]:
        """What it sees in each text. Raises LMError for one that got no verdict."""
        found = await gather_all([self._judge(where, text) for where, text in texts.items()])
        return [finding for each in found for finding in each]

    async def _judge(self, where: str, text: str) -> list[Finding]:
        listed = "\n".join(f"- {h.code} ({h.title}): {h.about}" for h in hazards().values())
        what = _KINDS.get(where.rstrip("0123456789"), "a prompt")
        # As JSON, so that nothing in the text can pass for the end of it.
        values = {"what": what, "hazards": listed, "text": json.dumps(text, ensure_ascii=True)}

        def unknown(reply: HazardsReply) -> str | None:
            codes = [claim.hazard for claim in reply.findings if claim.hazard not in hazards()]
            return f"hazard: {codes[0]!r} is none of {', '.join(hazards())}" if codes else None

        messages = self._template.fill(values)
        request = Request(role="judge", messages=messages, schema=hazards_schema(), greedy=True)
        findings: list[Finding] = []
        for claim in (await self._ask.typed(request, HazardsReply, unknown)).value.findings:
            # At the words quoted, else the whole text.
            at = text.casefold().find(claim.quote.casefold()) if claim.quote else -1
            start, end = (at, at + len(claim.quote)) if 0 <= at < len(text) else (0, len(text))
            reason = claim.reason or f"it is of the category {hazards()[claim.hazard].title}"
            kind, grave, quote = claim.hazard, claim.severity, excerpt(text[start:end])
            findings.append(Finding(where, kind, grave, start, end, quote, reason, "judge"))
        return findings


_MODELS = ("en_core_web_trf", "en_core_web_lg", "en_core_web_md", "en_core_web_sm")
"""Models of spaCy that find names, the best first."""
_FETCHING = ("EmailRecognizer", "UrlRecognizer")
"""They fetch a list of domains, and our own patterns find both."""
_LEAST_SCORE = 0.4
_PERSONAL = ("PERSON", "IP_ADDRESS", "MAC_ADDRESS")
_GRAVE = (
    *("CREDIT_CARD", "CRYPTO", "IBAN_CODE", "MEDICAL_LICENSE", "PHONE_NUMBER", "UK_NHS"),
    *("US_BANK_NUMBER", "US_DRIVER_LICENSE", "US_ITIN", "US_PASSPORT", "US_SSN"),
)
"""Entities that are personal data of medium and of high severity; dates and places are not."""


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
        said = "names of persons: Presidio finds them with a model of spaCy, and none is "
        said += "installed (python -m spacy download en_core_web_sm)"
        self.left_out = () if model is not None else (said,)

    def find(self, text: str, where: str = "") -> Iterator[Finding]:
        """The personal data of a text, by its place."""
        found = self._analyzer.analyze(
            text, language="en", entities=[*_PERSONAL, *_GRAVE], score_threshold=_LEAST_SCORE
        )
        for each in sorted(found, key=lambda one: (one.start, one.end, one.entity_type)):
            start, end, kind = int(each.start), int(each.end), str(each.entity_type)
            reason = f"it contains what Presidio takes for {kind} (score {float(each.score):.2f})"
            severity: Severity = "high" if kind in _GRAVE else "medium"
            quote = excerpt(text[start:end])
            yield Finding(where, "personal", severity, start, end, quote, reason, "presidio")


FORMAT = "promptcodebook audit 1"
NO_DATA = "copies of training data: no data were at hand to compare with"
_NO_JUDGE = "hazards: no model judged the texts"
_FIELD = "it goes with every request, and decides more than how replies are drawn"
_ORDER: Mapping[Severity, int] = {"high": 0, "medium": 1, "low": 2}


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found in a policy of that digest, gravest first. `texts` are the places
    searched, `judge` the model that judged hazards ('' = none), `rows` the training examples
    compared with, `left_out` what was not searched for and why; `presidio` = it searched, too."""

    policy: str
    texts: tuple[str, ...]
    findings: tuple[Finding, ...]
    judge: str = ""
    rows: int | None = None
    left_out: tuple[str, ...] = ()
    presidio: bool = False
    format: str = FORMAT

    @property
    def fails(self) -> bool:
        return bool(self.of("high"))

    @property
    def passes(self) -> bool:
        return bool(self.judge) and not self.fails

    @property
    def verdict(self) -> Literal["fails", "passes", "no rule fired", "no high finding"]:
        """In a word: rules alone let nothing pass, for they miss most of what is said in prose."""
        if self.fails or self.judge:
            return "fails" if self.fails else "passes"
        return "no high finding" if self.findings else "no rule fired"

    def undoes(self, failed: AuditReport) -> bool:
        """Whether this report does not fail and checked all that a failed one checked."""
        return (
            not self.fails
            and failed.judge in ("", self.judge)
            and (failed.rows is None or (self.rows or 0) >= failed.rows)
            and (self.presidio or not failed.presidio)
        )

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == severity)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "passes": self.passes, "verdict": self.verdict}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> AuditReport:
        """Raises PolicyError for what is no report; `passes` and `verdict` are worked out."""
        kept = {key: value for key, value in tree.items() if key not in ("passes", "verdict")}
        try:
            report = TypeAdapter(AuditReport).validate_python(kept)
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"])) or "the whole"
            message = f"this is no report of an audit: {place}"
            raise PolicyError(message, hint="pco codebook audit REF --json") from None
        if report.format != FORMAT:
            message = f"a report of another format: {report.format!r}"
            raise PolicyError(message, hint="audit the policy again")
        return report


def audit(
    policy: PolicyFile,
    training: Sequence[Example] | None = None,
    presidio: PresidioScan | None = None,
) -> AuditReport:
    """The rule scan of all texts; `training` = compared with these examples too."""
    texts = texts_of(policy)
    copies = NoLeakCheck(training) if training is not None else None
    findings = [f for where, text in texts.items() for f in scan(text, where, copies)]
    findings += [
        Finding(where, "field", "high", 0, 0, repr(where.rpartition(".")[2]), _FIELD)
        for where in policy.beyond_sampling
    ]
    left_out = [_NO_JUDGE] if training is not None else [NO_DATA, _NO_JUDGE]
    if presidio is not None:
        findings += [f for where, text in texts.items() for f in presidio.find(text, where)]
        left_out += presidio.left_out
    found = policy.digest, tuple(texts), _sorted(findings, texts)
    rows, looked = None if training is None else len(training), presidio is not None
    return AuditReport(*found, rows=rows, left_out=tuple(left_out), presidio=looked)


async def audit_with_judge(
    policy: PolicyFile,
    judge: HazardJudge,
    training: Sequence[Example] | None = None,
    presidio: PresidioScan | None = None,
) -> AuditReport:
    """The same, with the hazards that the role `judge` sees. LMError: a text got no verdict."""
    report, texts = audit(policy, training, presidio), texts_of(policy)
    findings = _sorted([*report.findings, *await judge.findings(texts)], texts)
    left_out = tuple(line for line in report.left_out if line != _NO_JUDGE)
    return replace(report, findings=findings, judge=judge.model, left_out=left_out)


def _sorted(findings: Sequence[Finding], texts: Mapping[str, str]) -> tuple[Finding, ...]:
    places = {where: place for place, where in enumerate(texts)}
    first = len(places)  # a field's own finding follows those of texts
    return tuple(
        sorted(findings, key=lambda f: (_ORDER[f.severity], places.get(f.where, first), f.start))
    )


def texts_of(policy: PolicyFile) -> dict[str, str]:
    """Every text of a policy that may reach a model, by its place: also templates that do not come
    with the package, what goes with every request of a role, and measured prompts."""
    texts = {"encoder": policy.encoder, "generator": policy.generator}
    texts |= {variable_name(k): entry.text for k, entry in enumerate(policy.codebook)}
    texts |= {"base_prompt": policy.base_prompt, "output_format": policy.output_format}
    shipped = [load_templates(name) for name in template_sets()]
    for name in ("encoder", "generator"):
        source: str = getattr(policy.templates, name)
        if all(source != known.sources[name] for known in shipped):
            texts[f"templates.{name}"] = source.replace("## system", "").replace("## user", "")
    if all(policy.templates.lines != known.lines for known in shipped):
        lines = asdict(policy.templates.lines)
        texts |= {f"templates.lines.{name}": text for name, text in lines.items()}
    if "{" in policy.input:  # else it is a column's name
        texts["input"] = policy.input
    for role, sampling in policy.sampling.items():
        texts |= _leaves(f"sampling.{role}.extra", sampling.extra)
    for row in MEASURED:
        if isinstance(measured := policy.about.get(row), str):
            texts[f"about.{row}"] = measured
    return {where: text for where, text in texts.items() if text.strip()}


def _leaves(place: str, value: JsonValue) -> dict[str, str]:
    """Every text and every key in a tree, by its place."""
    if isinstance(value, str):
        return {place: value}
    found: dict[str, str] = {}
    if isinstance(value, list):
        for number, inner in enumerate(value):
            found |= _leaves(f"{place}[{number}]", inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            found |= {f"{place}.{key} (the key)": key, **_leaves(f"{place}.{key}", inner)}
    return found
