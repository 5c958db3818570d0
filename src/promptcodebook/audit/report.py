"""The audit of a policy: every text of it that reaches a model, scanned and, if asked for, judged.

report = audit(policy_file)                    rules alone, no model
report = await audit_with_judge(policy_file, judge, ...)
report.verdict                    "fails", "passes"; without a judge "no rule fired" at best
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from pydantic import JsonValue, TypeAdapter, ValidationError

from promptcodebook.audit.judge import HazardJudge, PresidioScan
from promptcodebook.errors import PolicyError
from promptcodebook.method.templates import load_templates, template_sets
from promptcodebook.method.update import NoLeakCheck
from promptcodebook.policy.file import MEASURED, PolicyFile
from promptcodebook.policy.scan import Finding, scan
from promptcodebook.policy.traces import Severity
from promptcodebook.types import Example, variable_name

FORMAT = "promptcodebook audit 1"
NO_DATA = "copies of training data: no data were at hand to compare with"
_NO_JUDGE = "hazards: no model judged the texts"
_FIELD = "it goes with every request, and decides more than how replies are drawn"
_ORDER: Mapping[Severity, int] = {"high": 0, "medium": 1, "low": 2}


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found in a policy of that digest, gravest first.

    `texts` are the places looked at, `judge` the model that judged hazards ('' = none did), `rows`
    the training examples compared with (None = no data), `left_out` what was not looked for and
    why, a line each; `presidio` = it looked for personal data, too.
    """

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
        """Whether something of high severity was found."""
        return bool(self.of("high"))

    @property
    def passes(self) -> bool:
        """Whether a model judged the texts and nothing of high severity was found."""
        return bool(self.judge) and not self.fails

    @property
    def verdict(self) -> Literal["fails", "passes", "no rule fired", "no high finding"]:
        """The audit in a word: the rules alone let nothing pass, for they miss most of what is
        said in prose."""
        if self.fails:
            return "fails"
        if self.judge:
            return "passes"
        return "no high finding" if self.findings else "no rule fired"

    def undoes(self, failed: AuditReport) -> bool:
        """Whether this report does not fail and looked at all that a failed one looked at."""
        return (
            not self.fails
            and failed.judge in ("", self.judge)
            and (failed.rows is None or (self.rows or 0) >= failed.rows)
            and (self.presidio or not failed.presidio)
        )

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of that severity."""
        return tuple(finding for finding in self.findings if finding.severity == severity)

    def to_json(self) -> dict[str, Any]:
        """Plain values; `passes` and `verdict` among them for a reader without this library."""
        return {**asdict(self), "passes": self.passes, "verdict": self.verdict}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> AuditReport:
        """Raises PolicyError for what is no report; `passes` and `verdict` are worked out."""
        kept = {key: value for key, value in tree.items() if key not in ("passes", "verdict")}
        try:
            report = TypeAdapter(AuditReport).validate_python(kept)
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"])) or "the whole"
            raise PolicyError(
                f"this is no report of an audit: {place}", hint="pco codebook audit REF --json"
            ) from None
        if report.format != FORMAT:
            raise PolicyError(
                f"a report of another format: {report.format!r}", hint="audit the policy anew"
            )
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
    rows = len(training) if training is not None else None
    sorted_ = _sorted(findings, texts)
    return AuditReport(
        policy.digest,
        tuple(texts),
        sorted_,
        rows=rows,
        left_out=tuple(left_out),
        presidio=presidio is not None,
    )


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
    """By severity, then in the order of the texts."""
    places = {where: place for place, where in enumerate(texts)}
    first = len(places)  # a field's own finding stands behind those of texts
    return tuple(
        sorted(findings, key=lambda f: (_ORDER[f.severity], places.get(f.where, first), f.start))
    )


def texts_of(policy: PolicyFile) -> dict[str, str]:
    """Every text of a policy that may reach a model, by its place: θ, φ, the instincts, the prompt
    before all others, templates that do not come with the package, the input's template, what goes
    with every request of a role, and measured prompts."""
    texts = {"encoder": policy.encoder, "generator": policy.generator}
    texts |= {variable_name(k): entry.text for k, entry in enumerate(policy.codebook)}
    texts |= {"base_prompt": policy.base_prompt, "output_format": policy.output_format}
    texts |= _own_templates(policy)
    if "{" in policy.input:  # else it is a column's name
        texts["input"] = policy.input
    for role, sampling in policy.sampling.items():
        texts |= _leaves(f"sampling.{role}.extra", sampling.extra)
    for row in MEASURED:
        if isinstance(measured := policy.about.get(row), str):
            texts[f"about.{row}"] = measured
    return {where: text for where, text in texts.items() if text.strip()}


def _own_templates(policy: PolicyFile) -> dict[str, str]:
    shipped = [load_templates(name) for name in template_sets()]
    texts: dict[str, str] = {}
    for name in ("encoder", "generator"):
        source: str = getattr(policy.templates, name)
        if all(source != known.sources[name] for known in shipped):
            texts[f"templates.{name}"] = source.replace("## system", "").replace("## user", "")
    if all(policy.templates.lines != known.lines for known in shipped):
        lines = asdict(policy.templates.lines)
        texts |= {f"templates.lines.{name}": text for name, text in lines.items()}
    return texts


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
