"""Is a resumed run still the same run? Which keys differ, and which may."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from promptcodebook.errors import RunChanged

__all__ = ["FREE_KEYS", "Difference", "check_resumable", "differences", "digest"]

FREE_KEYS: tuple[str, ...] = (
    "budget",
    "cache",
    "concurrency",
    "data_dir",
    "data.path",
    "data.test",
    "data.train",
    "data.val",
    "prices",
    "retries",
    "roles.*.headers",
    "timeout",
)
"""Keys a resumed run may change: how much to spend and how fast, and where the data lies (its
fingerprints are compared instead). Headers are left out so that they are never quoted."""

_SHOWN = 5
_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Difference:
    """One dotted key and its two values; a key that is absent has the value None."""

    key: str
    old: object
    new: object

    def __str__(self) -> str:
        return f"{self.key}: {_short(self.old)} → {_short(self.new)}"


def digest(tree: Mapping[str, object]) -> str:
    """SHA-256 (hex) of a configuration tree, whatever the order of its keys."""
    text = json.dumps(_plain(tree), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def differences(
    old: Mapping[str, object], new: Mapping[str, object], ignore: Sequence[str] = FREE_KEYS
) -> tuple[Difference, ...]:
    """Dotted keys whose values differ, sorted. `ignore` names keys or subtrees ('*' = any)."""
    before, after = dict(_leaves(_plain(old))), dict(_leaves(_plain(new)))
    return tuple(
        Difference(key, before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not _ignored(key, ignore)
    )


def check_resumable(
    run: str,
    config: tuple[Mapping[str, object], Mapping[str, object]],
    fingerprints: tuple[Mapping[str, str], Mapping[str, str]],
) -> None:
    """Each pair is (then, now). Raises RunChanged naming the keys or splits that differ."""
    changed = differences(*config)
    if changed:
        shown = "; ".join(str(d) for d in changed[:_SHOWN])
        more = f"; and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        raise RunChanged(
            f"the run {run} was started with other settings: {shown}{more}",
            hint=f"put them back to resume {run}, or leave out --resume to start a new run",
        )
    then, now = fingerprints
    splits = sorted(s for s in then.keys() | now.keys() if then.get(s) != now.get(s))
    if splits:
        raise RunChanged(
            f"the data of the run {run} changed since it started: {', '.join(splits)}",
            hint=f"put the old data back to resume {run}, or leave out --resume to start a new run",
        )


def _plain(value: object) -> object:
    """As JSON would have it, so that a tuple equals the list it became on disk."""
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value)
        return {str(k): _plain(v) for k, v in items.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in cast(Sequence[object], value)]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _leaves(tree: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(tree, Mapping) and tree:
        for key, value in cast(Mapping[str, object], tree).items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else key)
    elif prefix:
        yield prefix, tree


def _ignored(key: str, ignore: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(key, p) or fnmatch.fnmatchcase(key, f"{p}.*") for p in ignore)


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
