"""Runs that are known by their settings and data: asked for again, one is read back or resumed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

from promptcodebook.assemble import Plan, Sources, plan_run
from promptcodebook.config import Budget, Config, load_config
from promptcodebook.errors import BudgetReached
from promptcodebook.progress import Listener, silent
from promptcodebook.run.opening import Where, open_run, settings_then_and_now
from promptcodebook.run.optimize import finish
from promptcodebook.store.header import Header, differences
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import RunSummary, list_runs
from promptcodebook.sync import Relay, run_sync

CellState = Literal["ran", "resumed", "skipped"]

BENCHMARKS = ("aime", "hotpotqa", "hover", "ifbench", "livebench_math", "pupa")
"""Those of the paper; other tasks, ours or installed, are in no suite."""


def run_once(
    config: Config,
    sources: Sources,
    where: Where,
    listener: Listener = silent,
    relay: Relay | None = None,
    *,
    at_budget: bool = False,
) -> tuple[Path, CellState]:
    """The run of these settings on these data in the folder of `where`: found finished, resumed if
    it stopped, else made now.

    With `at_budget` a run is compared at its budget: another budget is another run, and one that
    reached its own is finished. Raises what a run raises, RunBusy where another process writes it,
    and the Stop that ended it early.
    """
    plan = plan_run(config, sources).require_training()
    runs = fitting_runs(where.runs_dir, plan)
    if at_budget:
        runs = [run for run in runs if _budget_of(run.path) == config.budget]
    ended = [run for run in runs if not run.running]
    done = [r for r in ended if not r.resumable or (at_budget and r.ended == "budget")]
    if done:
        return done[-1].path, "skipped"
    begun = max(runs, key=lambda run: run.step, default=None)
    where = replace(where, resume=None if begun is None else begun.path)
    opened = open_run(config, sources, where, listener)
    run = run_sync(finish(opened), opened.session.interrupt, relay)
    if run.stop is not None and not (at_budget and isinstance(run.stop, BudgetReached)):
        raise run.stop
    return run.path, "ran" if begun is None else "resumed"


def fitting_runs(folder: Path, plan: Plan) -> Sequence[RunSummary]:
    """The folder's runs of these settings on these data, oldest first."""
    if not folder.is_dir():
        return []
    return [run for run in list_runs(folder) if _fits(_header_of(run.path), plan)]


def _fits(header: Header, plan: Plan) -> bool:
    same_data = header.fingerprints == plan.dataset.fingerprint()
    return header.resumable and same_data and not differences(*settings_then_and_now(header, plan))


def _budget_of(path: Path) -> Budget:
    return load_config(_header_of(path).settings, where="the stored configuration").budget


def _header_of(path: Path) -> Header:
    with closing(RunStore.open(path)) as store:
        return store.header
