"""One run: started or resumed, then from its first call to its verdict. It can be stopped anywhere
and resumed: what was done is read back from the store, what was paid for from the journal, and the
rest is a function of the two. A resumed run must have the settings and data that it began with.
Three things may change: how much to spend and how fast (`store.header.FREE_KEYS`), the address of a
model of the same name, and how long the training is. The header takes over the last two, and an
event records them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from promptcodebook import errors
from promptcodebook.assemble import Plan, Sources, plan_run, try_agent, try_reward
from promptcodebook.base.incidents import Counts, Incident
from promptcodebook.base.paths import read_bytes, run_reference
from promptcodebook.base.text import shell
from promptcodebook.base.units import lost_text, plural
from promptcodebook.calls import ROLES, Role
from promptcodebook.config import Budget, Config, merge
from promptcodebook.config.loading import comparable, optimizer_settings, select_remark
from promptcodebook.lm.spec import require_keys, same_model
from promptcodebook.lm.stack import specs_of
from promptcodebook.method.exploration import epsilon_at
from promptcodebook.method.state import Schedule
from promptcodebook.method.templates import template_sets
from promptcodebook.optimizers.base import (
    Optimizer,
    Problem,
    make_optimizer,
    optimize_metered,
    spending,
)
from promptcodebook.optimizers.reserve import budget_remark
from promptcodebook.policy.policy import Policy
from promptcodebook.policy.references import (
    POLICY,
    kept_state,
    policy_file,
    texts_in,
    with_measured,
)
from promptcodebook.progress import Began, Listener, Note, ProgressEvent, silent
from promptcodebook.run.decision import judge
from promptcodebook.run.slices import as_trees
from promptcodebook.store.events import Amended, Broke, Concluded, Ended, EndReason, RunState
from promptcodebook.store.header import Header, check_resumable, check_run_name, digest
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import list_runs, remove_run
from promptcodebook.tasks.user_code import files_behind

IN_PYTHON = "optimize()"  # replaces what was typed when a run is begun from Python


@dataclass(frozen=True)
class Where:
    """Where runs live, which one to resume (its folder), what was typed, and the run's name.
    `edited` = its code may be edited since; `settings_file` = the pco.toml read."""

    runs_dir: Path
    resume: Path | None = None
    command: str = ""
    name: str = ""
    edited: bool = False
    settings_file: Path | None = None


def open_run(
    config: Config, sources: Sources, where: Where, listener: Listener = silent
) -> Session:
    """Checks everything that can be checked before a call is paid for. Raises ConfigError,
    DataError, TaskError, RunBusy, RunChanged; a run folder made for nothing is removed again."""
    plan = plan_run(config, sources).require_training(begun=where.resume is not None)
    if where.resume is not None and sources.templates is None:
        # The shipped prompts of the version that began the run, which it keeps.
        with closing(RunStore.open(where.resume)) as begun:
            kept, name = begun.header.templates, begun.header.config.get("templates")
        if kept is not None and name == plan.config.templates and name in template_sets():
            plan = replace(plan, templates=kept)
    optimizer = make_optimizer(config.optimizer)
    if sources.lm is None:
        require_keys(specs_of(plan.config))
    if where.resume is not None:
        store = _reopen(where, where.resume, plan, listener)
    else:
        store = RunStore.create(where.runs_dir, _first_header(plan, where))

    def keep(incident: Incident, count: int = 1) -> None:
        (store.count if incident.once else store.count_replayable)(incident, count)

    try:
        supplies = replace(
            store.journal.supplies(),
            tally=Counts(store.tallies(), keep),
            models_then=models_then(store.header, plan.config),
        )
        assembled = plan.connect(supplies)
        schedule = Schedule(assembled.dataset.train, plan.config.update, plan.config.randomness)
        steps = len(schedule.updates()) if plan.config.optimizer == "pco" else 0
        models, first = assembled.models, store.outline().step + 1

        def tell(event: ProgressEvent) -> None:
            for hear in (listener, *(each.hear for each in models.outer)):
                hear(event)

        tell(
            Began(
                run_id=store.header.id,
                path=str(store.path),
                steps=steps,
                first=first,
                size=plan.config.size,
                models=models.by_role(),
                simulated=models.simulated,
            )
        )
        same = [run.id for run in list_runs(where.runs_dir) if run.name == where.name != ""][:-1]
        older = f"{where.name!r} now means this run, not {same[-1]}" if same else ""
        remarks = select_remark(plan.config), plan.dataset.remark, budget_remark(plan), older
        for remark in filter(None, remarks if where.resume is None else ()):
            tell(Note(remark))
        return Session(Problem(assembled, store, tell), optimizer)
    except BaseException:
        store.close()
        if where.resume is None:
            remove_run(store.path)
        raise


def _first_header(plan: Plan, where: Where) -> Header:
    tree, settings = plan.config.model_dump(mode="json"), where.settings_file
    read = {} if settings is None else {settings.name: file_digest(settings)}
    return Header(
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
        files={**read, **code_files(plan)},
        sizes={split: len(examples) for split, examples in plan.dataset.items()},
    )


def _reopen(where: Where, path: Path, plan: Plan, listener: Listener) -> RunStore:
    store = RunStore.open(path, write=True)
    try:
        header = store.header
        if not header.resumable:
            what = (
                f"version {header.version} started the run {header.id}; this one cannot resume it"
            )
            hint = f"start a new run; what this one learned: pco registry show {shell(header.id)}"
            raise errors.RunChanged(what, hint=hint)
        if (recovered := store.journal.attempts.recovered).calls:
            booked = lost_text(recovered)
            listener(Note(f"the last session was killed with calls in flight; {booked}"))
        if where.name not in ("", header.name):
            message = f"the run {header.id} was not started under the name {where.name!r}"
            raise errors.ConfigError(
                message, hint="a run keeps its name: leave the name out when you resume"
            )
        ref = shell(header.id) if header.command == IN_PYTHON else run_reference(path)
        resumption = resume_with(header, store.outline(), plan, ref, edited=where.edited)
        if changes := resumption.changes:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            store.amend(resumption.header, Amended(changes, now, resumption.extended))
            for text in changes:
                listener(Note(text))
    except BaseException:
        store.close()
        raise
    return store


class Session:
    """Runs an optimizer on a problem, then judges. `ended` says how; `stop`: it can be resumed."""

    def __init__(self, problem: Problem, optimizer: Optimizer) -> None:
        self.assembled, self.store = problem.assembled, problem.store
        self.ended: EndReason | None = None
        self.stop: errors.Stop | None = None
        self._problem, self._optimizer = problem, optimizer

    def interrupt(self) -> None:
        """No new call starts; calls in flight finish and are kept (Ctrl-C)."""
        self.assembled.models.budget.stop(errors.Interrupted("interrupted by the user"))
        self._problem.tell(
            Note("stopping: waiting for calls in flight (Ctrl-C again to stop at once)")
        )

    async def run(self) -> None:
        """Optimizes and judges. A Stop is kept; any other error is stored and raised."""
        try:
            await self._run()
        except errors.Stop as stop:
            self._keep_policy()
            self._stopped(stop)
        except errors.PcoError as error:
            self.ended, missing = "failed", ""
            with suppress(errors.PcoError):  # what went wrong may be the disk
                self._keep_policy()
                done = plural(self.store.outline().step + 1, "update")
                why = f"the run failed after {done} ({type(error).__name__})"
                missing = self._unjudged(why)
            if isinstance(error, errors.TooManyFailures):
                self.store.append(Broke(self.store.outline().step + 1, error.traces))
                again = "start a new run"  # one that resumes keeps its model
                if error.kind not in ("ModelNotFound", "ConfigError"):
                    again = f"continue with: {self._resume_hint()} (at another address: "
                    again += f"{self._resume_hint('lm=NEW')}; to change a setting, start a new run)"
                error.hint = f"{error.hint}; then {again}"
            detail = f"{type(error).__name__}: {error}"
            self.store.append(Ended("failed", detail, missing, error.hint or ""))
            raise
        finally:
            self._problem.tell(spending(self.assembled.models))

    async def _run(self) -> None:
        plan, store = self.assembled.plan, self.store
        begun = store.outline().parameters is not None
        if not begun and not plan.config.task and plan.config.user_code.trial:
            # The user's own reward, before its first call; ConfigError: it cannot be used.
            for warning in (await try_reward(plan)).warnings:
                self._problem.tell(Note(warning))
        if not begun:
            await try_agent(plan)
        if store.header.command != IN_PYTHON:  # no trial has removed the run: it can be resumed
            self._problem.tell(Note(f"Ctrl-C stops the run; `{self._resume_hint()}` resumes it"))
        result = await optimize_metered(self._optimizer, self._problem)
        if result.policy is not None:
            result.policy.save(Path(store.path) / POLICY)
        made, short = await judge(self._problem, result)
        # What was concluded of the same rows stays: labels may have changed it since.
        if made.sentence not in {each.text for each in store.conclusions()}:
            store.append(
                Concluded(
                    made.sentence,
                    made.worth,
                    made.table.as_json(),
                    made.deploy,
                    settings=result.settings,
                    candidates=tuple(result.candidates),
                    missing=made.missing,
                    earlier=made.earlier,
                    slices=as_trees(made.slices),
                )
            )
        if (stop := result.stop or short) is not None:
            self._stopped(stop)
            return
        store.append(Ended(result.ended))
        self.ended = result.ended

    def _stopped(self, stop: errors.Stop) -> None:
        reached = isinstance(stop, errors.BudgetReached)
        stop.hint = self._resume_hint("budget=MORE" if reached else "")
        judged = self.store.outline().conclusion is not None
        self.ended, self.stop = "budget" if reached else "interrupted", stop
        if judged and reached:
            stop.hint += "; if it trains on, the next verdict's intervals are wider"
        missing = "" if judged else self._unjudged(str(stop))
        self.store.append(Ended(self.ended, str(stop), missing, stop.hint))

    def _keep_policy(self) -> None:
        """Writes the policy file of the best state so far: one exists however the run ends."""
        if self.store.outline().parameters is not None:
            state, _ = kept_state(self.store)
            policy_file(self.assembled, state).save(Path(self.store.path) / POLICY)

    def _unjudged(self, why: str) -> str:
        done = [mark.name for mark in self.store.outline().tests]
        rows = f" (judged so far: {', '.join(done)})" if done else ""
        return f"No verdict: {why}{rows}."

    def _resume_hint(self, more: str = "") -> str:
        header = self.store.header
        if header.command == IN_PYTHON:
            return f"optimize(..., resume={header.id!r}{more and f', {more}'})"
        typed = f"pco train --resume {run_reference(self.store.path)}"
        whole = "  # MORE: a limit for the whole run" if "MORE" in more else ""
        return f"{typed} --{more.replace('=', ' ')}{whole}" if more else typed

    def policy(self) -> Policy:
        """The policy that the run learned, with connections of its own: it outlives the run."""
        state, best = kept_state(self.store)
        plan, header = self.assembled.plan, self.store.header
        file = with_measured(policy_file(self.assembled, state), self.store).with_about(
            run=header.id, version=header.version, score=best.score
        )
        unlimited = plan.config.model_copy(update={"budget": Budget(), "cache": False})
        return Policy(file, replace(plan, config=unlimited).connect())

    async def close(self) -> None:
        try:
            await self.assembled.models.close()
        finally:
            self.store.close()


# Resuming: what may be different.

_FLAT = "update.stop_when_flat"
# What to raise (one of these) to train a run of ours longer that ended so; and the end in words.
_ENDS: Mapping[EndReason | None, tuple[tuple[str, ...], str]] = {
    "finished": (("update.epochs",), "is finished"),
    "early_stop": (("validation.patience", _FLAT), "ended early, since there was no further gain"),
    "target": (("validation.target_score",), "ended at its target"),
}


def _more_of(optimizer: str) -> str | None:
    """What must be raised for a finished run of another optimizer; None where nothing helps."""
    model = optimizer_settings(optimizer).get(optimizer)
    return f"{model.table}.{model.longer}" if model is not None and model.longer else None


def _longer_keys(config: Config) -> list[str]:
    """Settings that decide when a training ends, with the one that its optimizer names."""
    keys = (*(key for keys, _ in _ENDS.values() for key in keys), _more_of(config.optimizer))
    return [key for key in keys if key]


@dataclass(frozen=True, slots=True)
class Resumption:
    """Its header from now on, and each change in words. `extended` = training gets longer."""

    header: Header
    changes: tuple[str, ...] = ()
    extended: bool = False


def resume_with(
    header: Header, state: RunState, plan: Plan, ref: str, *, edited: bool
) -> Resumption:
    """How the run resumes; `ref` is typed for it, `edited` says that its code may have changed.
    Raises RunChanged when it cannot resume so."""
    before, (then, now) = header.configuration, settings_then_and_now(header, plan)
    moved = _moved(before, plan.config)
    longer = dict(_longer(then, now, state, plan))
    same = _with(now, {key: _at(then, key) for key in longer})
    if moved:
        roles = {role: then["roles"].get(role, {}).get("model") for role in now["roles"]}
        models = {role: {"model": model} for role, model in roles.items()}
        same = merge(same, {"lm": then["lm"], "roles": models})
    data, prints = plan.config.data, (header.fingerprints, plan.dataset.fingerprint())
    files = filter(None, (data.path, data.train, data.val, data.test, plan.config.data_dir))
    check_resumable(header.id, (then, same), prints, ", ".join(files))
    marks = code_files(plan)
    changed = [name for name, mark in marks.items() if header.files.get(name, mark) != mark]
    # After a failure an edit is expected: its message asks for it.
    if changed and not edited and state.ended != "failed":
        raise errors.RunChanged(
            f"{', '.join(changed)} changed since the run {header.id} started",
            hint=f"restore it, or accept the edit: pco train --resume {ref} --edited",
        )
    _require_unfinished(header, state, ref, longer)
    changes = (*moved, *longer.values(), *(f"{name} was edited" for name in changed))
    amended = _amended(header, before, plan, marks) if changes else header
    return Resumption(amended, changes, bool(longer))


def settings_then_and_now(
    header: Header, plan: Plan
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """A run's settings and the plan's, comparable: newer keys have defaults, templates count."""
    then, now = comparable(header.settings, plan.config.model_dump(mode="json"))
    if header.templates is not None and then["templates"] == now["templates"]:
        for tree, templates in ((then, header.templates), (now, plan.templates)):
            marks = templates.fingerprint().items()
            tree.update({f"templates/{file}": mark for file, mark in marks})
    return then, now


def models_then(header: Header, config: Config) -> dict[tuple[Role, str], str]:
    """The spec under which the replies of a role lie in the journal, where it is another now."""
    now = {role: config.model_of(role) for role in header.specs}
    return {(role, now[role]): spec for role, spec in header.specs.items() if spec != now[role]}


def _moved(before: Config, now: Config) -> tuple[str, ...]:
    """The models that are served elsewhere now, in words; () where any of them is another model."""
    specs = dict.fromkeys((before.model_of(role), now.model_of(role)) for role in ROLES)
    other = [(old, new) for old, new in specs if old != new]
    if not all(same_model(old, new) for old, new in other):
        return ()
    return tuple(f"the model {old} is now called at {new}" for old, new in other)


def _longer(
    then: Mapping[str, Any], now: Mapping[str, Any], state: RunState, plan: Plan
) -> Iterator[tuple[str, str]]:
    for key in _longer_keys(plan.config):
        old, new = _at(then, key), _at(now, key)
        # What is not set follows from what was planned; but two that are not set end no run.
        ends = key not in ("validation.target_score", _FLAT)
        farther = ends if old is None else new is None or new > old
        if old == new or not farther:
            continue
        before, after = ("none" if value is None else f"{value:g}" for value in (old, new))
        change = f"{key}: {before} → {after}"
        if key == "update.epochs" and state.epsilon is not None:
            # ε falls over all of a training's epochs.
            explore, epochs = plan.config.explore, plan.config.update.epochs
            epsilon = epsilon_at(state.epoch + 1, explore, epochs)
            if abs(epsilon - state.epsilon) >= 0.005:
                change += (
                    f" (ε now falls over {epochs} epochs and changes from {state.epsilon:.2f} to "
                    f"{epsilon:.2f}; a new run can set explore.gamma)"
                )
        yield key, change


def _require_unfinished(
    header: Header, state: RunState, ref: str, longer: Mapping[str, str]
) -> None:
    keys, why = _ENDS.get(state.ended, ((), ""))
    name = header.settings.get("optimizer", "pco")
    if not why or longer.keys() & (keys if name == "pco" else {_more_of(name)}):
        return
    flat = header.configuration.update.stop_when_flat is not None
    more = keys[-1 if flat else 0] if name == "pco" else _more_of(name)
    hint = f"to train it longer: pco train --resume {ref} --set {more}=MORE"
    if more is None:
        hint = "start a new run"
    elif header.command == IN_PYTHON:
        group, _, key = more.partition(".")
        config = f"{{{group!r}: {{{key!r}: MORE}}}}"
        hint = f"to train it longer: optimize(..., resume={ref!r}, config={config})"
    elif name == "pco":
        again = "--set init.kind=file --set init.path=RUN/policy.json"
        hint += f"; or start a new run from its policy: {again}"
    raise errors.RunChanged(f"the run {header.id} {why}: there is nothing to resume", hint=hint)


def code_files(plan: Plan) -> dict[str, str]:
    """SHA-256 of each file of code that the settings name, by its name in them, and
    of those beside it that it imports."""
    config, base = plan.config, plan.sources.base
    found = dict[str, str]()
    if config.task:
        return found
    for text in texts_in([config.reward, config.executor, plan.sources.executor]):
        name, colon, _ = text.rpartition(":")
        if colon and name.endswith(".py"):
            found[name] = file_digest(base / name)
            for helper in files_behind(base / name)[1:]:
                beside = Path(name).parent / os.path.relpath(helper, (base / name).parent)
                found[str(beside)] = file_digest(helper)
    return found


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of the file; '' where it cannot be read."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except OSError:
        return ""


def _amended(header: Header, before: Config, plan: Plan, files: Mapping[str, str]) -> Header:
    config, now = plan.config, plan.config.model_dump(mode="json")
    tree = _with(header.settings, {key: _at(now, key) for key in ("lm", *_longer_keys(config))})
    for role, settings in now["roles"].items():
        kept = tree.setdefault("roles", {}).setdefault(role, {})
        kept |= {"model": settings["model"], "headers": settings["headers"]}
    specs = {
        role: header.specs.get(role) or before.model_of(role)
        for role in ROLES
        if before.model_of(role) != config.model_of(role) or role in header.specs
    }
    files, mark = {**header.files, **files}, digest(tree)
    return replace(header, config=tree, config_digest=mark, specs=specs, files=files)


def _at(tree: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        tree = tree[part]
    return tree


def _with(tree: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in values.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        tree = merge(tree, value)
    return dict(tree)
