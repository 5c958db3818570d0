"""What every section of a report may need to know about the run, read once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from promptcodebook.config import Config
from promptcodebook.report.html import Content, Html, el
from promptcodebook.session.models import simulated_in
from promptcodebook.store import Header, RunState, RunStore
from promptcodebook.types import ROLES, Codebook, Parameters, Role, Usage

__all__ = ["Column", "Context", "Kept", "without_credentials"]

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class Kept:
    """The state the report shows as the policy: after `step`, -1 = untrained; K-tuples."""

    step: int
    parameters: Parameters
    ema: tuple[float, ...]
    success: tuple[float, ...]
    selected: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numeric ones are set to the right."""

    name: str
    numeric: bool = True


@dataclass(frozen=True)
class Context:
    """The run as a whole: header, state, spend and counts. `inputs` are texts by example id."""

    header: Header
    state: RunState
    usage: Mapping[Role, Usage]
    tallies: Mapping[str, int]
    elapsed_s: float
    kept: Kept | None
    inputs: Mapping[str, str]

    @classmethod
    def of(cls, store: RunStore, inputs: Mapping[str, str]) -> Context:
        """Reads all but the steps."""
        state = store.outline()
        kept = _kept(store, state)
        return cls(
            store.header, state, store.usage(), store.tallies(), store.elapsed_s, kept, inputs
        )

    def setting(self, key: str) -> Any:
        """A dotted key of the run's configuration; the default where the run does not say."""
        return _at(self.header.config, key, _at(Config().model_dump(mode="json"), key, None))

    @property
    def seed(self) -> int:
        return int(self.setting("seed"))

    @property
    def reward_range(self) -> tuple[float, float]:
        low, high = self.setting("reward_range")
        return float(low), float(high)

    @property
    def codebook(self) -> Codebook:
        found = self.state.parameters
        return found.codebook if found is not None else Codebook(())

    @property
    def models(self) -> dict[Role, str]:
        """The model of each role; '' is the user's own LM object."""
        base = self.setting("lm") or ""
        return {
            role: without_credentials(str(self.setting(f"roles.{role}.model") or base))
            for role in ROLES
        }

    @property
    def simulated(self) -> bool:
        """Whether any model was simulated, in process or served under that name."""
        specs = set(self.models.values())
        served = any(s.rpartition("#")[2].startswith("simulated") for s in specs if "#" in s)
        return served or simulated_in(specs)

    def figure(self, caption: Content, *body: Content) -> Html:
        """A figure whose caption says when its numbers are simulated."""
        return el("figure", el("figcaption", self._badge(), caption), *body)

    def table(
        self, caption: Content, columns: Iterable[Column], rows: Iterable[Iterable[Content]]
    ) -> Html:
        """A table that scrolls sideways where it must, and says when its numbers are simulated."""
        heads = list(columns)
        body = [el("tr", _cells(heads, row)) for row in rows]
        titles = [
            el("th.num" if c.numeric else "th", c.name, attrs={"scope": "col"}) for c in heads
        ]
        inner = el("table", el("thead", el("tr", titles)), el("tbody", body))
        # The caption stands outside, so that it does not scroll away with the columns.
        return self.figure(caption, el("div.wide", inner))

    def _badge(self) -> Html | None:
        return el("span.badge", "simulated") if self.simulated else None


def without_credentials(text: str) -> str:
    """The text without a name and password before the host of an address."""
    return _CREDENTIALS.sub("", text)


def _cells(heads: list[Column], row: Iterable[Content]) -> list[Html]:
    return [
        el("td.num" if head.numeric else "td", cell) for head, cell in zip(heads, row, strict=True)
    ]


def _kept(store: RunStore, state: RunState) -> Kept | None:
    """The state that is deployed once the run has concluded, the latest one before that."""
    if state.parameters is None:
        return None
    keep = _at(store.header.config, "keep", "best_val")
    if state.conclusion is None or keep != "best_val" or state.best is None:
        size = len(state.parameters.codebook)
        return Kept(
            state.step,
            state.parameters,
            state.ema or (0.0,) * size,
            state.success or (0.0,) * size,
            state.selected or (0,) * size,
        )
    return _at_step(store, state.best.step)


def _at_step(store: RunStore, index: int) -> Kept:
    if index >= 0:
        step = store.step_at(index)
        return Kept(index, step.parameters, step.ema, step.success, step.selected)
    parameters = store.parameters_at(-1)
    size = len(parameters.codebook)
    return Kept(-1, parameters, (0.0,) * size, (0.0,) * size, (0,) * size)


def _at(tree: Mapping[str, Any], key: str, default: Any) -> Any:
    here: Any = tree
    for part in key.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return default
        here = cast("Mapping[str, Any]", here)[part]
    return here
