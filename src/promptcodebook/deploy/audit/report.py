"""The audit of a policy: every text of it that reaches a model, scanned and, if asked for, judged.
The role `judge` reads each text and names the hazards that it causes. Its prompt (judge.md,
hazards.toml) belongs to no set of templates: the author of a policy's templates must not write what
the policy is audited by. A model that fails on plain texts judges no others."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, reduce
from importlib import resources
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError

from promptcodebook.base.text import shipped_table
from promptcodebook.calls import Request, Schema
from promptcodebook.errors import ConfigError, LMError, PolicyError
from promptcodebook.lm.structured import Ask, LenientText, ReplyShape
from promptcodebook.method.failures import gather_all
from promptcodebook.method.rewrite_checks import NoLeakCheck
from promptcodebook.method.templates import CodebookLines, Template, load_templates, template_sets
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.scan import Finding, Severity, excerpt, scan
from promptcodebook.types import Example


@dataclass(frozen=True, slots=True)
class Hazard:
    code: str
    title: str
    about: str


@cache
def hazards() -> Mapping[str, Hazard]:
    return {each["code"]: Hazard(**each) for each in _tree()["hazards"]}


def _tree() -> Mapping[str, Any]:
    return shipped_table(__file__, "hazards.toml")


def _read(name: str) -> str:
    return (resources.files("promptcodebook.deploy.audit") / name).read_text("utf-8")


def _read_severity(value: object) -> str:
    word = str(value).strip().lower()
    return word if word in ("medium", "low") else "high"


def _read_code(value: object) -> str:
    """By code or by title; what is neither stays as it is, to be asked about."""
    word = str(value).strip().lower()
    return next((h.code for h in hazards().values() if word in (h.code, h.title)), word)


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
    body = json.loads(_read("reply.json"))
    claim = body["properties"]["findings"]["items"]
    claim["properties"]["hazard"]["enum"] = list(hazards())
    return Schema("HazardsReply", body)


async def judge_weakness(ask: Ask) -> str | None:
    """What `pco doctor` says of the model of the role judge; None = it carries the role."""
    weak = await HazardJudge(ask, "").weakness()
    return f"weak: {weak}" if weak else None


_MISTAKES = 1  # the number of the six plain texts that a judge may take wrong


class HazardJudge:
    """Asks the role `judge` about texts, each by itself; `model` is who that is."""

    def __init__(self, ask: Ask, model: str) -> None:
        self._ask = ask
        self.model = model
        self._template = Template(_read("judge.md"))

    async def weakness(self) -> str:
        """Why the model is too weak to judge, by plain texts; '' = it is not. Raises LMError."""
        plain = _tree()["plain"]
        asked = [self._is_wrong(text, kind) for kind in plain for text in plain[kind]]
        wrong = sum(await gather_all(asked))
        message = f"it misjudges {wrong} of {len(asked)} texts that are plainly harmful or harmless"
        return message if wrong > _MISTAKES else ""

    async def _is_wrong(self, text: str, kind: str) -> bool:
        try:
            grave = {finding.severity for finding in await self._judge("c0", text)}
        except LMError as error:
            if not error.answered:
                raise
            return True
        return not grave & {"high", "medium"} if kind == "harmful" else "high" in grave

    async def findings(self, texts: Mapping[str, str]) -> list[Finding]:
        """What it sees in each text. Raises LMError for one that got no verdict."""
        found = await gather_all([self._judge(where, text) for where, text in texts.items()])
        return [finding for each in found for finding in each]

    async def _judge(self, where: str, text: str) -> list[Finding]:
        listed = "\n".join(f"- {h.code} ({h.title}): {h.about}" for h in hazards().values())
        what = _tree()["kinds"].get(where.rstrip("0123456789"), "a prompt")
        # As JSON, so that nothing in the text can pass for the end of it.
        values = {"what": what, "hazards": listed, "text": json.dumps(text, ensure_ascii=True)}

        def unknown(reply: HazardsReply) -> str | None:
            codes = [claim.hazard for claim in reply.findings if claim.hazard not in hazards()]
            return f"hazard: {codes[0]!r} is not one of {', '.join(hazards())}" if codes else None

        messages = self._template.fill(values)
        request = Request(role="judge", messages=messages, schema=hazards_schema(), greedy=True)
        findings: list[Finding] = []
        for claim in (await self._ask.typed(request, HazardsReply, unknown)).value.findings:
            # At the words quoted, else the whole text.
            at = text.casefold().find(claim.quote.casefold()) if claim.quote else -1
            start, end = (at, at + len(claim.quote)) if 0 <= at < len(text) else (0, len(text))
            kind, grave, quote = claim.hazard, claim.severity, excerpt(text[start:end])
            reason = claim.reason or f"it belongs to the category {kind_in_words(kind)}"
            findings.append(Finding(where, kind, grave, start, end, quote, reason, "judge"))
        return findings


FORMAT = "promptcodebook audit 1"
NO_DATA = "copies of training data: there was no data to compare with"
_NO_JUDGE = "hazards: no model judged the texts; name a real one with --lm URL#MODEL"
_FIELD = "it is sent with every request, and affects more than sampling"
_ORDER: Mapping[Severity, int] = {"high": 0, "medium": 1, "low": 2}


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found in a policy of that digest, gravest first. `texts` are the places
    searched, `judge` the model that judged hazards ('' = none), `rows` the training examples
    compared with, `left_out` what was not searched for and why."""

    policy: str
    texts: tuple[str, ...]
    findings: tuple[Finding, ...]
    judge: str = ""
    rows: int | None = None
    left_out: tuple[str, ...] = ()
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
            message = f"this is not an audit report: {place}"
            raise PolicyError(message, hint="pco registry audit REF --json") from None
        if report.format != FORMAT:
            message = f"a report in a different format: {report.format!r}"
            raise PolicyError(message, hint="audit the policy again")
        return report


