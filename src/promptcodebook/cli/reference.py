"""What a REF is used under: its run's own settings and models, and what was typed beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcodebook.cli.console import note
from promptcodebook.cli.settings import config_layers, environment_layer, flag_layer, set_layer
from promptcodebook.errors import ConfigError

if TYPE_CHECKING:
    from promptcodebook.config import Config
    from promptcodebook.policy.file import PolicyFile
    from promptcodebook.policy.references import Reference


@dataclass(frozen=True, slots=True)
class Typed:
    """What was typed beside the REF; None = not given."""

    config: Path | None = None
    task: str | None = None
    data: str | None = None
    lm: str | None = None
    budget: str | None = None
    sets: Sequence[str] = ()
    trust: bool = False


def settings_for(reference: Reference, typed: Typed) -> tuple[Config, Path]:
    """The configuration a REF is used under, and the folder its paths start from.

    A run brings its own, unless a task or a pco.toml is named, and its models in any case, unless
    others are given; its training budget is not this command's. A policy file has none: ./pco.toml
    is read if no task is named.
    """
    from promptcodebook.config import Budget, merge, parse_budget
    from promptcodebook.policy.references import without_models

    flags, sets = flag_layer(typed.task, typed.data, typed.lm), set_layer(typed.sets)
    _refuse_decided(sets, reference.file)
    limits = {"budget": (parse_budget(typed.budget) if typed.budget else Budget()).model_dump()}
    env, own = environment_layer(), reference.models
    if keeps_own_settings(reference, typed):
        _note_other_model(reference, env, {**flags, **sets})
        # The variables of the shell were not meant for this run's models, task and draws.
        env = {k: v for k, v in env.items() if k in ("lm", "roles", "data_dir")}
        env = without_models(env) if own else env
        return reference.settings(merge(env, flags, sets, limits)), reference.base
    below, above, base = config_layers(typed.config, flags, typed.sets)
    if own and (typed.config is None or "lm" not in below):
        _note_other_model(reference, env, {**flags, **sets})
        below, above = without_models(below), merge(without_models(env), own, flags, sets)
    return reference.settings(merge(above, limits), below), base


def _note_other_model(
    reference: Reference, env: Mapping[str, Any], given: Mapping[str, Any]
) -> None:
    """Says so where the shell names another model than the run's own, which is the one used."""
    named, own = env.get("lm"), reference.models.get("lm")
    if named and own and named != own and "lm" not in given:
        note(f"PCO_LM is not used: {reference.name} has a model of its own, {own} (or give --lm)")


def _refuse_decided(sets: Mapping[str, Any], policy: PolicyFile) -> None:
    """Raises ConfigError for what the policy decides: setting it here would change nothing."""
    decided = [key for key in sets if key in policy.decided and key != "seed"]
    if decided:
        raise ConfigError(
            f"--set {decided[0]}: the policy decides that", hint="leave it out, or train anew"
        )


def keeps_own_settings(reference: Reference, typed: Typed) -> bool:
    """Whether a run is used under its own settings."""
    named = typed.task is not None or "task" in set_layer(typed.sets)
    return reference.header is not None and typed.config is None and not named


_AS_FILES = {
    "data": "--set data.path=data.jsonl",
    "reward": "--set reward=reward.py:reward",
    "executor": "--set executor=agent.py:run",
    "lm": "--lm SPEC",
}


def require_objects(reference: Reference, typed: Typed) -> None:
    """Raises ConfigError for a run from Python whose data, reward, agent or model were objects of
    its program, unless something was typed in their place."""
    from promptcodebook.config import merge

    flags = flag_layer(typed.task, typed.data, typed.lm)
    given = merge(environment_layer(), flags, set_layer(typed.sets))
    missing = [name for name in reference.objects if not given.get(name)]
    if missing:
        files = " ".join(_AS_FILES[name] for name in missing)
        raise ConfigError(
            f"the run {reference.name} was made in Python, and what it took as objects is not "
            f"here: {', '.join(missing)}",
            hint=f"name them as files (below {reference.base}): pco eval {reference.name} {files}",
        )
