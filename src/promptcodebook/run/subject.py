"""A policy and what it is used under: one way for the command line and for Python. A policy is a
Run, a Policy, or a REF. Objects that a Run or a Policy of this process was made with are used
again; what is read from a disk needs its objects (data, reward, lm, executor) again."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from promptcodebook.assemble import OWN_LM, Assembled, Sources, assemble, require_own_data
from promptcodebook.base.text import quote
from promptcodebook.calls import LM
from promptcodebook.config import TYPED, Budget, Config, merge, role_layers
from promptcodebook.config.loading import read_prompt, require_effect
from promptcodebook.data import Dataset
from promptcodebook.errors import ConfigError, PcoError
from promptcodebook.lm.stack import StackResources
from promptcodebook.method.policy import Deployed
from promptcodebook.policy import references
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.policy import Policy
from promptcodebook.policy.references import resolve
from promptcodebook.run.optimize import Run, check_keywords, require_type, sources_of
from promptcodebook.store.journal import until_done
from promptcodebook.store.run import Recorded, RunStore
from promptcodebook.types import Executor, Prompt, Reward

AnyPolicy = str | Path | Run | Policy | Prompt
_TITLE = 40  # characters of a prompt that name it
# Settings of the shell that reach a run with settings of its own.
_OF_A_RUN = ("lm", "roles", "data_dir")
_OBJECTS = ("data", "reward", "executor", "lm")


def as_prompt(policy: object) -> Prompt | None:
    """A prompt of the user's: one, a text of several words, or a file of it; None = it is none."""
    if isinstance(policy, str | Path):
        path, words = Path(policy), str(policy).split()
        with suppress(OSError, ValueError):  # a text may be too long for a path
            if path.is_dir() or (path.is_file() and path.suffix not in (".txt", ".md")):
                return None
        if path.suffix in (".txt", ".md") or (len(words) > 1 and path.suffix != ".json"):
            return Prompt(read_prompt(policy, "pco.Prompt"))
    return policy if isinstance(policy, Prompt) else None


def prompt_title(prompt: Prompt) -> str:
    """What it is called: how it begins."""
    return quote(" ".join(prompt.text.split()), _TITLE)


class Beside(TypedDict, total=False):
    """Keywords that `evaluate`, `compare`, `effect` and `distill` share. `roles` gives single roles
    a model or settings, `executor` is your own agent, `budget` limits this use ('200calls').
    `config` replaces a run's own settings; `runs_dir` is where runs live ('runs'). `trust` uses the
    code and addresses of a run that somebody else made."""

    roles: Mapping[str, Any] | None
    executor: Executor | None
    budget: str | None
    config: Config | Mapping[str, Any] | None
    runs_dir: str | Path
    trust: bool


class Examined(Beside, total=False):
    """Also: `n` examples of the `split` (None = all), and whether stderr shows progress."""

    split: str
    n: int | None
    progress: bool


class Asked(Examined, total=False):
    """Also: how often each example is sampled (1 = greedily, once; None = as the configuration
    says), and whether the models are asked `again` for what they answered in the policy's run."""

    samples: int | None
    again: bool


