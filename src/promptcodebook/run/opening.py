"""Starts a run or resumes one: puts plan, store, models and session together.

A resumed run must have the settings and data that it began with. Three things may change: how much
to spend and how fast (`store.header.FREE_KEYS`), the address of a model of the same name, and how
long the training is. The header takes over the last two, and an event records them. Earlier replies
are found under the spec that they were asked for by (`Header.specs`), wherever the model is served.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from promptcodebook.assemble import Assembled, Plan, Sources, plan_run
from promptcodebook.calls import ROLES, Role
from promptcodebook.config import Budget, Config, comparable, load_config, merge, optimizer_settings
from promptcodebook.errors import ConfigError, RunChanged
from promptcodebook.incidents import Counts, Incident
from promptcodebook.lm.budget import Ledger
from promptcodebook.lm.connections import require_keys
from promptcodebook.lm.spec import parse_spec
from promptcodebook.lm.stack import Supplies, specs_of
from promptcodebook.method.policy import epsilon_at
from promptcodebook.method.state import Schedule
from promptcodebook.method.templates import TemplateSet
from promptcodebook.optimizers.base import Problem, make_optimizer
from promptcodebook.paths import run_reference
from promptcodebook.policy.policy import Policy
from promptcodebook.policy.references import kept_state, policy_file, texts_in, with_measured
from promptcodebook.progress import Began, Listener, Note, silent
from promptcodebook.run.session import IN_PYTHON, Session
from promptcodebook.store.events import Amended, EndReason, RunState
from promptcodebook.store.header import Header, check_resumable, check_run_name, digest
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import remove_run, remove_unborn
from promptcodebook.units import lost_text

_LONGER = (
    "update.epochs",
    "validation.patience",
    "validation.target_score",
)
"""Settings that decide when our training ends, and nothing of what came before its end."""
_ENOUGH: Mapping[EndReason, str] = {
    "finished": "update.epochs",
    "early_stop": "validation.patience",
    "target": "validation.target_score",
}
"""What must be raised for a run that ended so, if the optimizer is ours."""


def _enough(optimizer: str) -> str | None:
    """What must be raised for a finished run of another optimizer; None where nothing helps."""
    model = optimizer_settings(optimizer).get(optimizer)
    return f"{model.table}.{model.longer}" if model is not None and model.longer else None


def _longer_keys(config: Config) -> tuple[str, ...]:
    """Settings that decide when a training ends, with the one that its optimizer names."""
    own = _enough(config.optimizer)
    return (*_LONGER, own) if own else _LONGER


@dataclass(frozen=True, slots=True)
class Resumption:
    """How a run resumes: its header from now on, and each change in words. `extended` = training
    gets longer, so that earlier judgements no longer count."""

    header: Header
    changes: tuple[str, ...] = ()
    extended: bool = False


def resume_with(
    header: Header, state: RunState, plan: Plan, ref: str, *, edited: bool
) -> Resumption:
    """How the run resumes with this plan; `ref` is what is typed for the run, `edited` = also where
    a file of code was edited.

    Raises RunChanged for what must not be different, and for a run that is finished.
    """
    then, now = settings_then_and_now(header, plan)
    moved, now = _moved(then, now, header, plan)
    longer = tuple(_longer(then, now, state, plan))
    same = _with(now, {key: _at(then, key) for key, _ in longer})
    check_resumable(
        header.id,
        (then, same),
        (header.fingerprints, plan.dataset.fingerprint()),
        _data_files(plan.config),
    )
    files = code_files(plan)
    changed = _edited(header, files, state, ref, edited)
    _require_unfinished(header, state, ref, [key for key, _ in longer])
    changes = (*moved, *(text for _, text in longer), *changed)
    if not changes:
        return Resumption(header)
    return Resumption(_amended(header, plan, files), changes, bool(longer))


def settings_then_and_now(
    header: Header, plan: Plan
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """A run's settings and the plan's, comparable: keys that are newer than the run have their
    defaults, and template files are settings too."""
    then, now = comparable(header.settings, plan.config.model_dump(mode="json"))
    if header.templates is not None and then["templates"] == now["templates"]:
        then.update(_prints(header.templates))
        now.update(_prints(plan.templates))
    return then, now


def _prints(templates: TemplateSet) -> dict[str, str]:
    """The templates as settings: a changed file counts as a changed setting."""
    return {f"templates/{file}": mark for file, mark in templates.fingerprint().items()}


def models_then(header: Header, config: Config) -> dict[tuple[Role, str], str]:
    """The spec under which the replies of a role lie in the journal, where it is another now."""
    return {
        (role, config.model_of(role)): spec
        for role, spec in header.specs.items()
        if spec != config.model_of(role)
    }


def _moved(
    then: Mapping[str, Any], now: Mapping[str, Any], header: Header, plan: Plan
) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """What is said of models that are served elsewhere now, and `now` as if they were not."""
    before = load_config(header.settings, where="the stored configuration")
    specs = {role: (before.model_of(role), plan.config.model_of(role)) for role in ROLES}
    other = dict.fromkeys(pair for pair in specs.values() if pair[0] != pair[1])
    if not other or not all(_same_model(*pair) for pair in other):
        return (), now
    back = merge(now, {"lm": then["lm"]})
    for role, settings in back["roles"].items():
        settings["model"] = _at(then, "roles").get(role, {}).get("model")
    return tuple(f"the model {old} is called at {new} now" for old, new in other), back


def _same_model(old: str, new: str) -> bool:
    try:
        first, second = parse_spec(old), parse_spec(new)
    except ConfigError:
        return False
    served = all(spec.kind in ("http", "openai") for spec in (first, second))
    return served and first.model == second.model != ""


def _longer(
    then: Mapping[str, Any], now: Mapping[str, Any], state: RunState, plan: Plan
) -> Iterator[tuple[str, str]]:
    """Each key that puts the end off, with what is said of it."""
    for key in _longer_keys(plan.config):
        old, new = _at(then, key), _at(now, key)
        # What is not set follows from what was planned; but without a target none is reached.
        farther = key != "validation.target_score" if old is None else new is None or new > old
        if old == new or not farther:
            continue
        said = f"{key}: {_number(old)} → {_number(new)}"
        if key == "update.epochs":
            said += _exploring(state, plan.config)
        yield key, said


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def _exploring(state: RunState, config: Config) -> str:
    """What a longer training does to ε, which falls over all of its epochs."""
    explore = config.explore
    after = epsilon_at(state.epoch + 1, explore, config.update.epochs)
    if state.epsilon is None or abs(after - state.epsilon) < 0.005:
        return ""
    return (
        f" (ε falls over {config.update.epochs} epochs now: it was {state.epsilon:.2f} and goes "
        f"on at {after:.2f}; explore.gamma in a new run holds it to a course of its own)"
    )


def _require_unfinished(header: Header, state: RunState, ref: str, longer: list[str]) -> None:
    if state.ended is None or state.ended not in _ENOUGH:
        return
    name = header.settings.get("optimizer", "pco")
    key = _ENOUGH[state.ended] if name == "pco" else _enough(name)
    if key in longer:
        return
    why = {
        "finished": "is finished",
        "early_stop": "ended early, since its last validations brought no gain",
        "target": "ended at its target",
    }
    raise RunChanged(
        f"the run {header.id} {why[state.ended]}: there is nothing to resume",
        hint="start a new run" if key is None else _how_to_go_on(header, key, ref),
    )


def _how_to_go_on(header: Header, key: str, ref: str) -> str:
    """What to type for a finished run; `key` is what must be raised."""
    if header.command == IN_PYTHON:
        group, _, name = key.partition(".")
        more = f"{{{group!r}: {{{name!r}: MORE}}}}"
        return f"to train it longer: optimize(..., resume={ref!r}, config={more})"
    longer = f"to train it longer: pco train --resume {ref} --set {key}=MORE"
    if key not in _LONGER:
        return longer
    again = "--set init.kind=file --set init.path=RUN/policy.json"
    return f"{longer}; or start a new run from its policy: {again}"


def _edited(
    header: Header, files: Mapping[str, str], state: RunState, ref: str, edited: bool
) -> tuple[str, ...]:
    """What is said of files of code that are not what they were. After a failure that is expected:
    its message asks for it."""
    names = [
        name for name, mark in files.items() if name in header.files and header.files[name] != mark
    ]
    if names and not edited and state.ended != "failed":
        raise RunChanged(
            f"{', '.join(names)} changed since the run {header.id} started",
            hint=f"put it back, or use it as it is now: pco train --resume {ref} --edited",
        )
    return tuple(f"{name} was edited" for name in names)


def code_files(plan: Plan) -> dict[str, str]:
    """SHA-256 of each file of code that the settings name, by its name in them; a task that is
    ready-made names none."""
    config = plan.config
    if config.task:
        return {}
    found: dict[str, str] = {}
    for text in texts_in([config.reward, config.executor, plan.sources.executor]):
        name, colon, _ = text.rpartition(":")
        if colon and name.endswith(".py"):
            found[name] = file_digest(plan.sources.base / name)
    return found


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of the file; '' where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _data_files(config: Config) -> str:
    """Where the data lie, for a message about them."""
    data = config.data
    named = (data.path, data.train, data.val, data.test, config.data_dir)
    return ", ".join(name for name in named if name)


def _amended(header: Header, plan: Plan, files: Mapping[str, str]) -> Header:
    """The header with what changed: models and their headers, training length, code."""
    now = plan.config.model_dump(mode="json")
    before = load_config(header.settings, where="the stored configuration")
    tree = _with(
        header.settings, {key: _at(now, key) for key in ("lm", *_longer_keys(plan.config))}
    )
    for role, settings in now["roles"].items():
        kept = tree.setdefault("roles", {}).setdefault(role, {})
        kept |= {"model": settings["model"], "headers": settings["headers"]}
    specs = {
        role: header.specs.get(role) or before.model_of(role)
        for role in ROLES
        if before.model_of(role) != plan.config.model_of(role) or role in header.specs
    }
    return replace(
        header,
        config=tree,
        config_digest=digest(tree),
        specs=specs,
        files={**header.files, **files},
    )


def _at(tree: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        tree = tree[part]
    return tree


def _with(tree: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with these dotted keys set."""
    for key, value in values.items():
        layer: Any = value
        for part in reversed(key.split(".")):
            layer = {part: layer}
        tree = merge(tree, layer)
    return dict(tree)


@dataclass(frozen=True)
class Where:
    """Where runs live, which one to resume (its folder), what was typed, and the run's name.

    `edited` = a run may resume although its code was edited; `settings_file` = the pco.toml read.
    """

    runs_dir: Path
    resume: Path | None = None
    command: str = ""
    name: str = ""
    edited: bool = False
    settings_file: Path | None = None


@dataclass(frozen=True)
class Opened:
    """A run that is ready to begin: its session and what the session uses."""

    assembled: Assembled
    store: RunStore
    session: Session

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
    plan = plan_run(config, sources)
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


def _files(plan: Plan, settings_file: Path | None) -> dict[str, str]:
    """What the settings came from and what they name, to be recognised when the run resumes."""
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
        if not header.resumable:
            raise RunChanged(
                f"the run {header.id} was begun by version {header.version}, which this version "
                "cannot resume",
                hint=f"start a new run; what it learned can be used: pco codebook show {header.id}",
            )
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
