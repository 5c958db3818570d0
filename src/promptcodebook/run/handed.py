"""What a verb of Python is handed beside a policy, and what the policy is used under with it.

A policy is a Run, a Policy, a REF (a run's id, name or folder, 'last', a policy file, NAME@REF).
A run brings its own settings and models, a Policy those it has; what a Run or a Policy of this
process was made with as objects (data, reward, lm, executor) is used again, and what is read from
a disk must be handed over anew.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from promptcodebook.assemble import OWN_LM, Assembled, Sources, assemble
from promptcodebook.calls import LM
from promptcodebook.config import Budget, Config, merge, parse_budget, role_layers
from promptcodebook.data import Dataset
from promptcodebook.errors import ConfigError, RunNotTrusted
from promptcodebook.lm.stack import Supplies
from promptcodebook.policy.policy import Policy
from promptcodebook.policy.references import Reference, require_trust, resolve
from promptcodebook.run.optimize import Run, require_type, sources_of
from promptcodebook.store.journal import until_done
from promptcodebook.types import Executor, Reward

_T = TypeVar("_T")


@dataclass(frozen=True)
class Used:
    """A policy with what it is used under: its file, settings, data, models and reward."""

    reference: Reference
    assembled: Assembled


@dataclass(frozen=True)
class Handed:
    """The keywords that every verb on a policy shares. `verb` is its name, as 'distill()'."""

    verb: str
    data: Dataset | None = None
    reward: Reward | str | Mapping[str, Any] | None = None
    lm: str | LM = ""
    roles: Mapping[str, Any] | None = None
    executor: Executor | None = None
    config: Config | Mapping[str, Any] | None = None
    budget: str | None = None
    runs_dir: str | Path = "runs"
    trust: bool = False
    supplies: Supplies = field(default_factory=Supplies.of_one_budget)
    """The budget holds for all that is used under it together."""

    @contextmanager
    def until_done(self, *question: object) -> Generator[Handed]:
        """Itself, with a journal while the block runs: asked again after a kill, what it pays for
        is found where no cache keeps it. The replies of an LM object are not kept."""
        named = [each.path if isinstance(each, Run) else each for each in (*question, self.lm)]
        told = [each.file.digest if isinstance(each, Policy) else each for each in named]
        with until_done(self.verb, *told) as supplies:
            yield replace(self, supplies=supplies)

    def use(self, policy: str | Path | Run | Policy | None) -> Used:
        """The policy under its own settings, what was handed over laid above them.

        Raises ConfigError for what is of another type, or missing; DataError, PolicyError,
        RunNotFound, RunNotTrusted, TaskError.
        """
        kinds = (str, Path, Run, Policy)
        require_type(self.verb, "policy", policy, kinds, "a Run, a Policy, or what names one")
        require_type(self.verb, "runs_dir", self.runs_dir, (str, Path), "a folder", optional=False)
        if policy is None:
            raise ConfigError(f"{self.verb}: there is no policy", hint="a Run, a Policy or a name")
        sources = sources_of(self.verb, self.data, self.reward, self.executor, self.lm)
        if isinstance(policy, Policy):
            reference = Reference("policy", policy.file)
            below = self._below() or policy.config.model_dump()
            sources, base = self._completed(sources, policy.sources), policy.sources.base
            given = self._given(sources)
            settings = reference.file.settings(below, given, self.verb, trusted=True)
        else:
            if isinstance(policy, Run):
                sources = self._completed(sources, policy.sources)
            name = str(policy.path) if isinstance(policy, Run) else str(policy)
            reference = resolve(Path(self.runs_dir), name, trust=self.trust)
            settings = self._settings(reference, sources)
            base = reference.base if self.config is None else Path()
        self._require_task(settings, sources)
        return Used(reference, assemble(settings, replace(sources, base=base), self.supplies))

    def _completed(self, sources: Sources, own: Sources) -> Sources:
        """With the policy's own objects for what was not handed over."""
        ready_made = isinstance(self.reward, str | Mapping)
        return replace(
            sources,
            data=_first(sources.data, own.data),
            reward=_first(sources.reward, None if ready_made else own.reward),
            executor=_first(sources.executor, own.executor),
            lm=_first(sources.lm, None if self.lm else own.lm),
        )

    def _given(self, sources: Sources) -> dict[str, Any]:
        """What was handed over, as a layer of settings. A training's budget is not a use's."""
        verb = self.verb
        require_type(verb, "roles", self.roles, (Mapping,), "a mapping such as {'critic': 'x'}")
        require_type(verb, "budget", self.budget, (str,), "a text such as '5usd' or '2Mtok'")
        given = {
            "lm": OWN_LM if sources.lm is not None else self.lm,
            "roles": role_layers(self.roles),
            "reward": self.reward if isinstance(self.reward, str | Mapping) else "",
        }
        limit = parse_budget(self.budget) if self.budget else Budget()
        return {k: v for k, v in given.items() if v} | {"budget": limit.model_dump()}

    def _below(self) -> Mapping[str, Any] | None:
        """The `config` as a layer; None = there is none."""
        kinds, given = (Config, Mapping), self.config
        require_type(self.verb, "config", given, kinds, "a Config or a mapping as of read_toml")
        return given.model_dump() if isinstance(given, Config) else given

    def _settings(self, reference: Reference, sources: Sources) -> Config:
        """What was given, over the run's own settings, or over `config` and the run's models."""
        verb, given, below = self.verb, self._given(sources), self._below()
        if below is None and reference.header is not None:
            self._require_objects(reference, given, sources)
            try:
                require_trust(reference.header, given, trusted=reference.trusted, ref=reference.ref)
            except RunNotTrusted as error:
                error.hint = "look at its settings; if you trust them, pass trust=True"
                raise
            below = reference.header.settings
        else:
            own: dict[str, Any] = {} if below and below.get("lm") else reference.models
            environment = os.environ.get("PCO_LM")
            named = given.get("lm") or (below or {}).get("lm") or own.get("lm") or environment
            if not named:
                raise ConfigError(
                    f"{verb}: no model is named",
                    hint="pass lm='http://host:8000/v1#model' or set PCO_LM",
                )
            given = merge({"lm": named}, own, given)
        name, trusted = reference.name, reference.trusted
        return reference.file.settings(below, given, verb, name=name, trusted=trusted)

    def _require_objects(
        self, reference: Reference, given: Mapping[str, Any], sources: Sources
    ) -> None:
        """Raises ConfigError for a run whose data, reward, agent or model were objects, unless
        they are here again."""
        here = {
            "data": sources.data is not None,
            "reward": sources.reward is not None or "reward" in given,
            "executor": sources.executor is not None,
            "lm": "lm" in given,
        }
        missing = [name for name in reference.objects if not here[name]]
        if missing:
            again = ", ".join(f"{name}=..." for name in missing)
            raise ConfigError(
                f"{self.verb}: the run {reference.name} took {', '.join(missing)} as objects, "
                "which are not here",
                hint=f"hand them over again: {self.verb} with {again}",
            )

    def _require_task(self, settings: Config, sources: Sources) -> None:
        """Raises ConfigError where a policy that brings no data, or no reward, was given none."""
        if settings.task:
            return
        named = settings.data.path or settings.data.train
        if sources.data is None and not named:
            raise ConfigError(f"{self.verb}: there are no data", hint="data=pco.load('rows.jsonl')")
        if sources.reward is None and not settings.reward:
            raise ConfigError(
                f"{self.verb}: there is no reward", hint="reward='exact', or your own"
            )


def _first(given: _T | None, own: _T | None) -> _T | None:
    """What was given, be it empty or falsy, else the policy's own."""
    return own if given is None else given
