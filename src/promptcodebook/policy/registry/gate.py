"""What a version must have passed before a ref is moved to it: an audit that found nothing high.

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

__all__ = ["AUDIT", "AuditGate", "Gate"]

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
    """The newest report of each judge must pass, that of the rules alone too: an audit that was
    failed is not undone by one which looks at less.

    `attestations` are what was attested of a version under a topic, in order.
    """

    attestations: Callable[[str, str], Sequence[Mapping[str, Any]]]

    def __call__(self, version: Version, policy: PolicyFile, ref: str) -> Mapping[str, JsonValue]:
        reports = _reports(self.attestations(version.version, AUDIT))
        newest = {report.judge: report for report in reports if report.policy == policy.digest}
        audit = f"pco codebook audit {version.version[:19]}"
        if not newest:
            raise PromotionRefused(
                f"{version.version[:19]} was never audited, and {ref} stays where it is",
                hint=f"{audit}, then promote it; or --override REASON",
            )
        for report in newest.values():
            if not report.passes:
                worst = report.of("high")
                judge = f" as {report.judge} judges it" if report.judge else ""
                raise PromotionRefused(
                    f"{version.version[:19]} failed its audit{judge}: {worst[0].kind} in "
                    f"{worst[0].where}"
                    + (f", and {len(worst) - 1} more" if worst[1:] else "")
                    + f"; {ref} stays where it is",
                    hint=f"{audit} shows what was found; --override REASON moves it all the same",
                )
        return {"audited": [judge or "rules" for judge in newest]}


def _reports(found: Sequence[Mapping[str, Any]]) -> list[AuditReport]:
    """Those that can be read: one in another version's form counts as no audit."""
    reports: list[AuditReport] = []
    for tree in found:
        with suppress(PolicyError):
            reports.append(AuditReport.from_json(tree))
    return reports