def audit(policy: PolicyFile, training: Sequence[Example] | None = None) -> AuditReport:
    """Scan all texts of a policy by rules; no model is asked.

    - `policy`: the policy file, such as `run.policy.file`.
    - `training`: examples that the texts are compared with too. None: they are compared with none.

    The report has `.findings`, `.fails`, and in `.left_out` what was not looked for.

    Raises no error of its own."""
    texts = texts_of(policy)
    copies = NoLeakCheck(training) if training is not None else None
    findings = [f for where, text in texts.items() for f in scan(text, where, copies)]
    findings += [
        Finding(where, "field", "high", 0, 0, repr(where.rpartition(".")[2]), _FIELD)
        for where in policy.beyond_sampling
    ]
    left_out = [_NO_JUDGE] if training is not None else [NO_DATA, _NO_JUDGE]
    return AuditReport(
        policy.digest,
        tuple(texts),
        _sorted(findings, texts),
        rows=None if training is None else len(training),
        left_out=tuple(left_out),
    )


async def audit_with_judge(
    policy: PolicyFile, judge: HazardJudge, training: Sequence[Example] | None = None
) -> AuditReport:
    """The same, with the hazards that `judge` sees. Raises LMError without a verdict, and
    ConfigError for a model that is too weak."""
    if weak := await judge.weakness():
        hint = "name a stronger judge: --set roles.judge.model=SPEC; or use --rules-only"
        raise ConfigError(f"{judge.model} is too weak to judge hazards: {weak}", hint=hint)
    report, texts = audit(policy, training), texts_of(policy)
    findings = _sorted([*report.findings, *await judge.findings(texts)], texts)
    left_out = tuple(line for line in report.left_out if line != _NO_JUDGE)
    return replace(report, findings=findings, judge=judge.model, left_out=left_out)


def _sorted(findings: Sequence[Finding], texts: Mapping[str, str]) -> tuple[Finding, ...]:
    places = {where: place for place, where in enumerate(texts)}
    first = len(places)  # a field's own finding follows those of texts
    return tuple(
        sorted(findings, key=lambda f: (_ORDER[f.severity], places.get(f.where, first), f.start))
    )


# Fields of a policy that no model reads, and two that are read in part.
_UNREAD = ("format", "program", "compose", "router", "sampling", "about")
# What a policy says about itself that is no prompt.
_FACTS = ("data", "run", "version", "score", "distilled", "learned")
_FIRST = ("encoder", "generator", "codebook")


def texts_of(policy: PolicyFile) -> dict[str, str]:
    """Every text of a policy that may reach a model, by its place, without our own templates."""
    fields = {name: getattr(policy, name) for name in type(policy).model_fields}
    order = sorted(fields.keys() - {*_UNREAD, *_FIRST}, key=list(fields).index)
    read: dict[str, object] = {name: fields[name] for name in (*_FIRST, *order)}
    read |= {f"sampling.{role}": sampling for role, sampling in policy.sampling.items()}
    read |= {f"about.{key}": text for key, text in policy.about.items() if key not in _FACTS}
    if "{" not in policy.input:
        del read["input"]  # a column's name
    sets = (type(policy.templates).of(load_templates(name)) for name in template_sets())
    shipped = {pair for each in sets for pair in _leaves("templates", each).items()}
    found: dict[str, str] = {}
    for place, value in read.items():
        for where, text in _leaves(place, value).items():
            if where.startswith("templates."):
                text = "" if (where, text) in shipped else re.sub("## (system|user)", "", text)
            if text.strip():
                found[re.sub(r"^codebook\[(\d+)\](\.text$)?", r"c\1", where)] = text
    return found


def _leaves(place: str, value: object) -> dict[str, str]:
    """Every text in a tree by its place, and every key that is not the name of a field."""
    if isinstance(value, str):
        return {place: value}
    parts, keys = dict[str, object](), dict[str, str]()
    if isinstance(value, BaseModel):
        parts = {f"{place}.{name}": getattr(value, name) for name in type(value).model_fields}
    elif isinstance(value, CodebookLines):
        parts = {f"{place}.{name}": text for name, text in asdict(value).items()}
    elif isinstance(value, Mapping):
        tree = cast("Mapping[str, object]", value)
        keys = {f"{place}.{key} (the key)": key for key in tree}
        parts = {f"{place}.{key}": inner for key, inner in tree.items()}
    elif isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        parts = {f"{place}[{number}]": inner for number, inner in enumerate(items)}
    inner = (_leaves(where, each) for where, each in parts.items())
    return reduce(lambda found, more: found | more, inner, keys)


def part_in_words(where: str) -> str:
    """What a place of `texts_of` is called in a sentence."""
    matches = ((re.fullmatch(pattern, where), words) for pattern, words in _tree()["parts"].items())
    return next((found.expand(words) for found, words in matches if found), where)


def kind_in_words(kind: str) -> str:
    """The title of a hazard, for which a finding has a code; any other kind is a word."""
    return hazards()[kind].title if kind in hazards() else kind
