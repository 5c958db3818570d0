"""Tables and figures of `pco reproduce` as they were measured here, and the paper's own numbers
beside them, each under its own metric."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError, model_validator

from promptcodebook.errors import StoreError
from promptcodebook.experiments.experiment import Experiment
from promptcodebook.experiments.published import Published, metrics, published, table_titles
from promptcodebook.experiments.reproduce import experiment_named, experiment_names
from promptcodebook.lm.spec import any_simulated
from promptcodebook.report.html import MISSING, Column, Content, Html, el, table, together
from promptcodebook.units import plural
from promptcodebook.viewer.page import SOME_SIMULATED, Screen, address, filter_box, link, missing

_log = logging.getLogger(__name__)
_FIGURE = re.compile(r"[\w-]+\.svg", re.ASCII)
_LIST = (
    Column("experiment", numeric=False),
    Column("in the paper", numeric=False),
    Column("measured here", numeric=False),
    Column("model", numeric=False),
    Column("seeds"),
    Column("cells missing"),
)


class _Table(BaseModel):
    """A table as it is kept: heads, and rows of as many cells."""

    head: tuple[Any, ...]
    rows: tuple[tuple[Any, ...], ...]
    title: str = ""

    @model_validator(mode="after")
    def _is_even(self) -> Self:
        if any(len(row) != len(self.head) for row in self.rows):
            raise ValueError(f"a row is not {len(self.head)} cells wide")
        return self


class _Kept(BaseModel):
    """What is shown of `results.json`; `missing` are cells without a result."""

    model: str = ""
    preset: str = ""
    seeds: int = 0
    missing: Mapping[str, Any] = {}
    tables: Mapping[str, _Table] = {}


@dataclass(frozen=True, slots=True)
class _Measured:
    """One experiment: its results and the names of its drawings."""

    kept: _Kept
    figures: tuple[str, ...]

    @property
    def model(self) -> str:
        return self.kept.model

    @property
    def gaps(self) -> int:
        """Cells without a result."""
        return len(self.kept.missing)

    @property
    def simulated(self) -> bool:
        return any_simulated([self.model])


def paper_mark(results: Path, name: str = "") -> str:
    """Changes whenever the screen of this experiment would, or that of all of them ('')."""
    wanted = "*/results.json" if not name else f"{name}/*"
    known = not name or name in experiment_names()
    found = sorted(_stamp(path) for path in (results.glob(wanted) if known else ()))
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def _stamp(path: Path) -> tuple[str, int, int]:
    """A file and when it was written; of one that is just being replaced the name alone."""
    try:
        stat = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), stat.st_mtime_ns, stat.st_size


def paper_screen(results: Path) -> Screen:
    """All experiments and whether they were measured; all tables of the paper."""
    mark = paper_mark(results)  # before the rest: a page may be newer than it says, never older
    rows: list[tuple[Content, ...]] = []
    simulated = False
    for name in experiment_names():
        experiment = experiment_named(name)
        try:
            measured = _read(results, name)
        except StoreError as error:
            _log.debug("%s", error)
            rows.append(_blank(experiment, "cannot be read"))
            continue
        simulated = simulated or (measured is not None and measured.simulated)
        rows.append(
            _blank(experiment, "not yet") if measured is None else _line(experiment, measured)
        )
    tables = [
        el("li", link(f"{name}: {title}", "paper", name, look=".stop"))
        for name, title in table_titles().items()
    ]
    body = together(
        filter_box("experiments"),
        el("p.note", f"Measured ones lie in {results}; pco reproduce NAME measures another."),
        table(_LIST, rows),
        el("section", el("h2", "What the paper printed"), el("ul.plain", tables)),
    )
    said = SOME_SIMULATED if simulated else ""
    return Screen("Paper", body, live=address("live", "paper"), mark=mark, simulated=said)


def _blank(experiment: Experiment, why: str) -> tuple[Content, ...]:
    """The line of an experiment without results."""
    name = link(experiment.name, "paper", experiment.name, look=".stop")
    return (name, experiment.paper or MISSING, why, MISSING, MISSING, MISSING)


def _line(experiment: Experiment, measured: _Measured) -> tuple[Content, ...]:
    name = link(experiment.name, "paper", experiment.name, look=".stop")
    kept = measured.kept
    badge = el("span.badge", "simulated") if measured.simulated else None
    return (
        name,
        experiment.paper or "none: ours",
        kept.preset,
        together(measured.model, " ", badge),
        kept.seeds or MISSING,
        measured.gaps,
    )


def result_screen(results: Path, name: str) -> Screen:
    """One experiment with the paper's numbers below ours, or one table of the paper."""
    above = (("Paper", "/paper"),)
    if name in table_titles():
        return Screen(f"{name}: {table_titles()[name]}", _published(name), above=above)
    if name not in experiment_names():
        return missing(f"There is nothing to reproduce under the name {name}.", "pco reproduce")
    mark = paper_mark(results, name)
    experiment, measured = experiment_named(name), _read(results, name)
    tables = _tables_of(experiment.paper)
    parts: list[Content] = [_ours(name, measured, mark)]
    parts += [
        el("section", el("h2", f"The paper, {t}: {table_titles()[t]}"), _published(t))
        for t in tables
    ]
    title = f"{name} ({experiment.paper})" if experiment.paper else name
    said = SOME_SIMULATED if measured is not None and measured.simulated else ""
    live = address("live", "paper", name)
    return Screen(title, parts, above=above, live=live, mark=mark, simulated=said)


