"""The registry: where every ref stands, the versions, what was done and what audits found."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from promptcodebook.audit.report import AuditReport
from promptcodebook.errors import PolicyError
from promptcodebook.registry.log import ATTEST, Entry
from promptcodebook.registry.registry import AUDIT, Registry, Version, open_registry
from promptcodebook.report.html import MISSING, Column, Content, Html, el, table, together
from promptcodebook.store.header import has_simulated
from promptcodebook.store.runs import run_folders
from promptcodebook.units import number, plural
from promptcodebook.viewer.following import OpenRuns, key_of
from promptcodebook.viewer.page import SOME_SIMULATED, Screen, address, filter_box, link

_DIGITS, _MOST = 19, 500
"""Of a version's name where it is shown; entries of the log shown."""
_SERVED_S = 5.0
"""How often a registry on a server is asked: others ask it too."""
_REFS = (
    Column("ref", numeric=False),
    Column("stands at", numeric=False),
    Column("moved", numeric=False),
    Column("by", numeric=False),
    Column("before", numeric=False),
)
_VERSIONS = (
    Column("version", numeric=False),
    Column("run", numeric=False),
    Column("step"),
    Column("validation"),
    Column("stored", numeric=False),
    Column("by", numeric=False),
    Column("refs", numeric=False),
    Column("audit", numeric=False),
)
_LOG = (
    Column("#"),
    Column("time", numeric=False),
    Column("who", numeric=False),
    Column("what", numeric=False),
    Column("ref", numeric=False),
    Column("version", numeric=False),
    Column("why", numeric=False),
    Column("beside", numeric=False),
)


class Versions:
    """The registry as it is looked at: opened once, and only what came since is read again."""

    def __init__(self) -> None:
        self._registry: Registry | None = None
        self._asked = 0.0
        self._mark = ""
        self._lock = threading.Lock()

    def mark(self) -> str:
        """Changes whenever the screen would. Raises PcoError where it cannot be read."""
        with self._lock:
            if self._registry is None:
                self._registry = open_registry()
            registry = self._registry
            remote = registry.storage.place.startswith("http")
            if not remote or time.monotonic() - self._asked > _SERVED_S:
                self._mark = registry.storage.read().head
                self._asked = time.monotonic()
            return self._mark

    def screen(self, open_runs: OpenRuns) -> Screen:
        """All of it, as it is now."""
        mark = self.mark()  # before the rest: a page may be newer than it says, never older
        with open_registry() as registry:
            return _screen(registry, open_runs, mark)

    def close(self) -> None:
        with self._lock:
            if self._registry is not None:
                self._registry.close()
                self._registry = None


def _screen(registry: Registry, open_runs: OpenRuns, mark: str) -> Screen:
    versions, entries = registry.versions(), registry.history()
    place = registry.storage.place
    live = address("live", "registry")
    if not versions:
        body = together(
            el("p.empty", f"There is no version in the registry {place}."),
            el("p.note", "Next: ", el("code", "pco codebook freeze RUN NAME")),
        )
        return Screen("Registry", body, live=live, mark=mark)
    audits = _audits(entries)
    runs = {key_of(open_runs.runs_dir, path) for path in run_folders(open_runs.runs_dir)}
    body = together(
        el("p.note", place),
        filter_box("the registry"),
        el("section", el("h2", "Refs"), _refs(registry, entries)),
        el("section", el("h2", "Versions"), _versions(versions, audits, runs)),
        el("section", el("h2", "Audit findings"), _findings(audits)),
        el("section", el("h2", "What was done"), _log(entries)),
    )
    said = SOME_SIMULATED if any(map(_simulated, versions)) else ""
    return Screen("Registry", body, live=live, mark=mark, simulated=said)


def _short(version: str) -> Html:
    return el("code", version[:_DIGITS]) if version else el("span", MISSING)


def _refs(registry: Registry, entries: Sequence[Entry]) -> Html:
    latest = {entry.ref: entry for entry in entries if entry.ref}
    rows: list[tuple[Content, ...]] = [
        (
            el("b", ref),
            _short(version),
            latest[ref].time,
            f"{latest[ref].who} ({latest[ref].action})",
            _short(registry.before(ref) or ""),
        )
        for ref, version in registry.refs().items()
    ]
    return table(_REFS, rows)


def _audits(entries: Sequence[Entry]) -> dict[str, list[AuditReport]]:
    """The reports that can be read, by version, in order."""
    found: dict[str, list[AuditReport]] = {}
    for entry in entries:
        known = entry.known
        if entry.action == ATTEST and known.get("topic") == AUDIT:
            try:
                report = AuditReport.from_json(known["found"])
            except (PolicyError, KeyError, AttributeError):
                continue  # of another version's form
            found.setdefault(entry.after, []).append(report)
    return found


def _versions(
    versions: Sequence[Version], audits: dict[str, list[AuditReport]], runs: set[str]
) -> Html:
    rows: list[tuple[Content, ...]] = []
    for each in versions[::-1]:
        run, step = (each.facts.get(key) for key in ("run", "step"))
        reports = audits.get(each.version, [])
        verdicts = [report.verdict for report in reports]
        rows.append(
            (
                _short(each.version),
                link(str(run), "run", str(run), look=".stop")
                if run in runs
                else str(run or MISSING),
                str(step) if step is not None else MISSING,
                _score(each),
                each.time,
                each.who,
                ", ".join(each.refs) or MISSING,
                ", then ".join(verdicts) or "never audited",
            )
        )
    return table(_VERSIONS, rows)


def _simulated(version: Version) -> bool:
    return has_simulated(version.facts.get("configuration"))


def _score(version: Version) -> Content:
    score = version.facts.get("score")
    if not isinstance(score, int | float):
        return MISSING
    badge = el("span.badge", "simulated") if _simulated(version) else None
    return together(number(score), badge)


def _findings(audits: dict[str, list[AuditReport]]) -> Html:
    parts: list[Content] = []
    for version, reports in audits.items():
        for report in reports:
            items = [
                el(
                    "li",
                    el("b", f"{finding.severity}: {finding.kind} in {finding.where}"),
                    el("blockquote", finding.quote),
                    el("p.note", finding.reason),
                )
                for finding in report.findings
            ]
            head = f"{version[:_DIGITS]}: {report.verdict}, {plural(len(items), 'finding')}"
            parts.append(
                el(
                    "details.found",
                    el("summary", el("span.what", head)),
                    el("ul", items) if items else el("p.empty", "Nothing was found."),
                )
            )
    return together(parts) if parts else el("p.empty", "No version was audited.")


def _log(entries: Sequence[Entry]) -> Html:
    shown = entries[::-1][:_MOST]
    rows: list[tuple[Content, ...]] = [
        (
            entry.seq,
            entry.time,
            entry.who,
            entry.action,
            entry.ref or MISSING,
            together(_short(entry.before), " → ", _short(entry.after))
            if entry.before and entry.before != entry.after
            else _short(entry.after),
            entry.why,
            _beside(entry),
        )
        for entry in shown
    ]
    note = f"{plural(len(shown), 'entry', 'entries')} of {len(entries):,}, the latest first."
    return together(el("p.note", note), table(_LOG, rows))


def _beside(entry: Entry) -> str:
    """What the entry says of the gate that a promotion passed, or passed by."""
    known = entry.known
    if "override" in known:
        return f"override: {known['override']} ({known.get('refused', '')})"
    audited: Any = known.get("audited") or ()
    alone = " (without a judge)" if known.get("without_judge") else ""
    return f"audited: {', '.join(map(str, audited))}{alone}" if audited else ""