@dataclass(frozen=True)
class EvaluationOptions:
    """The options of a command, or keywords in Python, beside a policy.

    `overrides` take precedence over all other settings; `environment` has those of the shell.
    `read_settings` reads the settings file, or `config`, and the folder that its paths start from.
    `named`: those replace a run's own settings. `object_hints` says what to type to give an object
    of a run again. `tell` receives what the user should know. `ask_anew`: no recorded reply is
    used. `resources` hold one budget for all that is used together."""

    verb: str
    overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])
    read_settings: Callable[[], tuple[Mapping[str, Any], Path]] = lambda: ({}, Path())
    named: bool = False
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sources: Sources = field(default_factory=Sources)
    budget: str | None = None
    runs_dir: Path = Path("runs")
    trust: bool = False
    object_hints: Mapping[str, str] = field(
        default_factory=lambda: {n: f"{n}=..." for n in _OBJECTS}
    )
    where: str = TYPED
    tell: Callable[[str], None] = lambda _: None
    progress: bool = True
    ask_anew: bool = False
    resources: StackResources = field(default_factory=StackResources.of_one_budget)

    @classmethod
    def of(
        cls,
        verb: str,
        data: Dataset | None,
        reward: Reward | str | Mapping[str, Any] | None,
        lm: str | LM,
        beside: Beside,
    ) -> EvaluationOptions:
        """The options that a `verb` of Python, such as 'distill()', was called with. Raises
        ConfigError when one has a wrong value."""
        settings, runs_dir = check_keywords(verb, beside), beside.get("runs_dir", "runs")
        require_type(verb, "runs_dir", runs_dir, (str, Path), "a folder", optional=False)
        shell = "" if settings.get("lm") else os.environ.get("PCO_LM", "")
        ready: Any = reward
        above: dict[str, Any] = {
            "lm": lm if isinstance(lm, str) else "",
            "roles": role_layers(beside.get("roles")),
            "reward": ready if isinstance(ready, str | Mapping) else "",
        }
        return cls(
            verb=verb,
            overrides={key: value for key, value in above.items() if value},
            read_settings=lambda: (settings, Path()),
            named=beside.get("config") is not None,
            environment={"lm": shell} if shell else {},
            sources=sources_of(verb, data, reward, beside.get("executor"), lm),
            budget=beside.get("budget"),
            runs_dir=Path(runs_dir),
            trust=beside.get("trust", False),
            where=verb,
            progress=bool(beside.get("progress", True)),
            ask_anew=bool(beside.get("again")),
        )

    @contextmanager
    def until_done(self, *question: object) -> Generator[EvaluationOptions]:
        """Itself, with a journal: what was paid for survives a kill. LM objects' replies do not."""
        named = [each.path if isinstance(each, Run) else each for each in question]
        asked = [each.file.digest if isinstance(each, Policy) else each for each in named]
        with until_done(self.verb, *asked, self.overrides, self.sources.lm) as supplies:
            yield replace(self, resources=supplies)

    def keeps_own(self, reference: references.Reference) -> bool:
        return reference.header is not None and not self.named and "task" not in self.overrides

    def settings(self, reference: references.Reference) -> tuple[Config, Path]:
        """The configuration that a policy is used under, and the folder that its paths start from.
        A run brings its own, unless a task or other settings are named, and its models, unless
        others are given, but not its budget. Raises ConfigError, and RunNotTrusted where what a run
        names would be used and must not be."""
        decided = [key for key in self.overrides if key in reference.file.decided and key != "seed"]
        if decided:
            message = f"--set {decided[0]}: the policy decides that"
            raise ConfigError(message, hint="leave it out, or train a new run")
        own, shell, above = reference.models, self.environment, self.overrides
        keeps = self.keeps_own(reference)
        below: Mapping[str, Any] = {}
        base = reference.base
        if not keeps:
            below, base = self.read_settings()
        else:
            shell = {key: value for key, value in shell.items() if key in _OF_A_RUN}
        if own and (keeps or not (self.named and below.get("lm"))):
            if own["lm"] and shell.get("lm", own["lm"]) != own["lm"] and "lm" not in above:
                self.tell(
                    f"PCO_LM is not used: {reference.name} has its own model, {own['lm']} "
                    "(--lm overrides it)"
                )
            shell, below = references.without_models(shell), references.without_models(below)
            above = above if keeps else merge(own, above)
        if self.sources.lm is not None:
            above = {**above, "lm": OWN_LM}
        above = merge(shell, above)
        if keeps and reference.header is not None:
            references.require_trust(
                reference.header, above, trusted=reference.trusted, ref=reference.ref
            )
            below = reference.header.settings
        budget = {"budget": self.budget} if self.budget else {}
        afresh = {"cache": False} if self.ask_anew else {}
        above = merge(above, {"budget": Budget().model_dump()}, budget, afresh)
        config = reference.file.settings(
            below, above, self.where, name=reference.name, trusted=reference.trusted
        )
        require_effect(config, self.overrides)
        if config.lm == OWN_LM and self.sources.lm is None:
            message = f"the run {reference.name} was made with an LM object, which is missing here"
            raise ConfigError(message, hint="pass --lm (lm= in Python) with a model's spec")
        return config, base

    def recorded(self, ref: str) -> Recorded | None:
        """What the run behind a REF was answered, where it is here and may be used."""
        with suppress(PcoError):
            run = references.run_behind(self.runs_dir, ref)
            with closing(RunStore.open(run)) as store:
                return Recorded(run) if (store.ours or self.trust) and not self.ask_anew else None

    def require_objects(self, reference: references.Reference) -> None:
        """Raises ConfigError for a run whose data, reward, agent or model are missing objects."""
        given = merge(self.environment, self.overrides)
        names = reference.objects if self.keeps_own(reference) else ()
        missing = [n for n in names if getattr(self.sources, n) is None and not given.get(n)]
        if missing:
            again = " ".join(self.object_hints[name] for name in missing)
            files = f" (files below {reference.base})" if "--set" in again else ""
            message = f"the run {reference.name} took {', '.join(missing)} as Python objects, "
            message += "which are missing here"
            raise ConfigError(message, hint=f"pass them again{files}: {self.verb} {again}")