def figure_file(results: Path, name: str, file: str) -> Path | None:
    """The drawing of an experiment, where there is one of that name."""
    measured = _read(results, name) if name in experiment_names() else None
    return results / name / file if measured is not None and file in measured.figures else None


def _tables_of(text: str) -> list[str]:
    """Names in 'Table 1' or 'Tables 9 and 10' of which the paper has numbers."""
    numbers = re.findall(r"\d+[a-z]?", text)
    kinds = [kind for kind in ("Table", "Figure") if kind in text]
    return [f"{kind} {n}" for kind in kinds for n in numbers if f"{kind} {n}" in table_titles()]


def _ours(name: str, measured: _Measured | None, mark: str) -> Html:
    if measured is None:
        return together(
            el("p.empty", "It was not measured here."),
            el("p.note", "Next: ", el("code", f"pco reproduce {name}")),
        )
    said = f"Measured with {measured.model}, {plural(measured.kept.seeds, 'seed')}"
    said += f", {plural(measured.gaps, 'cell')} missing." if measured.gaps else "."
    return together(
        el("p", said),
        [_table(n, each, measured) for n, each in measured.kept.tables.items()],
        [
            _figure(address("paper", name, file, as_of=mark), file, measured)
            for file in measured.figures
        ],
    )


def _table(name: str, kept: _Table, measured: _Measured) -> Html:
    columns = [Column(str(head), numeric=False) for head in kept.head]
    rows = [[str(cell) for cell in row] for row in kept.rows]
    badge = el("span.badge", "simulated") if measured.simulated else None
    caption = el("figcaption", badge, kept.title or name)
    return el("figure", caption, table(columns, rows))


def _figure(place: str, file: str, measured: _Measured) -> Html:
    """A drawing; its address changes with it, since a browser keeps what it has under one."""
    badge = el("span.badge", "simulated") if measured.simulated else None
    source = {"src": place, "alt": file.removesuffix(".svg")}
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
    caption = f"The paper: {where}{metric} ({metrics().get(metric, '')}), in {unit}."
    return el("figure", el("figcaption", caption), table(heads, body))


def _read(results: Path, name: str) -> _Measured | None:
    """What was measured; None where nothing was. Raises StoreError for a file that is damaged."""
    folder = results / name
    try:
        kept = _Kept.model_validate_json((folder / "results.json").read_bytes())
        figures = sorted(file.name for file in folder.iterdir() if _FIGURE.fullmatch(file.name))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "its beginning"
        raise _unreadable(folder, f"{first['msg']} at {where}") from None
    except OSError as error:
        raise _unreadable(folder, str(error)) from None
    return _Measured(kept, tuple(figures))


def _unreadable(folder: Path, why: str) -> StoreError:
    return StoreError(
        f"{folder / 'results.json'} cannot be read: {why}", hint=f"pco reproduce {folder.name}"
    )
