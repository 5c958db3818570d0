"""A served ref as its requests come in: what they earn, their routes, its canary, and drift."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from types import SimpleNamespace

from promptcodebook.base.text import shell
from promptcodebook.deploy.online.log import Traffic, open_log
from promptcodebook.deploy.online.status import Status, facts, status_of
from promptcodebook.deploy.registry.registry import open_registry
from promptcodebook.deploy.viewer.page import Screen, missing
from promptcodebook.report.pages import Chart, ChartLine, Picture, address, draw, render

_DAY_S = 86400.0
_LEAST_S, _REST = 2.0, 20
_CONTEXT = SimpleNamespace(simulated=False, source="pco view")


class ServedRefs:
    """From any thread; a twentieth of the time at most goes into looking."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, list[Status], list[Traffic]]] = {}
        self._lock = threading.Lock()

    def _look(self, ref: str) -> tuple[list[Status], list[Traffic]]:
        """Of one ref with its hours, or of all ('') without."""
        with self._lock:
            began = time.monotonic()
            until, found, hours = self._kept.get(ref, (0.0, [], []))
            if began >= until:
                with closing(open_log()) as log, open_registry() as registry:
                    refs = [each for each in log.refs() if ref in ("", each)]
                    now = time.time()
                    hours = log.traffic(ref, now - _DAY_S, now) if ref else []
                    found = [status_of(log, registry, each, _DAY_S) for each in refs]
                ended = time.monotonic()
                rest = max(_LEAST_S, _REST * (ended - began))
                self._kept[ref] = ended + rest, found, hours
            return found, hours

    def mark(self, ref: str = "") -> str:
        """Changes whenever the screen would."""
        said = repr(self._look(ref)).encode("utf-8", "replace")
        return hashlib.sha256(said).hexdigest()[:16]

    def screen(self, ref: str = "") -> Screen:
        """All served refs, or one with the course of its last day."""
        mark = self.mark(ref)  # before the rest: a page may be newer than it says, never older
        found, hours = self._look(ref)
        if ref and not found:
            return missing(
                f"No request to {ref} is on record.", f"pco serve {shell(ref)} --feedback"
            )
        body = render(
            "deploy/viewer/templates/served.html.jinja",
            context=_CONTEXT,
            ref=ref,
            refs=[(each.ref, facts(each)) for each in found],
            charts=_charts(hours) if ref else {},
        )
        above, live = ([("Served", "/served")], address("served", ref)) if ref else ([], "/served")
        return Screen(ref or "Served", body, above, live=f"/live{live}", mark=mark)


def _charts(hours: Sequence[Traffic]) -> dict[str, Picture | None]:
    at = {min(23, max(0, 23 - int(each.of))): each for each in hours}

    def line(name: str, value: Callable[[Traffic], float], look: str = "main") -> ChartLine:
        rows = sorted(at.items())
        return ChartLine(name, [(n - 23.0, value(each) / each.requests) for n, each in rows], look)

    shares = [
        line("failed", lambda each: each.failed),
        line("explored", lambda each: each.explored, "second"),
        line("canary", lambda each: each.canary, "third"),
    ]
    counts = [(n - 23.0, float(at[n].requests) if n in at else 0.0) for n in range(24)]
    requests = [ChartLine("requests", counts)]
    means = [(n - 23.0, e.reward / e.feedback) for n, e in sorted(at.items()) if e.feedback]
    reward, x, share = [ChartLine("reward", means, "main")], "hours from now", (0.0, 1.0)
    return {
        "Requests in each hour.": draw(Chart("Requests", x, requests)),
        "Mean reward of an hour's feedback.": draw(Chart("Reward", x, reward, y=share)),
        "Shares of each hour's requests.": draw(Chart("Shares", x, shares, y=share)),
    }
