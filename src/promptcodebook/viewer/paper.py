"""Tables and figures of `pco reproduce` as they were measured here, and the paper's own numbers
beside them, each under its own metric."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from promptcodebook.errors import StoreError
from promptcodebook.experiments.experiment import Experiment
from promptcodebook.experiments.published import METRICS, TABLES, Published, published
from promptcodebook.experiments.reproduce import experiment_named, experiment_names
from promptcodebook.lm.stack import any_simulated
from promptcodebook.report.html import MISSING, Column, Content, Html, el, table, together
from promptcodebook.units import plural
from promptcodebook.viewer.frame import SOME_SIMULATED, Screen, address, filter_box, link, missing

__all__ = ["figure_file", "paper_screen", "result_screen"]

_FIGURE = re.compile(r"[\w-]+\.svg", re.ASCII)
_LIST = (
    Column("experiment", numeric=False),
    Column("in the paper", numeric=False),
    Column("measured here", numeric=False),
    Column("model", numeric=False),
    Column("seeds"),
    Column("cells missing"),
)


@dataclass(frozen=True, slots=True)
class _Measured:
    """`results.json` of one experiment."""

    tree: Mapping[str, Any]
    figures: tuple[str, ...]

    @property
    def model(self) -> str:
        return str(self.tree.get("model", ""))

    @property
    def gaps(self) -> int:
        """Cells without a result."""
        missing: Any = self.tree.get("missing") or ()
        return len(missing)

    @property
    def simulated(self) -> bool:
        return any_simulated([self.model])


def paper_screen(results: Path) -> Screen:
    """All experiments and whether they were measured; all tables of the paper."""
    rows: list[tuple[Content, ...]] = []
    simulated = False
    for name in experiment_names():
        measured = _read(results, name)
        simulated = simulated or (measured is not None and measured.simulated)
        rows.append(_line(experiment_named(name), measured))
    tables = [
        el("li", link(f"{name}: {title}", "paper", name, look=".stop"))
        for name, title in TABLES.items()
    ]
    body = together(
        filter_box("experiments"),
        el("p.note", f"Measured ones lie in {results}; pco reproduce NAME measures another."),
        table(_LIST, rows),
        el("section", el("h2", "What the paper printed"), el("ul.plain", tables)),
    )
    return Screen("Paper", body, simulated=SOME_SIMULATED if simulated else "")


def _line(experiment: Experiment, measured: _Measured | None) -> tuple[Content, ...]:
    name = link(experiment.name, "paper", experiment.name, look=".stop")
    if measured is None:
        return (name, experiment.paper or MISSING, "not yet", MISSING, MISSING, MISSING)
    tree = measured.tree
    badge = el("span.badge", "simulated") if measured.simulated else None
    return (
        name,
        experiment.paper or "none: ours",
        str(tree.get("preset", "")),
        together(measured.model, " ", badge),
        str(tree.get("seeds", MISSING)),
        measured.gaps,
    )


def result_screen(results: Path, name: str) -> Screen:
    """One experiment with the paper's numbers below ours, or one table of the paper."""
    above = (("Paper", "/paper"),)
    if name in TABLES:
        return Screen(f"{name}: {TABLES[name]}", _published(name), above=above)
    if name not in experiment_names():
        return missing(f"There is nothing to reproduce under the name {name}.", "pco reproduce")
    experiment, measured = experiment_named(name), _read(results, name)
    tables = _tables_of(experiment.paper)
    parts: list[Content] = [_ours(name, measured)]
    parts += [
        el("section", el("h2", f"The paper, {t}: {TABLES[t]}"), _published(t)) for t in tables
    ]
    title = f"{name} ({experiment.paper})" if experiment.paper else name
    said = SOME_SIMULATED if measured is not None and measured.simulated else ""
    return Screen(title, parts, above=above, simulated=said)


def figure_file(results: Path, name: str, file: str) -> Path | None:
    """The drawing of an experiment, where there is one of that name."""
    measured = _read(results, name) if name in experiment_names() else None
    return results / name / file if measured is not None and file in measured.figures else None


def _tables_of(text: str) -> list[str]:
    """Names in 'Table 1' or 'Tables 9 and 10' of which the paper has numbers."""
    numbers = re.findall(r"\d+[a-z]?", text)
    kinds = [kind for kind in ("Table", "Figure") if kind in text]
    return [f"{kind} {n}" for kind in kinds for n in numbers if f"{kind} {n}" in TABLES]


def _ours(name: str, measured: _Measured | None) -> Html:
    if measured is None:
        return together(
            el("p.empty", "It was not measured here."),
            el("p.note", "Next: ", el("code", f"pco reproduce {name}")),
        )
    tree = measured.tree
    said = f"Measured with {measured.model}, {plural(int(tree.get('seeds', 0)), 'seed')}"
    said += f", {plural(measured.gaps, 'cell')} missing." if measured.gaps else "."
    return together(
        el("p", said),
        [_table(n, each, measured) for n, each in dict(tree.get("tables") or {}).items()],
        [_figure(name, file, measured) for file in measured.figures],
    )


def _table(name: str, tree: Mapping[str, Any], measured: _Measured) -> Html:
    columns = [Column(str(head), numeric=False) for head in tree["head"]]
    rows = [[str(cell) for cell in row] for row in tree["rows"]]
    badge = el("span.badge", "simulated") if measured.simulated else None
    caption = el("figcaption", badge, str(tree.get("title") or name))
    return el("figure", caption, table(columns, rows))


def _figure(name: str, file: str, measured: _Measured) -> Html:
    badge = el("span.badge", "simulated") if measured.simulated else None
    source = {"src": address("paper", name, file), "alt": file.removesuffix(".svg")}
    return el("figure", el("figcaption", badge, file), el("img.drawn", attrs=source))


def _published(name: str) -> Html:
    """The paper's numbers: a table for each executor and metric, rows and columns as printed."""
    parts: list[Content] = []
    values = published(name).values
    for executor in dict.fromkeys(v.executor for v in values):
        for metric in dict.fromkeys(v.metric for v in values if v.executor == executor):
            cells = [v for v in values if (v.executor, v.metric) == (executor, metric)]
            parts.append(_matrix(cells, executor, metric))
    return together(parts)


def _matrix(cells: Sequence[Published], executor: str | None, metric: str) -> Html:
    rows = list(dict.fromkeys(cell.row for cell in cells))
    columns = list(dict.fromkeys(cell.column for cell in cells))
    printed = {(c.row, c.column): c.printed for c in cells}
    heads = [Column("", numeric=False), *map(Column, columns)]
    body = [[row, *(printed.get((row, column), MISSING) for column in columns)] for row in rows]
    where = f"{executor}, " if executor else ""
    unit = cells[0].unit
    caption = f"The paper: {where}{metric} ({METRICS.get(metric, '')}), in {unit}."
    return el("figure", el("figcaption", caption), table(heads, body))


def _read(results: Path, name: str) -> _Measured | None:
    """What was measured; None where nothing was. Raises StoreError for a file that is damaged."""
    folder = results / name
    try:
        tree = json.loads((folder / "results.json").read_text("utf-8"))
        figures = sorted(file.name for file in folder.iterdir() if _FIGURE.fullmatch(file.name))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{folder / 'results.json'} cannot be read: {error}", hint=f"pco reproduce {name}"
        ) from None
    return _Measured(cast("dict[str, Any]", tree), tuple(figures))
