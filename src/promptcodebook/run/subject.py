"""A policy and what it is used under: one way for the command line and for Python.

A policy is a Run, a Policy, or a REF (a run's id, name or folder, 'last', a policy file,
NAME@REF). A run brings its own settings and models, and a Policy those that it has. What a Run or a
Policy of this process was made with as objects (data, reward, lm, executor) is used again. What is
read from a disk needs its objects again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from promptcodebook.assemble import OWN_LM, Assembled, Sources, assemble
from promptcodebook.calls import LM
from promptcodebook.config import TYPED, Budget, Config, merge, role_layers
from promptcodebook.data import Dataset
from promptcodebook.errors import ConfigError
from promptcodebook.lm.stack import Supplies
from promptcodebook.policy.policy import Policy
from promptcodebook.policy.references import Reference, require_trust, resolve, without_models
from promptcodebook.run.optimize import Run, require_type, sources_of
from promptcodebook.store.journal import until_done
from promptcodebook.store.runs import find_run
from promptcodebook.types import Executor, Reward

_T = TypeVar("_T")
AnyPolicy = str | Path | Run | Policy
_OF_A_RUN = ("lm", "roles", "data_dir")
"""Settings of the shell that reach a run with settings of its own: other variables were not meant
for its task and draws."""
_AGAIN = {name: f"{name}=..." for name in ("data", "reward", "executor", "lm")}


@dataclass(frozen=True)
class Given:
    """What was given beside a policy: options of a command, or keywords in Python.

    `above` are settings that go over all others, `environment` those of the shell. `below` reads
    the settings file, or `config`, and the folder that its paths start from; `named` = it was named
    and replaces a run's own settings. `again` says how to give an object of a run again. `tell`
    hears what the user should know. `supplies` hold one budget for all that is used together.
    """

    verb: str
    above: Mapping[str, Any] = field(default_factory=dict[str, Any])
    below: Callable[[], tuple[Mapping[str, Any], Path]] = lambda: ({}, Path())
    named: bool = False
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sources: Sources = field(default_factory=Sources)
    budget: str | None = None
    runs_dir: Path = Path("runs")
    trust: bool = False
    again: Mapping[str, str] = field(default_factory=_AGAIN.copy)
    where: str = TYPED
    tell: Callable[[str], None] = lambda _: None
    supplies: Supplies = field(default_factory=Supplies.of_one_budget)

    @contextmanager
    def until_done(self, *question: object) -> Generator[Given]:
        """Itself, with a journal while the block runs: after a kill, the same question finds what
        it paid for where no cache keeps it. The replies of an LM object are not kept."""
        named = [each.path if isinstance(each, Run) else each for each in question]
        asked = [each.file.digest if isinstance(each, Policy) else each for each in named]
        with until_done(self.verb, *asked, self.above, self.sources.lm) as supplies:
            yield replace(self, supplies=supplies)

    def keeps_own(self, reference: Reference) -> bool:
        """Whether a run is used under its own settings."""
        return reference.header is not None and not self.named and "task" not in self.above

    def settings(self, reference: Reference) -> tuple[Config, Path]:
        """The configuration that a policy is used under, and the folder that its paths start from.

        A run brings its own, unless a task or other settings are named, and its models, unless
        others are given. A training's budget is not a use's. Raises ConfigError, and RunNotTrusted
        where what a run names would be used and must not be.
        """
        decided = [key for key in self.above if key in reference.file.decided and key != "seed"]
        if decided:
            raise ConfigError(
                f"--set {decided[0]}: the policy decides that",
                hint="leave it out, or train a new run",
            )
        own, shell, above = reference.models, self.environment, self.above
        keeps = self.keeps_own(reference)
        below: Mapping[str, Any] = {}
        base = reference.base
        if not keeps:
            below, base = self.below()
        else:
            shell = {key: value for key, value in shell.items() if key in _OF_A_RUN}
        if own and (keeps or not (self.named and below.get("lm"))):
            if own["lm"] and shell.get("lm", own["lm"]) != own["lm"] and "lm" not in above:
                self.tell(
                    f"PCO_LM is not used: {reference.name} has a model of its own, {own['lm']} "
                    "(or give --lm)"
                )
            shell, below = without_models(shell), without_models(below)
            above = above if keeps else merge(own, above)
        if self.sources.lm is not None:
            above = {**above, "lm": OWN_LM}
        above = merge(shell, above)
        if keeps and reference.header is not None:
            require_trust(reference.header, above, trusted=reference.trusted, ref=reference.ref)
            below = reference.header.settings
        budget = {"budget": self.budget} if self.budget else {}
        above = merge(above, {"budget": Budget().model_dump()}, budget)
        config = reference.file.settings(
            below, above, self.where, name=reference.name, trusted=reference.trusted
        )
        if config.lm == OWN_LM and self.sources.lm is None:
            raise ConfigError(
                f"the run {reference.name} was made with an LM object, which is not here",
                hint="pass --lm (lm= in Python) with a model's spec",
            )
        return config, base

    def require_objects(self, reference: Reference) -> None:
        """Raises ConfigError for a run with its own settings whose data, reward, agent or model
        were objects, unless they are given again."""
        given = merge(self.environment, self.above)
        missing = [
            name
            for name in (reference.objects if self.keeps_own(reference) else ())
            if getattr(self.sources, name) is None and not given.get(name)
        ]
        if missing:
            again = " ".join(self.again[name] for name in missing)
            files = f" (files below {reference.base})" if "--set" in again else ""
            raise ConfigError(
                f"the run {reference.name} was made in Python and took {', '.join(missing)} as "
                "objects, which are not here",
                hint=f"give them again{files}: {self.verb} {again}",
            )


@dataclass(frozen=True)
class Subject:
    """A policy with what it is used under: its file, settings, data, models and reward. `run` is
    its run's folder, None where it comes from none; `own` = under its run's own settings."""

    reference: Reference
    assembled: Assembled
    run: Path | None = None
    own: bool = False

    @classmethod
    def resolve(cls, policy: AnyPolicy | None, given: Given) -> Subject:
        """The policy under its own settings, what was given laid over them.

        Raises ConfigError for what is of another type, or missing; DataError, PolicyError,
        RunNotFound, RunNotTrusted, TaskError.
        """
        kinds, what = (str, Path, Run, Policy), "a Run, a Policy, or what names one"
        require_type(given.verb, "policy", policy, kinds, what)
        if policy is None:
            raise ConfigError(f"{given.verb}: there is no policy", hint="a Run, a Policy or a name")
        run: Path | None = None
        if isinstance(policy, Run | Policy):
            given = replace(given, sources=_completed(given, policy.sources))
        if isinstance(policy, Policy):
            reference = Reference("policy", policy.file)
            below = given.below()[0] if given.named else policy.config.model_dump()
            base = policy.sources.base
            given = replace(given, below=lambda: (below, base), environment={})
        else:
            name = str(policy.path) if isinstance(policy, Run) else str(policy)
            reference = resolve(given.runs_dir, name, trust=given.trust)
            if reference.header is not None:
                run = find_run(given.runs_dir, name)
        given.require_objects(reference)
        settings, base = given.settings(reference)
        assembled = assemble(settings, replace(given.sources, base=base), given.supplies)
        return cls(reference, assembled, run, given.keeps_own(reference))

    @property
    def remarks(self) -> tuple[str, ...]:
        """What makes figures mean something else than the run's own: its data, its program."""
        header, name, remarks = self.reference.header, self.reference.name, list[str]()
        fingerprints = self.assembled.dataset.fingerprint()
        if self.own and header is not None and header.fingerprints != fingerprints:
            remarks.append(
                f"the data changed since the run {name}: its test may hold what it learned from"
            )
        before, now = self.reference.file.program, self.assembled.task.program.name
        # The same agent is 'agent.py:run' in a pco.toml and 'run' in Python.
        if before and re.split("[:.]", before)[-1] != re.split("[:.]", now)[-1]:
            remarks.append(
                f"{name} was judged with the program {before!r}; it is evaluated here with {now!r}"
            )
        return tuple(remarks)


