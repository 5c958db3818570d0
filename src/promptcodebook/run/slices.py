"""Gains by slice: the rows with one value in a column of `data.slices`, such as channel = phone.

A slice counts from 20 independent examples on. The intervals of all slices hold together: with m
slices each end errs in at most 2.5 % / m (Bonferroni), so that where nothing changed some slice is
called worse in at most 2.5 % of cases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcodebook.base.intervals import ENOUGH, SIDE, Bounds, Interval, paired_interval
from promptcodebook.data.table import cell_text
from promptcodebook.errors import ConfigError, did_you_mean
from promptcodebook.types import Example

HEADS = ("slice", "n", "before", "after", "gain", "95 % for all together")


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice: the mean reward of either side, and the gain of the one that is `after`."""

    name: str
    before: float
    after: float
    gain: Interval

    @property
    def worse(self) -> bool:
        """Whether it is clearly worse than before."""
        return self.gain.high < 0

    @property
    def cells(self) -> tuple[str, ...]:
        means = (f"{x:.3f}" for x in (self.before, self.after))
        gain = f"{self.gain.mean:+.3f}", self.gain.ends(signed=True)
        return (self.name, str(self.gain.n), *means, *gain)


def slices_of(examples: Iterable[Example], columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Example id -> its slices, such as ("channel = phone", "language = de")."""
    found = dict[str, tuple[str, ...]]()
    for example in examples if columns else ():
        cells = ((name, example.fields.get(name)) for name in columns)
        found[example.id] = tuple(f"{n} = {cell_text(c)}" for n, c in cells if c is not None)
    return found


def gains_by_slice(
    before: Mapping[str, float],
    after: Mapping[str, float],
    slices: Mapping[str, Sequence[str]],
    groups: Mapping[str, str],
    bounds: Bounds = (0.0, 1.0),
    side: float = SIDE,
) -> tuple[Slice, ...]:
    """Every slice with enough independent examples, the worst first. Rewards, `slices` and `groups`
    are by example id; `side` is how often an end of one interval alone may err."""
    members = defaultdict[str, list[str]](list)
    for name in before.keys() & after.keys():
        for each in slices.get(name, ()):
            members[each].append(name)
    kept = {
        each: sorted(ids)
        for each, ids in members.items()
        if len({groups.get(name, name) for name in ids}) >= ENOUGH
    }
    made = list[Slice]()
    for each, ids in sorted(kept.items()):
        old, new = ([rewards[name] for name in ids] for rewards in (before, after))
        of = [groups.get(name, name) for name in ids]
        gain = paired_interval(new, old, bounds, side / len(kept), of)
        made.append(Slice(each, sum(old) / len(old), sum(new) / len(new), gain))
    return tuple(sorted(made, key=lambda one: one.gain.mean))


def worse_in(slices: Iterable[Slice], among: Sequence[str] = ()) -> list[str]:
    """Names of slices that are clearly worse; `among` restricts them to these slices or columns."""
    return [
        one.name
        for one in slices
        if one.worse and (not among or one.name in among or one.name.partition(" = ")[0] in among)
    ]


def require_slices(known: Iterable[str], among: Sequence[str]) -> None:
    """Raises ConfigError where a name is of no slice and of no column."""
    names = {each for name in known for each in (name, name.partition(" = ")[0])}
    for name in among:
        if name not in names:
            what = f"there is no slice {name!r}{did_you_mean(name, names)}"
            hint = "name a column in data.slices, or one of its slices, such as 'channel = phone'"
            raise ConfigError(what, hint=hint)


def shown_slices(slices: Iterable[Slice]) -> list[dict[str, str]]:
    """Rows by heading, for a table."""
    return [dict(zip(HEADS, one.cells, strict=True)) for one in slices]


def as_trees(slices: Iterable[Slice]) -> tuple[dict[str, Any], ...]:
    """Plain values."""
    return tuple(
        {
            "slice": one.name,
            "before": one.before,
            "after": one.after,
            "gain": {"mean": one.gain.mean, "low": one.gain.low, "high": one.gain.high},
            "n": one.gain.n,
        }
        for one in slices
    )


def from_trees(trees: Iterable[Mapping[str, Any]]) -> tuple[Slice, ...]:
    """What `as_trees` wrote. Raises KeyError and TypeError where it did not."""
    return tuple(
        Slice(t["slice"], t["before"], t["after"], Interval(**t["gain"], n=t["n"])) for t in trees
    )
