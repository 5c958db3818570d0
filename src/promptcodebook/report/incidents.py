"""What went wrong and how often, as counted by our side, and where chains broke."""

from __future__ import annotations

from collections import Counter

from promptcodebook.report.context import Column, Context
from promptcodebook.report.figures import count, shorten
from promptcodebook.report.html import Content, Html, el, together
from promptcodebook.store import Broke, Event, Judged, Stepped, Validated
from promptcodebook.types import Failure, Rollout

__all__ = ["IncidentsSection"]

_MEANS = {
    "rate_limited": "calls the server put off (429)",
    "unavailable": "calls the server put off (503)",
    "server_error": "calls answered with a server error (5xx)",
    "dropped": "connections that broke in the middle of a call",
    "malformed_body": "bodies that were no chat completion",
    "refused_connection": "connections that nothing answered",
    "timeout": "calls that took longer than the timeout",
    "malformed": "replies that were not the JSON asked for",
    "repaired": "replies mended without asking again",
    "faulty": "replies of the right form with a wrong content, such as too few picks",
    "reasked": "replies asked for a second time, quoting the fault",
    "truncated": "replies cut at their length cap",
    "parse_failed": "replies that never became the value asked for",
    "route_repairs": "routes with the wrong picks that were mended",
    "route_fallbacks": "routes filled up with the best-rated instincts",
    "rewrites_refused": "rewrites refused by a check",
    "cache_hits": "replies taken from the cache, not paid for",
    "cache_misses": "calls that the cache held no reply for",
    "cache_bypassed": "times the cache could not be used; the run went on without it",
    "shared_calls": "calls that waited for an equal one and took its reply, paid for once",
    "journal_hits": "replies asked for before in this run and read back, not paid for again",
}


class IncidentsSection:
    """Counts failures by stage and kind; keeps the first traceback."""

    title = "Incidents"
    anchor = "incidents"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self._first: tuple[str, Failure] | None = None
        self._truncated = 0

    def see(self, event: Event) -> None:
        match event:
            case Stepped(step):
                where = f"step {step.index + 1}"
                for trace in step.traces:
                    self._rollout("training", where, trace.rollout)
                    self._failure("training", where, trace.rollout.example_id, trace.failure)
            case Broke(step, traces):
                for trace in traces:
                    self._rollout("training", f"step {step + 1}, which broke", trace.rollout)
            case Validated(step, _, evaluation):
                for rollout in evaluation.rollouts:
                    self._rollout("validation", f"validating step {step + 1}", rollout)
            case Judged(evaluation):
                for rollout in evaluation.rollouts:
                    self._rollout("test", f"judging {evaluation.name}", rollout)
            case _:
                pass

    def _rollout(self, phase: str, where: str, rollout: Rollout) -> None:
        self._truncated += rollout.truncated
        self._failure(phase, where, rollout.example_id, rollout.failure)

    def _failure(self, phase: str, where: str, example: str, failure: Failure | None) -> None:
        if failure is None:
            return
        self._failures[phase, failure.stage, failure.kind] += 1
        if self._first is None:
            self._first = (f"{where}, example {example}", failure)

    def html(self) -> Html:
        return together(self._counts(), self._broken(), self._traceback())

    def _counts(self) -> Html:
        tallies = dict(self._context.tallies)
        known = [(name, tallies.pop(name, 0), words) for name, words in _MEANS.items()]
        others = [(name, n, "") for name, n in sorted(tallies.items())]
        rows: list[tuple[Content, ...]] = [
            (el("code", name), count(n), words) for name, n, words in (*known, *others)
        ]
        rows.append(
            (
                el("code", "truncated outputs"),
                count(self._truncated),
                "answers scored as they stood when they reached the cap",
            )
        )
        columns = (Column("incident", numeric=False), Column("times"), Column("", numeric=False))
        return self._context.table(
            "Counts as counted by our side: each incident when it happened, also those that a "
            "later try made good.",
            columns,
            rows,
        )

    def _broken(self) -> Html:
        if not self._failures:
            return el("p.note", "No rollout failed.")
        columns = (
            Column("phase", numeric=False),
            Column("stage", numeric=False),
            Column("kind", numeric=False),
            Column("times"),
        )
        rows = [(*key, count(n)) for key, n in self._failures.most_common(30)]
        return self._context.table(
            "Chains that broke, by where and why. In training they join no update; at the test "
            "they count as the bottom of the range.",
            columns,
            rows,
        )

    def _traceback(self) -> Html | None:
        if self._first is None:
            return None
        where, failure = self._first
        said = f"{failure.stage}: {failure.kind}: {failure.message}"
        trace = f"{said}\n\n{failure.traceback}" if failure.traceback else said
        return el(
            "details",
            el("summary", f"The first failure ({where})"),
            el("pre", shorten(trace, 6000)),
        )