def handed(  # noqa: PLR0913 - the keywords that every verb on a policy shares
    verb: str,
    data: Dataset | None = None,
    reward: Reward | str | Mapping[str, Any] | None = None,
    lm: str | LM = "",
    roles: Mapping[str, Any] | None = None,
    executor: Executor | None = None,
    config: Config | Mapping[str, Any] | None = None,
    budget: str | None = None,
    runs_dir: str | Path = "runs",
    trust: bool = False,
) -> Given:
    """What a `verb` of Python, as 'distill()', was given. ConfigError for what is of another
    type."""
    kinds = (Config, Mapping)
    require_type(verb, "runs_dir", runs_dir, (str, Path), "a folder", optional=False)
    require_type(verb, "roles", roles, (Mapping,), "a mapping such as {'critic': 'x'}")
    require_type(verb, "budget", budget, (str,), "a text such as '5usd' or '2Mtok'")
    require_type(verb, "config", config, kinds, "a Config or a mapping as of read_toml")
    below = config.model_dump() if isinstance(config, Config) else config or {}
    environment = {} if below.get("lm") else {"lm": os.environ.get("PCO_LM", "")}
    above = {
        "lm": lm if isinstance(lm, str) else "",
        "roles": role_layers(roles),
        "reward": reward if isinstance(reward, str | Mapping) else "",
    }
    return Given(
        verb=verb,
        above={key: value for key, value in above.items() if value},
        below=lambda: (below, Path()),
        named=config is not None,
        environment={key: value for key, value in environment.items() if value},
        sources=sources_of(verb, data, reward, executor, lm),
        budget=budget,
        runs_dir=Path(runs_dir),
        trust=trust,
        where=verb,
    )


def _completed(given: Given, own: Sources) -> Sources:
    """The sources with a policy's own objects for what was not given."""
    sources, above = given.sources, given.above
    return replace(
        sources,
        data=_first(sources.data, own.data),
        reward=_first(sources.reward, None if above.get("reward") else own.reward),
        executor=_first(sources.executor, own.executor),
        lm=_first(sources.lm, None if above.get("lm") else own.lm),
    )


def _first(given: _T | None, own: _T | None) -> _T | None:
    """What was given, be it empty or falsy, else the policy's own."""
    return own if given is None else given
