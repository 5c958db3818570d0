"""A suite of runs, one a cell: finished cells are read back, stopped ones go on.

A cell is a task under a configuration on given data; its run is recognised by all three, so that
the same suite asked for again finds what it has done, and a changed setting or file is a new cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from promptcodebook.config import Config, load_config
from promptcodebook.errors import ConfigError, did_you_mean
from promptcodebook.session.events import Listener, silent
from promptcodebook.session.models import any_simulated, specs_of
from promptcodebook.session.opening import Where, open_run
from promptcodebook.session.optimize import finish
from promptcodebook.session.sources import Sources, ready_made, settled
from promptcodebook.session.sync import run_sync
from promptcodebook.store.compare import differences
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import RunSummary, list_runs
from promptcodebook.tasks.registry import task_names

__all__ = ["SUITES", "Cell", "CellResult", "Suite", "read_cell", "run_cell", "suite_named"]

State = Literal["ran", "resumed", "skipped"]

_SHIPPED = ("constraints",)
"""Tasks that are no benchmark."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Settings that every cell shares; what is typed goes over them."""

    name: str
    settings: Mapping[str, Any]
    description: str

    def tasks(self, only: Sequence[str] = ()) -> tuple[str, ...]:
        """The benchmarks, or those of them in `only`; ConfigError for any other name."""
        known = tuple(name for name in task_names() if name not in _SHIPPED)
        for name in only:
            if name not in known:
                raise ConfigError(
                    f"the suite {self.name} has no task {name!r}{did_you_mean(name, known)}",
                    hint=f"its tasks: {', '.join(known)}",
                )
        return tuple(name for name in known if not only or name in only)


SUITES: Mapping[str, Suite] = {
    "quick": Suite(
        "quick",
        {
            "preset": "quick",
            "update": {"epochs": 3, "batch_size": 8},
            "validation": {"every": 3, "subset": 16, "finalists": 1},
        },
        "three updates a task: whether everything runs, not how good it gets",
    ),
    "paper": Suite("paper", {"preset": "paper"}, "the settings of the paper's Table 6"),
}


def suite_named(name: str) -> Suite:
    """ConfigError for an unknown one."""
    if name not in SUITES:
        raise ConfigError(
            f"unknown suite {name!r}{did_you_mean(name, SUITES)}",
            hint=f"pco bench SUITE, with one of {', '.join(SUITES)}",
        )
    return SUITES[name]


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a suite: its configuration (task included), the folder its paths start from, and
    the folder of the suite's runs."""

    config: Config
    base: Path
    folder: Path


@dataclass(frozen=True, slots=True)
class CellResult:
    """What a finished run came to. `rows` are the verdict's, on the test split; `inputs` the texts
    of the examples by id, for a report."""

    task: str
    run: str
    path: Path
    state: State
    rows: tuple[Mapping[str, Any], ...]
    sentence: str
    updates: int
    calls: int
    simulated: bool
    inputs: Mapping[str, str]

    def row(self, name: str) -> Mapping[str, Any] | None:
        """The verdict's row `present`, `concat`, `untrained` or `learned`."""
        return next((row for row in self.rows if row["name"] == name), None)


def run_cell(cell: Cell, command: str = "", listener: Listener = silent) -> CellResult:
    """The cell's run: read back if it is finished, resumed if it stopped, else begun.

    Raises what a run raises, and the Stop that ended it early: asked for again, it goes on.
    """
    made = ready_made(cell.config, cell.base)
    if made is None:
        raise ConfigError("a cell of a suite needs a ready-made task", hint="set task")
    tree = settled(cell.config, made, made.dataset).model_dump(mode="json")
    inputs = {e.id: e.input for _, examples in made.dataset.items() for e in examples}
    found = _matching(cell.folder, tree, made.dataset.fingerprint())
    if found is not None and not found.resumable and not found.running:
        return read_cell(found.path, "skipped", inputs)
    where = Where(cell.folder, None if found is None else found.path, command)
    opened = open_run(cell.config, Sources(cell.base), where, listener)
    run = run_sync(finish(opened), opened.session.interrupt)
    if run.stop is not None:
        raise run.stop
    return read_cell(run.path, "ran" if found is None else "resumed", inputs)


def read_cell(path: Path, state: State, inputs: Mapping[str, str]) -> CellResult:
    """A finished run as a result."""
    store = RunStore.open(path)
    try:
        outline, header, usage = store.outline(), store.header, store.usage()
    finally:
        store.close()
    config = load_config(header.config, where=f"the run {header.id}")
    conclusion = outline.conclusion
    return CellResult(
        task=header.task,
        run=header.id,
        path=path,
        state=state,
        rows=conclusion.rows if conclusion else (),
        sentence=conclusion.text if conclusion else "",
        updates=outline.step + 1,
        calls=sum(each.calls for each in usage.values()),
        simulated=any_simulated(specs_of(config)),
        inputs=inputs,
    )


def _matching(
    folder: Path, tree: Mapping[str, Any], fingerprints: Mapping[str, str]
) -> RunSummary | None:
    """The folder's run of these settings on these data; the furthest if there are several."""
    if not folder.is_dir():
        return None
    fitting = [run for run in list_runs(folder) if _fits(run.path, tree, fingerprints)]
    return max(fitting, key=lambda run: (not run.resumable, run.step), default=None)


def _fits(path: Path, tree: Mapping[str, Any], fingerprints: Mapping[str, str]) -> bool:
    store = RunStore.open(path)
    try:
        header = store.header
    finally:
        store.close()
    return header.fingerprints == fingerprints and not differences(header.config, tree)
