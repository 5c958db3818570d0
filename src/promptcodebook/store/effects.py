"""Measured effects of instincts, kept in the folder `effects` of a run: results, replies, what all
measurements spent. They are no part of the run's own file: a run may be measured while it is
trained, and what that costs is not the run's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter, ValidationError

from promptcodebook.base.intervals import Interval, paired_interval
from promptcodebook.base.paths import make_private_folder
from promptcodebook.base.sqlite import Layout, Reader, on_disk, pack, unpack
from promptcodebook.base.text import shell
from promptcodebook.base.units import number, plural
from promptcodebook.calls import Usage
from promptcodebook.errors import StoreError
from promptcodebook.lm.budget import Ledger
from promptcodebook.lm.stack import StackResources
from promptcodebook.store.header import Header
from promptcodebook.store.journal import BOOKS, Journal
from promptcodebook.store.lock import EFFECTS, is_blank, lock_effects, refuse_links
from promptcodebook.store.run import Recorded
from promptcodebook.types import Evaluation

_EFFECTS = "effects.sqlite"
_LAYOUT = Layout("file of effects", 1, (*BOOKS, Path(__file__).with_suffix(".sql")))


@dataclass(frozen=True, slots=True)
class Effect:
    """What instinct k adds to the reward of the inputs that are routed to it: the mean difference
    between their route and the same route without k, paired, with its 95 % interval.

    - `instinct`, `text`: k and its wording.
    - `split`: where the inputs are from.
    - `examples`, `unrouted`: how many inputs were routed, and how many could not be.
    - `rewards`: with and without k by example id (None = the rollout failed, and the mean leaves
      its pair out).
    - `difference`, `means`: with - without, and (with, without); None where no pair is whole.
    - `models`, `simulated`, `scored_by`: who was asked, whether simulated, and the reward in words.
    - `usage`: what all these rollouts took.
    - `policy`, `at`, `data`: the digest of the policy file, the time (ISO 8601), the split's
      fingerprint."""

    instinct: int
    text: str
    split: str
    examples: int
    unrouted: int
    rewards: Mapping[str, tuple[float | None, float | None]]
    difference: Interval | None
    means: tuple[float, float] | None
    models: Mapping[str, str]
    simulated: bool
    scored_by: str
    usage: Usage
    policy: str
    at: str
    data: str = ""

    @property
    def failed(self) -> tuple[int, int]:
        """Failed rollouts, with the instinct and without it."""
        first, second = ([pair[i] for pair in self.rewards.values()].count(None) for i in (0, 1))
        return first, second

    @property
    def n(self) -> int:
        """Whole pairs."""
        return 0 if self.difference is None else self.difference.n

    @property
    def sentence(self) -> str:
        """The result in one line."""
        of = f"of {plural(self.examples, 'input')} in the {self.split} split"
        if not self.rewards:
            return f"None {of} is routed to it."
        if self.difference is None:
            return f"{len(self.rewards)} {of} are routed to it, but none was answered both ways."
        unsure = ": no clear effect" if self.difference.low <= 0 <= self.difference.high else ""
        pairs = f"paired, n = {self.n} ({len(self.rewards)} {of} routed to it)"
        return f"{signed(self.difference)}, {pairs}{unsure}"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "n": self.n, "failed": self.failed}

    def __repr__(self) -> str:
        return f"Effect(instinct {self.instinct}: {self.sentence})"


def signed(interval: Interval) -> str:
    """A difference with its interval."""
    return interval.text(signed=True)


@dataclass(frozen=True, slots=True)
class InstinctReward:
    """The one figure of an instinct: the mean reward of the inputs that are routed to it, with it
    and, where that was measured, without it.

    - `measure`: the command that measures it.
    - `judged`: whether a verdict routed the test inputs (False).
    - `n`, `split`: how many inputs were answered, and where they are from.
    - `with_it`, `without`: the means; None where they were not measured.
    - `difference`: with - without, paired, with its 95 % interval.
    - `simulated`: whether a simulated model answered."""

    measure: str
    judged: bool = False
    n: int = 0
    split: str = "test"
    with_it: float | None = None
    without: float | None = None
    difference: Interval | None = None
    simulated: bool = False

    @property
    def sentence(self) -> str:
        """The figure in one line, with what to type for what is missing; or why there is none."""
        if self.with_it is None:
            none = "no test input is routed to it"
            return none if self.judged else f"not measured: {self.measure}"
        missing = "" if self.difference else f"; not measured without it: {self.measure}"
        return f"{self.figure}{missing}"

    @property
    def figure(self) -> str:
        """'0.750 with it, 0.650 without: +0.100 (95 % ...), n = 12, test', as far as measured."""
        basis = f"n = {self.n}, {self.split}{', simulated' if self.simulated else ''}"
        first = f"{number(self.with_it)} with it"
        if self.difference is None:
            return f"{first}, {basis}"
        return f"{first}, {number(self.without)} without: {signed(self.difference)}, {basis}"


def instinct_rewards(
    run: Path, header: Header, digest: str, texts: Sequence[str], tests: Iterable[Evaluation]
) -> tuple[InstinctReward, ...]:
    """One for each instinct of the run's policy, by its `texts`. `digest` is that of the policy
    file ('' = there is none yet), and `tests` are the verdict's rows. An effect that was measured
    on the test split comes first, then one on another split, then the verdict's rows. Raises
    StoreError."""
    effects: dict[int, Effect] = {}
    for each in sorted(read_effects(run), key=lambda each: each.split == "test"):
        data = header.fingerprints.get(each.split, each.data)
        ours = digest in ("", each.policy) and each.data in ("", data)
        if ours and each.means and (each.instinct, each.text) in enumerate(texts):
            effects[each.instinct] = each
    rows, found = {row.name: row for row in tests}, list[InstinctReward]()
    for k in range(len(texts)):
        measure = f"pco registry effect {shell(header.id)} {k}"
        reward = InstinctReward(measure, judged="learned" in rows)
        if (effect := effects.get(k)) is not None and effect.means is not None:
            reward = InstinctReward(
                measure,
                reward.judged,
                effect.n,
                effect.split,
                *effect.means,
                difference=effect.difference,
                simulated=effect.simulated,
            )
        found.append(_judged(reward, k, header, rows) if not reward.n else reward)
    return tuple(found)


def _judged(
    unmeasured: InstinctReward, k: int, header: Header, rows: Mapping[str, Evaluation]
) -> InstinctReward:
    """By the verdict's rows. Where each route is instinct `k` alone, and no model composes it, the
    row without instincts is what its inputs earn without it."""
    learned, plain = rows.get("learned"), rows.get("none")
    if learned is None:
        return unmeasured
    names = [rollout.example_id for rollout in learned.rollouts]
    groups = dict(zip(names, learned.groups or names, strict=True))
    held = [r for r in learned.rollouts if r.route is not None and k in r.route.indices]
    first = {r.example_id: r.reward for r in held if r.reward is not None}
    if not first:
        return unmeasured
    simulated, mean = header.simulated, fmean(first.values())
    judged = replace(unmeasured, n=len(first), with_it=mean, simulated=simulated)
    rollouts = plain.rollouts if plain is not None else ()
    others = {r.example_id: r.reward for r in rollouts if r.reward is not None}
    alone = all(r.route is not None and r.route.indices == (k,) for r in held)
    alone = alone and header.config.get("compose") == "verbatim"
    if not alone or not first.keys() <= others.keys():
        return judged
    second = [others[name] for name in first]
    low, high = header.config.get("reward_range") or (0.0, 1.0)
    own_groups = [groups[name] for name in first]
    difference = paired_interval([*first.values()], second, (low, high), groups=own_groups)
    return replace(judged, n=difference.n, without=fmean(second), difference=difference)


class EffectStore:
    """One run's effects, to write; `again` = what to type after a full disk. Raises RunBusy."""

    def __init__(self, run: Path, again: str) -> None:
        folder = run / EFFECTS
        refuse_links(run)
        with on_disk(folder):
            make_private_folder(folder)
        self._run = run
        self._journal = Journal(folder / _EFFECTS, _LAYOUT, again, lock=lock_effects(run))

    def supplies(self, *, known: bool) -> StackResources:
        """What a stack needs to ask for nothing that was paid for here or by the run, where its
        models are `known` by their names. A budget is one measurement's."""
        log, run = (self._journal.replies(), Recorded(self._run)) if known else (None, None)
        ledger = Ledger(log=self._journal.attempts)
        return replace(StackResources.of_one_budget(), log=log, recorded_replies=run, ledger=ledger)

    def add(self, effect: Effect) -> None:
        """Keeps it; an earlier answer to the same question makes room. Raises DiskFull or
        StoreError."""
        # Which instinct of which policy, on which inputs, asking and scoring whom.
        question = (
            *(effect.instinct, effect.policy, effect.split, effect.data, effect.examples),
            *(sorted(effect.rewards), sorted(effect.models.items()), effect.scored_by),
        )
        mark = hashlib.sha256(json.dumps(question).encode()).hexdigest()
        values = (mark, pack(_adapter().dump_python(effect)))
        into = "INSERT OR REPLACE INTO effects (mark, effect) VALUES (?, ?)"
        self._journal.writer.write_now(lambda db: db.execute(into, values))

    def close(self) -> None:
        """Commits what waits and lets go of the folder. Safe to call twice."""
        self._journal.close()


def read_effects(run: Path) -> list[Effect]:
    """All that are kept of a run, in the order in which they were measured. Raises StoreError."""
    refuse_links(run)
    refuse_links(run / EFFECTS)
    path = run / EFFECTS / _EFFECTS
    if not path.is_file() or is_blank(path):  # there is none, or who makes it is not done yet
        return []
    try:
        with closing(Reader(path, _LAYOUT)) as reader:
            rows = reader.rows("SELECT effect FROM effects ORDER BY id")
            return [_adapter().validate_python(unpack(blob)) for (blob,) in rows]
    except ValidationError as error:
        message = f"cannot read a stored effect in {path}: {error}"
        hint = f"move {path.parent} elsewhere; its contents will be measured again"
        raise StoreError(message, hint=hint) from error


@cache
def _adapter() -> TypeAdapter[Effect]:
    return TypeAdapter(Effect)
