"""What the paper's theorems say of one run, beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from promptcodebook.method import state
from promptcodebook.method.state import has_collapsed
from promptcodebook.report.context import Context, Section
from promptcodebook.report.pages import render
from promptcodebook.report.training import router_sections
from promptcodebook.store.events import Event, Stepped
from promptcodebook.units import number

SYMBOLS = (
    ("θ", "the encoder's directive and selection criteria, which choose instincts for an input"),
    ("φ", "the generator's directive and style guide, which compose them into a prompt"),
    ("ψ", "the critic's directive and evaluation criteria"),
    ("C", "the codebook: instincts c0, c1 and so on"),
    ("ρ", "the penalty that a verdict of the critic takes off the reward"),
    ("r̄", "the moving mean of reward minus penalty of an instinct; it may fall below 0"),
    ("ε", "the chance that a route is explored, not chosen"),
)


class TheorySection(Section):
    """The method's symbols, and Theorems 3 (utilisation) and 5 (additivity) beside what was
    measured. Of residuals δ, with ρ(g_ψ) and without: number, sums of δ and |δ|, largest |δ|."""

    title, anchor = "Theory beside measurement", "theory"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._explored = 0
        self._reached: set[int] = set()
        self._residuals = {whole: (0, 0.0, 0.0, 0.0) for whole in (True, False)}

    def add(self, event: Event) -> None:
        for trace in event.step.traces if isinstance(event, Stepped) else ():
            route = trace.rollout.route
            # As in the method's own counts, a failed rollout selects nothing.
            if route is not None and route.explored and trace.unit is not None:
                self._explored += 1
                self._reached.update(route.indices)
            if (delta := trace.residual) is not None:
                whole = "critic" in trace.gradients.severity
                count, total, size, most = self._residuals[whole]
                size, most = size + abs(delta), max(most, abs(delta))
                self._residuals[whole] = count + 1, total + delta, size, most

    def render(self) -> Markup:
        template = "experiments/templates/theory.html.jinja"
        return render(template, context=self.context, **self.values())

    def values(self) -> Mapping[str, Any]:
        context, residuals = self.context, self._residuals
        by_success = context.setting("explore.policy") == "success"
        measured = by_success and not router_sections(context)
        deployed = context.deployed
        return {
            "symbols": SYMBOLS,
            "ema": deployed.statistics.ema if deployed and any(context.state.selected) else (),
            "bounds": self._bounds() if measured else None,
            "explored": self._explored,
            "collapsed": has_collapsed(context.state.selected) if context.state.selected else None,
            "residuals": [
                ("ρ of g θ, g φ, g C and g ψ", *residuals[True]),
                ("ρ of g θ, g φ and g C; that of g ψ was not given", *residuals[False]),
            ],
        }

    def _bounds(self) -> list[tuple[str, str | int]]:
        context = self.context
        size, select = len(context.codebook), int(context.setting("select"))
        tau = float(context.setting("explore.tau"))
        narrow, wide = (
            state.utilisation_bound(size, select, self._explored, tau, wide=wide) if size else 0.0
            for wide in (False, True)
        )
        return [
            ("bound, r̄ in [0, 1] as the theorem assumes", number(narrow, 2)),
            ("bound, r̄ in [−1, 1] as r − ρ can be", number(wide, 2)),
            ("measured, explored routes only", len(self._reached)),
            ("measured, all routes", sum(n > 0 for n in context.state.selected)),
        ]
