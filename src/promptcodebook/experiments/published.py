"""What the paper printed, number by number, to show beside our figures, never in their column.

`published.json` has every number of the paper's tables and plots of results (plots by the
coordinates in their source), and those that it states of a figure elsewhere. Left out because they
have no numbers: Tables 8, 12 and 14, and Figure 7, whose heatmaps are not in the source; Tables 6
and 7 are settings and splits. Rows, columns and digits are the paper's.

A number is paired by its metric: a cell asked for under another one is None. What each metric is
is in published.toml; those of Table 1 are the ones that its figures fit on Qwen3-8B
(decision 18 of docs/method.md), not the ones that the paper names in Table 7.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from promptcodebook.errors import ConfigError, did_you_mean


def _file(name: str) -> str:
    return resources.files("promptcodebook.experiments").joinpath(name).read_text("utf-8")


def table_titles() -> Mapping[str, str]:
    """What each table and figure of the paper shows, in its order."""
    return tomllib.loads(_file("published.toml"))["tables"]


def metrics() -> Mapping[str, str]:
    """What each metric is."""
    return tomllib.loads(_file("published.toml"))["metrics"]


@dataclass(frozen=True, slots=True)
class Published:
    """One number. `value` is in `unit`s, `printed` has the paper's digits; `executor` is the frozen
    model and `benchmark` the data, None where the paper does not say or means several; `error` is
    the half-width of an error bar, None without one (the paper does not say of what)."""

    table: str
    row: str
    column: str
    metric: str
    value: float
    printed: str
    unit: str
    executor: str | None = None
    benchmark: str | None = None
    error: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One table or figure, or its part for one executor; values in the order of the paper."""

    name: str
    values: tuple[Published, ...]

    def cell(self, row: str, column: str, metric: str) -> Published | None:
        """The number at (row, column) if it is of this metric; None where it is of another or
        where nothing is printed. ConfigError where the table has it for several executors."""
        found = [v for v in self.values if (v.row, v.column, v.metric) == (row, column, metric)]
        if len(found) > 1:
            models = [str(value.executor) for value in found]
            raise ConfigError(
                f"{self.name} has {row!r}, {column!r} for {' and for '.join(models)}",
                hint=f"published({self.name!r}, executor={models[0]!r})",
            )
        return found[0] if found else None


def published(table: str, executor: str | None = None) -> PublishedTable:
    """A table or figure by its name in published.toml, of all executors or one. ConfigError for an
    unknown table, and for an executor that it has nothing of."""
    tables = table_titles()
    if table not in tables:
        raise ConfigError(
            f"the paper has no numbers under the name {table!r}{did_you_mean(table, tables)}",
            hint=", ".join(tables),
        )
    entries = json.loads(_file("published.json"))
    values = tuple(Published(**entry) for entry in entries if entry["table"] == table)
    if executor is None:
        return PublishedTable(table, values)
    executors = list(dict.fromkeys(v.executor for v in values if v.executor is not None))
    if executor not in executors:
        raise ConfigError(
            f"{table} has nothing of the executor {executor!r}{did_you_mean(executor, executors)}",
            hint=f"executors named there: {', '.join(executors) or 'none'}",
        )
    return PublishedTable(table, tuple(value for value in values if value.executor == executor))
