"""A version of a policy, what is known of where it came from, and how its instincts are kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from promptcodebook.errors import ConfigError
from promptcodebook.policy.file import PolicyFile


def _none() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Facts:
    """Where a version came from, outside of its hash.

    `parent` is the version that it was made from ('' = none that is known), `run` a run's id,
    `step` the updates behind it (None = not known), `score` its validation score, `configuration`
    the run's settings without secrets, `data` the fingerprint of each split, `written_by` the
    version of this library. `digest` is over the policy without what its file says `about` it:
    versions of one digest prompt alike.
    """

    parent: str = ""
    run: str = ""
    step: int | None = None
    score: float | None = None
    configuration: Mapping[str, Any] = field(default_factory=_none)
    data: Mapping[str, Any] = field(default_factory=_none)
    written_by: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Version:
    """A policy that is stored: its name (`sha256:` and digits), where it came from, when and by
    whom it was stored first, and the refs that stand at it."""

    version: str
    facts: Mapping[str, Any]
    time: str
    who: str
    refs: tuple[str, ...] = ()


def mark_frozen(file: PolicyFile, instincts: Collection[int]) -> PolicyFile:
    """The policy with these instincts (0..K-1) marked so that a training which starts from it does
    not rewrite them. Raises ConfigError for one that it does not have."""
    size = len(file.codebook)
    outside = [k for k in instincts if not 0 <= k < size]
    if outside:
        raise ConfigError(
            f"the codebook has no index {outside[0]}: it has {size} instincts",
            hint=f"choose one of 0..{size - 1}",
        )
    entries = [
        entry.model_copy(update={"frozen": entry.frozen or k in instincts})
        for k, entry in enumerate(file.codebook)
    ]
    return file.model_copy(update={"codebook": tuple(entries)})
