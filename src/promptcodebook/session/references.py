"""REF -> a policy: a run (id, start of an id, path, 'last') or a policy file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcodebook.config import Config, load_config
from promptcodebook.errors import ConfigError
from promptcodebook.method.state import State
from promptcodebook.session.opening import OWN_LM
from promptcodebook.session.policy_file import PolicyFile, config_of, read_policy_file
from promptcodebook.session.selection import state_at
from promptcodebook.session.standing import Best, kept_state
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import find_run

__all__ = ["Referred", "first_policy", "referred"]


@dataclass(frozen=True)
class Referred:
    """What a REF stands for. `header` and `best` are there when it is a run."""

    name: str
    file: PolicyFile
    header: Header | None = None
    best: Best | None = None

    @property
    def base(self) -> Path:
        """The folder that the run's paths start from."""
        return Path(self.header.base or ".") if self.header is not None else Path()

    def config(self, *layers: Mapping[str, Any]) -> Config:
        """The run's own configuration, or none for a policy file, under `layers`.

        Raises ConfigError when the run's model was an object that only its program had.
        """
        given = dict(self.header.config) if self.header is not None else {}
        config = self.over(load_config(given, *layers, where=self.name))
        if config.lm == OWN_LM:
            raise ConfigError(
                f"the run {self.name} was made with an LM object, which is not here",
                hint="pass --lm with a model's spec",
            )
        return config

    def over(self, config: Config) -> Config:
        """A configuration in which all that decides a prompt is this policy's."""
        settled = config_of(self.file, config.model_dump(exclude={"init"}))
        # The policy's input column is a fact about its own data, the configuration's about theirs.
        return settled.model_copy(update={"data": config.data, "init": config.init})


def referred(runs_dir: Path, ref: str) -> Referred:
    """Raises RunNotFound, StoreError, or PolicyError for what cannot be read as either."""
    path = Path(ref)
    if path.is_file() or (path.suffix == ".json" and not path.is_dir()):
        return Referred(path.name, read_policy_file(path))
    store = RunStore.open(find_run(runs_dir, ref))
    try:
        state, best = kept_state(store)
        return Referred(store.header.id, _file(store, state), store.header, best)
    finally:
        store.close()


def first_policy(runs_dir: Path, ref: str) -> PolicyFile:
    """The policy that a run started from. Raises RunNotFound for anything but a run."""
    store = RunStore.open(find_run(runs_dir, ref))
    try:
        return _file(store, state_at(store, -1))
    finally:
        store.close()


def _file(store: RunStore, state: State) -> PolicyFile:
    config = load_config(store.header.config, where=f"the run {store.header.id}")
    return PolicyFile.of(state.parameters, state.standing, config)
