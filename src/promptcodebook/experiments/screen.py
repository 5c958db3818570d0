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
from promptcodebook.experiments.published import Published, metrics, published, table_titles
from promptcodebook.experiments.reproduce import experiment_named, experiment_names
from promptcodebook.lm.spec import any_simulated
from promptcodebook.report.html import MISSING, Column, Content, Html, el, table, together
from promptcodebook.units import plural
from promptcodebook.viewer.page import SOME_SIMULATED, Screen, address, filter_box, link, missing

_log = logging.getLogger(__name__)
_FIGURE = re.compile(r"[\w-]+\.svg", re.ASCII)
_LIST = (
    *(Column(name, numeric=False) for name in ("experiment", "in the paper", "measured here")),
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
    def badge(self) -> Html | None:
        return el("span.badge", "simulated") if any_simulated([self.kept.model]) else None


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
        paper, opens = experiment_named(name).paper, link(name, "paper", name, look=".stop")
        try:
            measured, why = _read(results, name), "not yet"
        except StoreError as error:
            _log.debug("%s", error)
            measured, why = None, "cannot be read"
        if measured is None:
            rows.append((opens, paper or MISSING, why, MISSING, MISSING, MISSING))
            continue
        kept, simulated = measured.kept, simulated or measured.badge is not None
        model = together(kept.model, " ", measured.badge)
        seeds, gaps = kept.seeds or MISSING, len(kept.missing)
        rows.append((opens, paper or "none: ours", kept.preset, model, seeds, gaps))
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


def result_screen(results: Path, name: str) -> Screen:
    """One experiment with the paper's numbers below ours, or one table of the paper."""
    above = (("Paper", "/paper"),)
    if name in table_titles():
        return Screen(f"{name}: {table_titles()[name]}", _published(name), above=above)
    if name not in experiment_names():
        return missing(f"There is nothing to reproduce under the name {name}.", "pco reproduce")
    mark = paper_mark(results, name)
    experiment, measured = experiment_named(name), _read(results, name)
    parts: list[Content] = [_ours(name, measured, mark)]
    # Names in 'Table 1' or 'Tables 9 and 10' of which the paper has numbers.
    kinds = [kind for kind in ("Table", "Figure") if kind in experiment.paper]
    named = [f"{kind} {n}" for kind in kinds for n in re.findall(r"\d+[a-z]?", experiment.paper)]
    for t in named:
        if t in table_titles():
            parts.append(
                el("section", el("h2", f"The paper, {t}: {table_titles()[t]}"), _published(t))
            )
    title = f"{name} ({experiment.paper})" if experiment.paper else name
    said = SOME_SIMULATED if measured is not None and measured.badge else ""
    live = address("live", "paper", name)
    return Screen(title, parts, above=above, live=live, mark=mark, simulated=said)


def figure_file(results: Path, name: str, file: str) -> Path | None:
    """The drawing of an experiment, where there is one of that name."""
    measured = _read(results, name) if name in experiment_names() else None
    return results / name / file if measured is not None and file in measured.figures else None


def _ours(name: str, measured: _Measured | None, mark: str) -> Html:
    if measured is None:
        return together(
            el("p.empty", "It was not measured here."),
            el("p.note", "Next: ", el("code", f"pco reproduce {name}")),
        )
    kept, badge = measured.kept, measured.badge
    text = f"Measured with {kept.model}, {plural(kept.seeds, 'seed')}"
    text += f", {plural(len(kept.missing), 'cell')} missing." if kept.missing else "."
    parts: list[Content] = [el("p", text)]
    for title, each in kept.tables.items():
        columns = [Column(str(head), numeric=False) for head in each.head]
        rows = [[str(cell) for cell in row] for row in each.rows]
        caption = el("figcaption", badge, each.title or title)
        parts.append(el("figure", caption, table(columns, rows)))
    for file in measured.figures:
        # The address changes with the drawing, since a browser keeps what it has under one.
        place = address("paper", name, file, as_of=mark)
        drawn = el("img.drawn", attrs={"src": place, "alt": file.removesuffix(".svg")})
        parts.append(el("figure", el("figcaption", badge, file), drawn))
    return together(*parts)


def _published(name: str) -> Html:
    """The paper's numbers: a table for each executor and metric, rows and columns as printed."""
    groups: dict[tuple[str | None, str], list[Published]] = {}
    for value in published(name).values:
        groups.setdefault((value.executor, value.metric), []).append(value)
    return together(*(_matrix(cells) for cells in groups.values()))


def _matrix(cells: Sequence[Published]) -> Html:
    first = cells[0]
    columns = list(dict.fromkeys(cell.column for cell in cells))
    printed = {(c.row, c.column): c.printed for c in cells}
    heads = [Column("", numeric=False), *map(Column, columns)]
    body = [
        [row, *(printed.get((row, column), MISSING) for column in columns)]
        for row in dict.fromkeys(cell.row for cell in cells)
    ]
    where = f"{first.executor}, " if first.executor else ""
    caption = f"The paper: {where}{first.metric} ({metrics().get(first.metric, '')})"
    caption = el("figcaption", f"{caption}, in {first.unit}.")
    return el("figure", caption, table(heads, body))


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
