"""Two theorems beside what was measured: utilisation (Theorem 3) and additivity (Theorem 5)."""

from __future__ import annotations

from promptcodebook.method.statistics import collapsed, utilisation_bound
from promptcodebook.report.context import Column, Context
from promptcodebook.report.figures import count, number
from promptcodebook.report.html import Content, Html, el, together
from promptcodebook.store import Event, Stepped
from promptcodebook.types import Trace

__all__ = ["TheorySection"]


class TheorySection:
    """Keeps the entries that exploration reached, and sums of the residual."""

    title = "Theory beside measurement"
    anchor = "theory"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._explored = 0
        self._reached: set[int] = set()
        self._residuals = 0
        self._sum = 0.0
        self._largest = 0.0

    def see(self, event: Event) -> None:
        if isinstance(event, Stepped):
            for trace in event.step.traces:
                self._trace(trace)

    def _trace(self, trace: Trace) -> None:
        route = trace.rollout.route
        # As in the method's own counts, a failed rollout selects nothing.
        if route is not None and route.explored and trace.unit is not None:
            self._explored += 1
            self._reached.update(route.indices)
        if trace.residual is not None:
            self._residuals += 1
            self._sum += abs(trace.residual)
            self._largest = max(self._largest, abs(trace.residual))

    def html(self) -> Html:
        return together(self._utilisation(), self._additivity())

    def _utilisation(self) -> Html:
        context = self._context
        if context.setting("explore.policy") != "success":
            return el(
                "p.note",
                "Theorem 3 speaks of success-weighted exploration; this run explored otherwise.",
            )
        size, select = len(context.codebook), int(context.setting("select"))
        tau = float(context.setting("explore.tau"))
        narrow = utilisation_bound(size, select, self._explored, tau) if size else 0.0
        wide = utilisation_bound(size, select, self._explored, tau, wide=True) if size else 0.0
        selected = context.state.selected
        active = sum(n > 0 for n in selected)
        rows: list[tuple[Content, ...]] = [
            ("bound, r̄ in [0, 1] as the theorem assumes", number(narrow, 2)),
            ("bound, r̄ in [−1, 1] as r − ρ can be", number(wide, 2)),
            ("measured, explored routes only", count(len(self._reached))),
            ("measured, all routes", count(active)),
        ]
        said = (
            "fewer than half were ever active: collapse" if collapsed(selected) else "no collapse"
        )
        caption = (
            f"Theorem 3: entries expected active after {count(self._explored)} explored examples "
            f"(K = {size}, S = {select}, τ = {tau:g}); by Definition 2, {said}."
        )
        if not selected:
            caption = caption.partition("; by")[0] + "."
        return context.table(caption, (Column("entries", numeric=False), Column("of K")), rows)

    def _additivity(self) -> Html:
        if not self._residuals:
            return el(
                "p.note",
                "No severities were given per channel, so the additivity residual of Theorem 5 "
                "is left out.",
            )
        rows = [
            ("mean of |δ|", number(self._sum / self._residuals)),
            ("largest |δ|", number(self._largest)),
            ("verdicts with severities", count(self._residuals)),
        ]
        return self._context.table(
            "Theorem 5: additivity residual δ = ρ − Σ of the severities by channel.",
            (Column("residual", numeric=False), Column("value")),
            rows,
        )
