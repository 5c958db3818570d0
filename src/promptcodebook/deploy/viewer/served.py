"""A served ref as its requests come in: what they earn, their routes, its canary, and drift."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from types import SimpleNamespace

from promptcodebook.deploy.online.canary import failed
from promptcodebook.deploy.online.log import Logged, open_log
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
        self._kept: dict[str, tuple[float, list[Status], list[Logged]]] = {}
        self._lock = threading.Lock()

    def _look(self, ref: str) -> tuple[list[Status], list[Logged]]:
        """Of one ref, or of all ('') without their requests."""
        with self._lock:
            began = time.monotonic()
            until, found, logged = self._kept.get(ref, (0.0, [], []))
            if began >= until:
                with closing(open_log()) as log, open_registry() as registry:
                    refs = [each for each in log.refs() if ref in ("", each)]
                    logged = log.logged(ref, time.time() - _DAY_S) if ref else []
                    found = [status_of(log, registry, each, _DAY_S) for each in refs]
                ended = time.monotonic()
                rest = max(_LEAST_S, _REST * (ended - began))
                self._kept[ref] = ended + rest, found, logged
            return found, logged

    def mark(self, ref: str = "") -> str:
        """Changes whenever the screen would."""
        found, logged = self._look(ref)
        rewarded = sum(each.reward or 0 for each in logged)
        said = repr((found, len(logged), rewarded)).encode("utf-8", "replace")
        return hashlib.sha256(said).hexdigest()[:16]

    def screen(self, ref: str = "") -> Screen:
        """All served refs, or one with the course of its last day."""
        mark = self.mark(ref)  # before the rest: a page may be newer than it says, never older
        found, logged = self._look(ref)
        if ref and not found:
            return missing(f"No request to {ref} is on record.", f"pco serve {ref} --feedback")
        body = render(
            "deploy/viewer/templates/served.html.jinja",
            context=_CONTEXT,
            ref=ref,
            refs=[(each.ref, facts(each)) for each in found],
            charts=_charts(logged, time.time()) if ref else {},
        )
        above, live = ([("Served", "/served")], address("served", ref)) if ref else ([], "/served")
        return Screen(ref or "Served", body, above, live=f"/live{live}", mark=mark)


def _charts(logged: Sequence[Logged], now: float) -> dict[str, Picture | None]:
    hours: list[list[Logged]] = [[] for _ in range(24)]
    for each in logged:
        hours[max(0, 23 - int((now - each.served.time) / 3600))].append(each)

    def line(name: str, value: Callable[[Logged], float | None], look: str = "main") -> ChartLine:
        rows = [[x for each in hour if (x := value(each)) is not None] for hour in hours]
        return ChartLine(name, [(n - 23.0, sum(r) / len(r)) for n, r in enumerate(rows) if r], look)

    shares = [
        line("failed", lambda each: failed(each.served)),
        line("fallbacks", lambda each: each.served.fallback, "second"),
        line("canary", lambda each: each.served.arm == "canary", "third"),
    ]
    requests = [
        ChartLine("requests", [(n - 23.0, float(len(hour))) for n, hour in enumerate(hours)])
    ]
    reward, x, share = [line("reward", lambda each: each.reward)], "hours from now", (0.0, 1.0)
    return {
        "Requests in each hour.": draw(Chart("Requests", x, requests)),
        "Mean reward of an hour's feedback.": draw(Chart("Reward", x, reward, y=share)),
        "Shares of each hour's requests.": draw(Chart("Shares", x, shares, y=share)),
    }