@dataclass(frozen=True)
class Subject:
    """A policy in use. `run` = its run's folder, or None; `own` = under its run's settings."""

    reference: references.Reference
    assembled: Assembled
    run: Path | None = None
    own: bool = False

    @classmethod
    def resolve(cls, policy: AnyPolicy | None, given: EvaluationOptions) -> Subject:
        """The policy under its own settings, what was given laid over them. Raises ConfigError,
        DataError, PolicyError, RunNotFound, RunNotTrusted, TaskError."""
        kinds, what = (str, Path, Run, Policy, Prompt), "a Run, a Policy, a reference, or a string"
        require_type(given.verb, "policy", policy, kinds, what, optional=False)
        run, typed = None, given.sources
        # Nothing shows whether an LM object is the one that answered, unless it made this very run.
        named = given.sources.lm is None
        if isinstance(policy, Run | Policy):
            made_here = isinstance(policy, Run) and isinstance(policy.learned, Policy)
            named = named and (made_here or policy.sources.lm is None)
            used, above = given.sources, given.overrides
            settled = [name for name in ("reward", "lm") if above.get(name)]
            lacking = [n for n in _OBJECTS if getattr(used, n) is None and n not in settled]
            again = {name: getattr(policy.sources, name) for name in lacking}
            given = replace(given, sources=replace(used, **again))
        if (prompt := as_prompt(policy)) is not None:
            name, file = prompt_title(prompt), PolicyFile.of_prompt(prompt.text)
            reference = references.Reference(name, file)
        elif isinstance(policy, Policy):
            reference = references.Reference("policy", policy.file)
            below = given.read_settings()[0] if given.named else policy.config.model_dump()
            base = policy.sources.base
            given = replace(given, read_settings=lambda: (below, base), environment={})
            name = str(policy.file.about.get("run", ""))
        else:
            name = str(policy.path) if isinstance(policy, Run) else str(policy)
            reference = resolve(given.runs_dir, name, trust=given.trust, tell=given.tell)
            if reference.header is not None:
                run = references.find_policy(given.runs_dir, name)
        given.require_objects(reference)
        settings, base = given.settings(reference)
        require_own_data(settings, typed)
        supplies = replace(
            given.resources, recorded_replies=given.recorded(name) if named else None
        )
        assembled = assemble(settings, replace(given.sources, base=base), supplies)
        return cls(reference, assembled, run, given.keeps_own(reference))

    @property
    def file(self) -> PolicyFile:
        return self.reference.file

    @property
    def deployed(self) -> Deployed:
        return references.deployed_of(self.file, self.assembled)

    @property
    def answering_calls(self) -> int:
        """Calls of one answer on a route that is known; re-asks and judges are not counted."""
        answering = max(1, len(self.assembled.task.program.stages))
        if self.file.compose != "generator":
            return answering
        return answering + max(1, len(references.stages_of(self.file, self.assembled)))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What makes figures mean something else than the run's own: its data, its program."""
        header, name, remarks = self.reference.header, self.reference.name, list[str]()
        fingerprints = self.assembled.dataset.fingerprint()
        if self.own and header is not None and header.fingerprints != fingerprints:
            remark = "its test split may contain examples that it learned from"
            remarks.append(f"the data changed since the run {name}: {remark}")
        before, now = self.file.program, self.assembled.task.program.name
        # The same agent is 'agent.py:run' in a pco.toml and 'run' in Python.
        if before and re.split("[:.]", before)[-1] != re.split("[:.]", now)[-1]:
            remark = f"it is evaluated here with {now!r}"
            remarks.append(f"{name} was judged with the program {before!r}; {remark}")
        return tuple(remarks)
