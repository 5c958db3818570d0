"""What `pco eval` and `pco compare` share: a REF evaluated under what was typed, with progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcodebook.cli.console import duration, note
from promptcodebook.cli.options import task_flags
from promptcodebook.cli.settings import gathered, set_layer

if TYPE_CHECKING:
    from promptcodebook.config import Config
    from promptcodebook.session.evaluation import Assessment, Sample
    from promptcodebook.session.references import Referred
    from promptcodebook.types import Rollout

__all__ = ["Asked", "Progress", "assessed", "configured"]

_QUIET_S = 2.0
"""An evaluation that takes less says nothing on the way."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was typed beside the REF; None = not given."""

    config: Path | None = None
    task: str | None = None
    data: str | None = None
    lm: str | None = None
    budget: str | None = None
    sets: Sequence[str] = ()


def configured(found: Referred, asked: Asked) -> tuple[Config, Path]:
    """The configuration a REF is used under, and the folder its paths start from.

    A run brings its own, unless a task or a pco.toml is named; its training budget is not this
    command's. A policy file has none: ./pco.toml is read if no task is named.
    """
    from promptcodebook.config import Budget, load_config, parse_budget

    flags = task_flags(asked.task, asked.data, asked.lm)
    if _own(found, asked):
        from promptcodebook.cli.settings import environment_layer

        env = {k: v for k, v in environment_layer().items() if k in ("lm", "roles", "data_dir")}
        given = {key: value for key, value in flags.items() if value is not None}
        settings, base = found.config(env, given, set_layer(asked.sets)), found.base
    else:
        typed, base = gathered(asked.config, flags, asked.sets)
        settings = found.over(typed)
    limits = parse_budget(asked.budget) if asked.budget else Budget()
    checked = load_config(settings.model_dump(), {"budget": limits.model_dump()})
    return checked, base


def _own(found: Referred, asked: Asked) -> bool:
    """Whether a run is used under its own settings."""
    return found.header is not None and asked.config is None and asked.task is None


def assessed(found: Referred, sample: Sample, asked: Asked, *, quiet: bool = False) -> Assessment:
    """The REF evaluated, progress on stderr; Ctrl-C ends it in order."""
    from promptcodebook.session.evaluation import Assessor
    from promptcodebook.session.sync import run_sync

    settings, base = configured(found, asked)
    assessor = Assessor(found.name, found.file, settings, base)
    examples = assessor.examples(sample)
    header = found.header if _own(found, asked) else None
    if header is not None and header.fingerprints != assessor.fingerprint:
        note(f"the data changed since the run {found.name}: its test may hold what it learned from")
    progress = Progress(found.name, len(examples) * sample.runs, sys.stderr, quiet=quiet)

    def interrupt() -> None:
        note("stopping: waiting for calls in flight (Ctrl-C again to stop at once)")
        assessor.interrupt()

    try:
        return run_sync(assessor.assess(examples, sample, progress), interrupt)
    finally:
        progress.close()


class Progress:
    """Counts finished rollouts: one line that is written over on a terminal, else a line now and
    then; nothing before two seconds have passed."""

    def __init__(self, name: str, total: int, stream: Any, *, quiet: bool = False) -> None:
        self._name = name
        self._total = total
        self._stream = stream
        self._quiet = quiet
        self._begun = time.monotonic()
        self._said = self._begun + _QUIET_S
        self._done = 0
        self._open = False

    def __call__(self, rollout: Rollout) -> None:
        self._done += 1
        now = time.monotonic()
        if self._quiet or now < self._said:
            return
        tty = self._stream.isatty()
        self._said = now + (0.2 if tty else 10.0)
        left = (now - self._begun) / self._done * (self._total - self._done)
        text = f"{self._name}: {self._done} of {self._total}, {duration(left)} left"
        self._open = tty
        print(f"\r{text}\x1b[K" if tty else text, end="" if tty else "\n", file=self._stream)
        self._stream.flush()

    def close(self) -> None:
        """Clears the line."""
        if self._open:
            print("\r\x1b[K", end="", file=self._stream, flush=True)
            self._open = False
