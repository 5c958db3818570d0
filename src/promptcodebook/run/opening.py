"""Starts a run, or opens an old one to go on: plan, store, models and session put together."""

from __future__ import annotations

import importlib.metadata
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from promptcodebook.assemble import Assembled, Plan, Sources, plan_run
from promptcodebook.config import Budget, Config
from promptcodebook.errors import ConfigError
from promptcodebook.incidents import Counts, Incident
from promptcodebook.lm.ledger import Ledger
from promptcodebook.lm.providers import require_keys
from promptcodebook.lm.stack import Supplies, specs_of
from promptcodebook.method.schedule import Schedule
from promptcodebook.optimizers.base import Problem, make_optimizer
from promptcodebook.paths import run_reference
from promptcodebook.policy.policy import Policy
from promptcodebook.policy.references import kept_state, policy_file, with_measured
from promptcodebook.progress import Began, Listener, Note, silent
from promptcodebook.run.resuming import code_files, file_digest, models_then, resume_with
from promptcodebook.run.session import IN_PYTHON, Session
from promptcodebook.store.events import Amended
from promptcodebook.store.header import Header, check_run_name, digest
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import remove_run, remove_unborn
from promptcodebook.units import lost_text


@dataclass(frozen=True)
class Where:
    """Where runs live, which one to resume (its folder), what was typed, and the run's name.

    `edited` = a run may go on although its code was edited; `settings_file` = the pco.toml read.
    """

    runs_dir: Path
    resume: Path | None = None
    command: str = ""
    name: str = ""
    edited: bool = False
    settings_file: Path | None = None


@dataclass(frozen=True)
class Opened:
    """A run ready to go: the session and what it stands on."""

    assembled: Assembled
    store: RunStore
    session: Session

    def policy(self) -> Policy:
        """The policy the run stands for, with connections of its own: it outlives the run."""
        state, best = kept_state(self.store)
        plan, header = self.assembled.plan, self.store.header
        file = with_measured(policy_file(self.assembled, state), self.store).with_about(
            run=header.id, version=header.version, score=best.score
        )
        unlimited = plan.config.model_copy(update={"budget": Budget(), "cache": False})
        return Policy(file, replace(plan, config=unlimited).connect())

    async def close(self) -> None:
        """Closes connections, then the store."""
        try:
            await self.assembled.models.close()
        finally:
            self.assembled.plan.calls.close()
            self.store.close()


def open_run(config: Config, sources: Sources, where: Where, listener: Listener = silent) -> Opened:
    """Checks everything that can be checked before a call is paid for.

    Raises ConfigError, DataError, TaskError, RunBusy, RunChanged; a run folder made for nothing is
    removed again.
    """
    plan = plan_run(_as_begun(config, where.resume), sources)
    plan = plan.require_training(begun=where.resume is not None)
    optimizer = make_optimizer(config.optimizer)
    specs = specs_of(plan.config)
    if sources.lm is None:
        require_keys(specs)
    store = _store(plan, where, listener)
    try:
        assembled = plan.connect(_supplies(store, plan.config))
        session = Session(Problem(assembled, store, listener), optimizer)
        listener(_announcement(assembled, store))
        return Opened(assembled, store, session)
    except BaseException:
        store.close()
        if where.resume is None:
            remove_run(store.path)
        raise


def _as_begun(config: Config, resumed: Path | None) -> Config:
    """Without the critic's safety clause where the run that goes on is older than that: else its
    replies would be asked for, and paid, again."""
    if resumed is None:
        return config
    store = RunStore.open(resumed)
    try:
        older = store.header.without_clause
    finally:
        store.close()
    critic = config.critic.model_copy(update={"safety": False})
    return config.model_copy(update={"critic": critic}) if older else config


def _files(plan: Plan, settings_file: Path | None) -> dict[str, str]:
    """What the settings came from and what they name, to be recognised when the run goes on."""
    read = {settings_file.name: file_digest(settings_file)} if settings_file is not None else {}
    return {**read, **code_files(plan)}


def _supplies(store: RunStore, config: Config) -> Supplies:
    """The run's journal, what it spent so far, its counts and its clock."""

    def keep(incident: Incident, count: int = 1) -> None:
        """Counts at once what happens once, and the rest with the step it belongs to."""
        (store.count if incident.once else store.count_replayable)(incident, count)

    return Supplies(
        log=store.reply_log,
        ledger=Ledger(store.usage(), store.lost(), store.attempt_log),
        tally=Counts(store.tallies(), keep),
        elapsed=lambda: store.elapsed_s,
        models_then=models_then(store.header, config),
    )


def _announcement(assembled: Assembled, store: RunStore) -> Began:
    config = assembled.config
    schedule = Schedule(assembled.dataset.train, config.update, config.randomness)
    return Began(
        run_id=store.header.id,
        path=str(store.path),
        steps=len(schedule.updates()) if config.optimizer == "pco" else 0,
        first=store.outline().step + 1,
        size=config.size,
        models=assembled.models.by_role(),
        simulated=assembled.models.simulated,
    )


def _store(plan: Plan, where: Where, listener: Listener) -> RunStore:
    if where.resume is not None:
        return _reopen(where, where.resume, plan, listener)
    tree = plan.config.model_dump(mode="json")
    header = Header(
        id="",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        version=importlib.metadata.version("promptcodebook"),
        task=plan.config.task or plan.dataset.name,
        command=where.command,
        base=str(plan.sources.base.resolve()),
        config=tree,
        config_digest=digest(tree),
        fingerprints=plan.dataset.fingerprint(),
        private=plan.task.private,
        program=plan.task.program.name,
        stages=plan.prompt_stages,
        templates=plan.templates,
        present=plan.present_prompt,
        name=check_run_name(where.name),
        files=_files(plan, where.settings_file),
        sizes={split: len(examples) for split, examples in plan.dataset.items()},
    )
    remove_unborn(where.runs_dir)
    return RunStore.create(where.runs_dir, header, clock=time.monotonic)


def _reopen(where: Where, path: Path, plan: Plan, listener: Listener) -> RunStore:
    store = RunStore.open(path, write=True)
    try:
        header = store.header
        if store.recovered.calls:
            booked = lost_text(store.recovered)
            listener(Note(f"the last session was killed with calls in flight; {booked}"))
        if where.name not in ("", header.name):
            raise ConfigError(
                f"the run {header.id} was not begun under the name {where.name!r}",
                hint="a run keeps its name: leave the name out when you resume",
            )
        ref = header.id if header.command == IN_PYTHON else run_reference(path)
        resumption = resume_with(header, store.outline(), plan, ref, edited=where.edited)
        if resumption.changes:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            changes = resumption.changes
            store.amend(resumption.header, Amended(changes, now, resumption.extended))
            for text in changes:
                listener(Note(text))
    except BaseException:
        store.close()
        raise
    return store
