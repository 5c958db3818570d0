"""Tables and figures of `pco reproduce` as they were measured here, and the paper's own numbers
beside them, each under its own metric. And what the paper's theorems say of one run."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from markupsafe import Markup
from pydantic import BaseModel, ValidationError, model_validator

from promptcodebook.errors import StoreError
from promptcodebook.experiments.page import as_printed, explained, published
from promptcodebook.experiments.reproduce import experiment_named, experiment_names
from promptcodebook.lm.spec import any_simulated
from promptcodebook.method import state
from promptcodebook.method.state import has_collapsed
from promptcodebook.report.context import Context, Section
from promptcodebook.report.pages import MISSING, address, render
from promptcodebook.report.training import router_sections
from promptcodebook.store.events import Event, Stepped
from promptcodebook.units import number
from promptcodebook.viewer.page import SOME_SIMULATED, Screen, missing

_log = logging.getLogger(__name__)
SYMBOLS = (
    ("θ", "the encoder's directive and selection criteria, which choose instincts for an input"),
    ("φ", "the generator's directive and style guide, which compose them into a prompt"),
    ("ψ", "the critic's directive and evaluation criteria"),
    ("C", "the codebook: instincts c0, c1 and so on"),
    ("ρ", "the penalty that a verdict of the critic takes off the reward"),
    ("r̄", "the moving mean of reward minus penalty of an instinct; it may fall below 0"),
    ("ε", "the chance that a route is explored, not chosen"),
)
_FIGURE = re.compile(r"[\w-]+\.svg", re.ASCII)


class _Table(BaseModel):
    head: tuple[Any, ...]
    rows: tuple[tuple[Any, ...], ...]
    title: str = ""

    @model_validator(mode="after")
    def _is_even(self) -> Self:
        if any(len(row) != len(self.head) for row in self.rows):
            raise ValueError(f"a row is not {len(self.head)} cells wide")
        return self


class _Measured(BaseModel):
    """What is shown of `results.json`, and the drawings beside it."""

    model: str = ""
    preset: str = ""
    seeds: int = 0
    missing: Mapping[str, Any] = {}
    tables: Mapping[str, _Table] = {}
    figures: tuple[str, ...] = ()

    @property
    def simulated(self) -> bool:
        return any_simulated([self.model])


def paper_mark(results: Path, name: str = "") -> str:
    """Changes whenever the screen of this experiment would, or that of all of them ('')."""
    wanted = "*/results.json" if not name else f"{name}/*"
    known = not name or name in experiment_names()
    found: list[tuple[str, int, int]] = []
    for path in sorted(results.glob(wanted)) if known else ():
        try:
            stat = path.stat()
            found.append((str(path), stat.st_mtime_ns, stat.st_size))
        except OSError:  # it is just being replaced
            found.append((str(path), 0, 0))
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def paper_screen(results: Path) -> Screen:
    """All experiments and whether they were measured; all tables of the paper."""
    mark = paper_mark(results)  # before the rest: a page may be newer than it says, never older
    rows: list[tuple[str, str, _Measured | None, str]] = []
    for name in experiment_names():
        printed = experiment_named(name).paper
        try:
            rows.append((name, printed, _read(results, name), "not yet"))
        except StoreError as error:
            _log.debug("%s", error)
            rows.append((name, printed, None, "cannot be read"))
    template, tables = "experiments/templates/paper.html.jinja", explained("tables")
    body = render(template, results=results, rows=rows, tables=tables)
    said = SOME_SIMULATED if any(row[2] and row[2].simulated for row in rows) else ""
    return Screen("Paper", body, live="/live/paper", mark=mark, simulated=said)


def result_screen(results: Path, name: str) -> Screen:
    """One experiment with the paper's numbers below ours, or one table of the paper."""
    above = (("Paper", "/paper"),)
    template, printed = "experiments/templates/result.html.jinja", explained("tables")
    if name in printed:
        body = render(template, tables={"": _published(name)}, ours=False)
        return Screen(f"{name}: {printed[name]}", body, above=above)
    if name not in experiment_names():
        return missing(f"There is nothing to reproduce under the name {name}.", "pco reproduce")
    mark = paper_mark(results, name)
    paper, measured = experiment_named(name).paper, _read(results, name)
    # Those in 'Table 1' or 'Tables 9 and 10' of which the paper has numbers.
    kinds = [kind for kind in ("Table", "Figure") if kind in paper]
    named = [f"{kind} {n}" for kind in kinds for n in re.findall(r"\d+[a-z]?", paper)]
    body = render(
        template,
        name=name,
        mark=mark,  # an address changes with its drawing, since a browser keeps what it has
        ours=True,
        measured=measured,
        tables={f"{t}: {printed[t]}": _published(t) for t in named if t in printed},
    )
    title = f"{name} ({paper})" if paper else name
    said = SOME_SIMULATED if measured is not None and measured.simulated else ""
    live = address("live", "paper", name)
    return Screen(title, body, above=above, live=live, mark=mark, simulated=said)


def figure_file(results: Path, name: str, file: str) -> Path | None:
    measured = _read(results, name) if name in experiment_names() else None
    return results / name / file if measured is not None and file in measured.figures else None


def _published(name: str) -> list[dict[str, Any]]:
    """The paper's numbers: a table for each executor and metric, rows and columns as printed."""
    values, meant = published(name), explained("metrics")
    executors = list(dict.fromkeys(v.executor for v in values))
    kinds = dict.fromkeys((v.executor, v.metric) for v in values)
    found: list[dict[str, Any]] = []
    for executor, metric in sorted(kinds, key=lambda kind: executors.index(kind[0])):
        own = [v for v in values if (v.executor, v.metric) == (executor, metric)]
        where = f"{executor}, " if executor else ""
        what = f"The paper: {where}{metric} ({meant.get(metric, '')}), in {own[0].unit}."
        columns, rows = as_printed(own, MISSING)
        found.append({"caption": what, "columns": columns, "rows": rows})
    return found


def _read(results: Path, name: str) -> _Measured | None:
    """What was measured; None where nothing was. Raises StoreError for a file that is damaged."""
    folder = results / name
    try:
        measured = _Measured.model_validate_json((folder / "results.json").read_bytes())
        figures = sorted(file.name for file in folder.iterdir() if _FIGURE.fullmatch(file.name))
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:
        why = str(error)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            why = f"{first['msg']} at {'.'.join(map(str, first['loc'])) or 'its beginning'}"
        said = f"{folder / 'results.json'} cannot be read: {why}"
        raise StoreError(said, hint=f"pco reproduce {folder.name}") from None
    # Whatever the file names: drawings are those that lie there.
    return measured.model_copy(update={"figures": tuple(figures)})


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
