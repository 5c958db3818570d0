"""What the paper printed, number by number: to stand beside a figure of ours, never in its column.

`published.json` has every number of the paper's tables and plots of results (plots by the
coordinates in their source), and those that it states of a figure elsewhere. Left out because they
have no numbers: Tables 8, 12 and 14, and Figure 7, whose heatmaps are not in the source; Tables 6
and 7 are settings and splits. Rows, columns and digits are the paper's.

A number is paired by its metric: a cell asked for under another one is None. What each metric is
stands in `METRICS`; those of Table 1 are the ones that its figures fit on Qwen3-8B
(decision 18 of docs/method.md), not the ones that the paper names in Table 7.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType

from promptcodebook.errors import ConfigError, did_you_mean

TABLES: Mapping[str, str] = MappingProxyType(
    {
        "Table 1": "main results",
        "Figure 3": "the route of the worked example",
        "Figure 4a": "longest prompt of the executor",
        "Figure 4b": "usage of the codebook",
        "Table 2": "specialisation",
        "Table 3": "ablation",
        "Figure 5a": "sweep of K",
        "Figure 5b": "sweep of S",
        "Table 4": "critics",
        "Table 5": "cost",
        "Table 9": "interventions of the attribution experiment",
        "Table 10": "attribution",
        "Figure 6": "sensitivity",
        "Table 11": "initialisation",
        "Table 13": "routing diversity, K = 32",
        "Deployed prompts": "the routes of the appendix's four examples",
        "Table 15": "evolution of one instinct",
    }
)

METRICS: Mapping[str, str] = MappingProxyType(
    {
        "exact_match": "share of answers equal to the reference once both are normalised",
        "loose_share": "mean over prompts of the share of constraints met, read loosely",
        "retrieval": "share of claims with all gold pages retrieved; the label does not count",
        "overall": "(U + 1 - L) / 2: quality U, leakage L",
        "sampled_accuracy": "share of right answers over five sampled runs of each problem",
        "livebench_score": "mean of LiveBench's own score, which knows partial credit",
        "mean_of_six": "mean of the six metrics above",
        "mean_of_six_gain": "the same, minus zero-shot's",
        "loose_share_gain": "loose_share minus zero-shot's",
        "csr": "constraint satisfaction rate: Eq. 41 defines it as the mean share of constraints "
        "met; how it differs from the accuracy beside it, the paper does not say",
        "routing_entropy": "Shannon entropy, base 2, of selections over the codebook",
        "utilisation": "share of the codebook selected at least once",
        "active_entries": "number of entries selected at least once",
        "selections": "how often an entry was selected",
        "route": "an index of the codebook, in the order printed",
        "r_bar": "moving average of reward minus penalty of the prompts with an entry",
        "mean_r_bar": "r_bar weighted by selections",
        "longest_prompt": "the executor's longest prompt",
        "longest_prompt_ratio": "that of one method over that of PCO",
        "training_tokens": "tokens that optimization took, all roles together",
        "deployment_tokens": "tokens that the test split took",
        "latency_per_query": "end to end, on one A100",
        "speedup": "GEPA's latency over this row's",
        "traces": "number of perturbed traces",
        "precision": "of the faults laid at a part, the share that was its own",
        "recall": "of a part's own faults, the share laid at it",
        "f1": "harmonic mean of precision and recall",
    }
)


@dataclass(frozen=True, slots=True)
class Published:
    """One number. `value` is in `unit`s, `printed` has the paper's digits; `executor` is the frozen
    model and `benchmark` the data, None where the paper does not say or means several; `error` is
    the half-width of an error bar, None where there is none (the paper does not say of what)."""

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

    @property
    def title(self) -> str:
        return TABLES[self.name]

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
    """A table or figure by its name in `TABLES`, with all executors or one. ConfigError for a table
    that is not there and for an executor that it has nothing of."""
    if table not in TABLES:
        raise ConfigError(
            f"the paper has no numbers under the name {table!r}{did_you_mean(table, TABLES)}",
            hint=", ".join(TABLES),
        )
    values = tuple(value for value in _read() if value.table == table)
    executors = list(dict.fromkeys(v.executor for v in values if v.executor is not None))
    if executor is None:
        return PublishedTable(table, values)
    if executor not in executors:
        raise ConfigError(
            f"{table} has nothing of the executor {executor!r}{did_you_mean(executor, executors)}",
            hint=f"executors named there: {', '.join(executors) or 'none'}",
        )
    return PublishedTable(table, tuple(value for value in values if value.executor == executor))


def _read() -> list[Published]:
    file = resources.files("promptcodebook.experiments").joinpath("published.json")
    return [Published(**entry) for entry in json.loads(file.read_text("utf-8"))]
