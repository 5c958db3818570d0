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
from promptcodebook.report.pages import render
from promptcodebook.store.header import has_simulated
from promptcodebook.store.runs import run_folders
from promptcodebook.viewer.following import OpenRuns, key_of
from promptcodebook.viewer.page import SOME_SIMULATED, Screen

_MOST = 500
"""Entries of the log shown."""
_SERVED_S = 5.0
"""How often a registry on a server is asked: others ask it too."""


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
    latest = {entry.ref: entry for entry in entries if entry.ref}
    simulated = {each.version for each in versions if _simulated(each)}
    body = render(
        "viewer/templates/registry.html.jinja",
        place=registry.storage.place,
        refs=[
            (ref, version, latest[ref], registry.before(ref) or "")
            for ref, version in registry.refs().items()
        ],
        versions=versions[::-1],
        simulated=simulated,
        audits=_audits(entries),
        runs={key_of(open_runs.runs_dir, path) for path in run_folders(open_runs.runs_dir)},
        log=[(entry, _beside(entry)) for entry in entries[::-1][:_MOST]],
        count=len(entries),
    )
    said = SOME_SIMULATED if simulated else ""
    return Screen("Registry", body, live="/live/registry", mark=mark, simulated=said)


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


def _simulated(version: Version) -> bool:
    return has_simulated(version.facts.get("configuration"))


def _beside(entry: Entry) -> str:
    """What the entry says of the gate that a promotion passed, or passed by."""
    known = entry.known
    if "override" in known:
        return f"override: {known['override']} ({known.get('refused', '')})"
    audited: Any = known.get("audited") or ()
    alone = " (without a judge)" if known.get("without_judge") else ""
    return f"audited: {', '.join(map(str, audited))}{alone}" if audited else ""
