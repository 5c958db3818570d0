"""What a version must have passed before a ref is moved to it: an audit that found nothing high,
with a model as judge, unless the promotion says that it goes without one.

The audit's reports lie in the registry's log, as what was attested of the version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import JsonValue

from promptcodebook.errors import PolicyError, PromotionRefused
from promptcodebook.policy.audit.report import AuditReport
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.registry.version import Version

AUDIT = "audit"
"""The topic under which reports are attested."""


class Gate(Protocol):
    """What a version must pass before a ref is moved to it; a rollback passes none.

    Returns what the log's entry is to say of it (JSON values). Raises PromotionRefused.
    """

    def __call__(
        self, version: Version, policy: PolicyFile, ref: str
    ) -> Mapping[str, JsonValue]: ...


@dataclass(frozen=True, slots=True)
class AuditGate:
    """What an audit found to be high stands against the version, until a later audit that looked
    at as much finds nothing of that kind.

    `attestations` are what was attested of a version under a topic, in order. `without_judge` =
    audits by the rules alone are enough, and the log's entry says so.
    """

    attestations: Callable[[str, str], Sequence[Mapping[str, Any]]]
    without_judge: bool = False

    def __call__(self, version: Version, policy: PolicyFile, ref: str) -> Mapping[str, JsonValue]:
        found = _reports(self.attestations(version.version, AUDIT))
        reports = [report for report in found if report.policy == policy.digest]
        audit = f"pco codebook audit {version.version[:19]}"
        if not reports:
            raise PromotionRefused(
                f"{version.version[:19]} was never audited, and {ref} stays where it is",
                hint=f"{audit}, then promote it; or --override REASON",
            )
        for place, report in enumerate(reports):
            later = reports[place + 1 :]
            if report.fails and not any(each.undoes(report) for each in later):
                raise PromotionRefused(
                    f"{version.version[:19]} failed its audit{_where(report)}; {ref} stays where "
                    "it is",
                    hint=f"{audit} shows what was found; --override REASON moves it all the same",
                )
        audited: list[JsonValue] = []
        audited += dict.fromkeys(r.judge or "rules" for r in reports if not r.fails)
        if any(report.passes for report in reports):
            return {"audited": audited}
        if not self.without_judge:
            raise PromotionRefused(
                f"no model judged {version.version[:19]}, the rules alone miss most harm in prose, "
                f"and {ref} stays where it is",
                hint=f"{audit} --lm URL#MODEL asks a judge; --without-judge goes by the rules",
            )
        return {"audited": audited, "without_judge": True}


def _where(report: AuditReport) -> str:
    worst = report.of("high")
    judge = f" as {report.judge} judges it" if report.judge else ""
    more = f", and {len(worst) - 1} more" if worst[1:] else ""
    return f"{judge}: {worst[0].kind} in {worst[0].where}{more}"


def _reports(found: Sequence[Mapping[str, Any]]) -> list[AuditReport]:
    """Those that can be read: one in another version's form counts as no audit."""
    reports: list[AuditReport] = []
    for tree in found:
        with suppress(PolicyError):
            reports.append(AuditReport.from_json(tree))
    return reports
