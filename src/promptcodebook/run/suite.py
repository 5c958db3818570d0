"""A suite of runs, one a cell: finished cells are read back, stopped ones go on.

A cell is a task under a configuration on given data; its run is recognised by all three, so that
the same suite asked for again finds what it has done, and a changed setting or file is a new cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from promptcodebook.assemble import Plan, Sources, plan_run
from promptcodebook.config import Config, load_config
from promptcodebook.errors import ConfigError, MissingExtra, PcoError, did_you_mean
from promptcodebook.lm.connections import LocalModels, require_keys
from promptcodebook.lm.stack import specs_of, uses_simulated
from promptcodebook.progress import Listener, silent
from promptcodebook.run.opening import Where, open_run, settings_then_and_now
from promptcodebook.run.optimize import finish
from promptcodebook.store.header import differences
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import RunSummary, list_runs
from promptcodebook.sync import run_sync

CellState = Literal["ran", "resumed", "skipped"]

BENCHMARKS = ("aime", "hotpotqa", "hover", "ifbench", "livebench_math", "pupa")
"""Those of the paper; other tasks, ours or installed, are in no suite."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Settings that every cell shares; what is typed goes over them."""

    name: str
    settings: Mapping[str, Any]
    description: str

    def tasks(self, only: Sequence[str] = ()) -> tuple[str, ...]:
        """The benchmarks, or those of them in `only`; ConfigError for any other name."""
        for name in only:
            if name not in BENCHMARKS:
                raise ConfigError(
                    f"the suite {self.name} has no task {name!r}{did_you_mean(name, BENCHMARKS)}",
                    hint=f"its tasks: {', '.join(BENCHMARKS)}",
                )
        return tuple(name for name in BENCHMARKS if not only or name in only)


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
    """One run of a suite: its configuration (task included), the folder its paths start from, the
    folder of the suite's runs, and the models of this process that its cells share."""

    config: Config
    base: Path
    folder: Path
    local: LocalModels | None = None

    @property
    def sources(self) -> Sources:
        return Sources(self.base, local=self.local)


@dataclass(frozen=True, slots=True)
class CellResult:
    """What a finished run came to. `rows` are the verdict's, on the test split; `inputs` the texts
    of the examples by id, for a report."""

    task: str
    run: str
    path: Path
    state: CellState
    rows: tuple[Mapping[str, Any], ...]
    sentence: str
    updates: int
    calls: int
    simulated: bool
    inputs: Mapping[str, str]

    @property
    def base(self) -> Mapping[str, Any] | None:
        """The verdict's first row, which gains are measured against; None without a test split."""
        return self.rows[0] if self.rows else None

    @property
    def result(self) -> Mapping[str, Any] | None:
        """The verdict's last row: what the run came to."""
        return self.rows[-1] if self.rows else None


def require_all(cells: Sequence[Cell]) -> None:
    """Raises what the user has to mend before any cell is begun: a key that is not set, a package
    that a benchmark's program or scorer needs. What is amiss with one cell alone waits for it."""
    for cell in cells:
        require_keys(specs_of(cell.config))
        try:
            plan_run(cell.config, cell.sources).require_training()
        except MissingExtra:
            raise
        except PcoError:
            pass


def run_cell(cell: Cell, command: str = "", listener: Listener = silent) -> CellResult:
    """The cell's run: read back if it is finished, resumed if it stopped, else begun.

    Raises what a run raises (before it is begun, MissingExtra for a task that needs what is not
    there), and the Stop that ended it early: asked for again, it goes on.
    """
    if not cell.config.task:
        raise ConfigError("a cell of a suite needs a ready-made task", hint="set task")
    plan = plan_run(cell.config, cell.sources).require_training()
    inputs = {e.id: e.input for _, examples in plan.dataset.items() for e in examples}
    earlier = _earlier_run(cell.folder, plan)
    if earlier is not None and not earlier.resumable and not earlier.running:
        return read_cell(earlier.path, "skipped", inputs)
    where = Where(cell.folder, None if earlier is None else earlier.path, command)
    opened = open_run(cell.config, cell.sources, where, listener)
    run = run_sync(finish(opened), opened.session.interrupt)
    if run.stop is not None:
        raise run.stop
    return read_cell(run.path, "ran" if earlier is None else "resumed", inputs)


def read_cell(path: Path, state: CellState, inputs: Mapping[str, str]) -> CellResult:
    """A finished run as a result."""
    store = RunStore.open(path)
    try:
        outline, header, usage = store.outline(), store.header, store.usage()
    finally:
        store.close()
    config = load_config(header.settings, where=f"the run {header.id}")
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
        simulated=uses_simulated(config),
        inputs=inputs,
    )


def _earlier_run(folder: Path, plan: Plan) -> RunSummary | None:
    """The folder's run of these settings on these data; the furthest if there are several."""
    runs = fitting_runs(folder, plan)
    return max(runs, key=lambda run: (not run.resumable, run.step), default=None)


def fitting_runs(folder: Path, plan: Plan) -> list[RunSummary]:
    """The folder's runs of these settings on these data, oldest first."""
    if not folder.is_dir():
        return []
    return [run for run in list_runs(folder) if _fits(run.path, plan)]


def _fits(path: Path, plan: Plan) -> bool:
    store = RunStore.open(path)
    try:
        header = store.header
    finally:
        store.close()
    if header.fingerprints != plan.dataset.fingerprint():
        return False
    return not differences(*settings_then_and_now(header, plan))
