"""One run for one cell of an experiment: found in the folder, resumed, or made now."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

from promptcodebook.assemble import Plan, Sources, plan_run
from promptcodebook.base.sync import Relay, run_sync
from promptcodebook.config import Budget, Config
from promptcodebook.errors import BudgetReached, ConfigError
from promptcodebook.progress import Listener, Note, silent
from promptcodebook.run.opening import Where, open_run, settings_then_and_now
from promptcodebook.run.optimize import finish
from promptcodebook.store.header import differences
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import RunSummary, list_runs

CellState = Literal["ran", "resumed", "skipped"]


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
    it stopped, else made now. With `at_budget` another budget is another run, and one that reached
    its own is finished. Raises what a run raises, RunBusy, and the Stop that ended it early."""
    plan = plan_run(config, sources).require_training()
    runs = fitting_runs(where.runs_dir, plan, config.budget if at_budget else None, listener)
    ended = [run for run in runs if not run.running]
    done = [r for r in ended if not r.resumable or (at_budget and r.ended == "budget")]
    if done:
        return done[-1].path, "skipped"
    begun = max(runs, key=lambda run: run.step, default=None)
    where = replace(where, resume=None if begun is None else begun.path)
    session = open_run(config, sources, where, listener)
    run = run_sync(finish(session), session.interrupt, relay)
    if run.stop is not None and not (at_budget and isinstance(run.stop, BudgetReached)):
        raise run.stop
    return run.path, "ran" if begun is None else "resumed"


def fitting_runs(
    folder: Path, plan: Plan, budget: Budget | None = None, tell: Listener = silent
) -> list[RunSummary]:
    """The folder's runs of these settings and data, oldest first; `tell` hears of lost ones."""
    fitting = list[RunSummary]()
    for run in list_runs(folder) if folder.is_dir() else ():
        with closing(RunStore.open(run.path)) as store:
            header = store.header
        if not header.resumable or header.fingerprints != plan.dataset.fingerprint():
            continue
        try:
            own = header.configuration.budget
        except ConfigError as error:
            tell(Note(f"the run {header.id} is left out: {error}"))
            continue
        if budget in (None, own) and not differences(*settings_then_and_now(header, plan)):
            fitting.append(run)
    return fitting
