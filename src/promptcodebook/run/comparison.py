"""Two policies on the same examples: what a comparison is between, and what it comes to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from promptcodebook.errors import DataError
from promptcodebook.intervals import Bounds, Interval, mean_interval
from promptcodebook.notebook import shown_table
from promptcodebook.run.evaluation import LEARNED, Assessment, Sample, paired_difference
from promptcodebook.units import number


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: its name, rewards by example id, and what it was evaluated on."""

    name: str
    rewards: Mapping[str, float]
    split: str
    simulated: bool
    bounds: Bounds
    scored_by: str = ""

    @classmethod
    def of(cls, assessment: Assessment) -> Side:
        kind = "" if assessment.kind == LEARNED else f" ({assessment.kind})"
        return cls(
            assessment.name + kind,
            assessment.rewards,
            assessment.evaluation.split,
            assessment.simulated,
            assessment.reward_range,
            assessment.scored_by,
        )

    @classmethod
    def read(cls, path: Path) -> Side | None:
        """A saved evaluation (`pco eval --json`); None for any other file, or none."""
        try:
            tree = json.loads(path.read_text("utf-8"))
            rewards = {str(e["id"]): float(e["reward"]) for e in tree["examples"]}
            low, high = tree.get("reward_range", (0.0, 1.0))
            simulated, bounds = bool(tree["simulated"]), (float(low), float(high))
            scored_by = str(tree.get("scored_by", ""))  # unknown in files of before
            return cls(path.name, rewards, str(tree["split"]), simulated, bounds, scored_by)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def ids(self) -> Set[str]:
        return self.rewards.keys()

    def sample(self, asked: Sample) -> Sample:
        """What the other side is evaluated on: this split and these examples, unless a number of
        examples, or another split than test, was `asked` for."""
        split = self.split if asked.split == Sample().split else asked.split
        own = asked.count is None and split == self.split
        return replace(asked, split=split, ids=frozenset(self.rewards) if own else None)

    @property
    def score(self) -> Interval:
        return mean_interval(list(self.rewards.values()), bounds=self.bounds)


class Comparable(Protocol):
    """What is known of a side before it is evaluated."""

    @property
    def ids(self) -> Set[str]: ...

    @property
    def scored_by(self) -> str: ...


def require_comparable(a: Comparable, b: Comparable) -> None:
    """Raises DataError where the examples are not the same, or the rewards, as far as known."""
    missing = sorted(a.ids ^ b.ids)
    if missing:
        raise DataError(
            f"the two were not evaluated on the same examples: {len(missing)} appear in only "
            f"one of them, the first is {missing[0]}",
            hint="evaluate both on the same data, split and n",
        )
    if a.scored_by and b.scored_by and a.scored_by != b.scored_by:
        raise DataError(
            f"the two were not scored by the same reward: {a.scored_by} and {b.scored_by}",
            hint="evaluate both under one reward",
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """`gain` is the mean of a - b over the examples of both, with its 95 % interval, paired by
    example."""

    a: Side
    b: Side
    gain: Interval

    @classmethod
    def of(cls, a: Side, b: Side) -> Comparison:
        """Raises DataError where the two were not evaluated on the same examples, or not by the
        same reward."""
        require_comparable(a, b)
        widest = min(a.bounds[0], b.bounds[0]), max(a.bounds[1], b.bounds[1])
        return cls(a, b, paired_difference(dict(a.rewards), dict(b.rewards), widest))

    @property
    def better(self) -> Literal["a", "b", ""]:
        """Which of the two is better by its whole interval; '' where that is unclear."""
        if self.gain.low > 0:
            return "a"
        return "b" if self.gain.high < 0 else ""

    @property
    def split(self) -> str:
        return self.a.split

    @property
    def simulated(self) -> bool:
        """Whether any of the models was simulated: figures must say so."""
        return self.a.simulated or self.b.simulated

    @property
    def differences(self) -> Mapping[str, float]:
        """Example id -> a - b."""
        return {name: reward - self.b.rewards[name] for name, reward in self.a.rewards.items()}

    @property
    def sentence(self) -> str:
        """The gain in words."""
        gain = self.gain
        figures = f"{gain.mean:+.3f} (95 % {gain.low:+.3f} to {gain.high:+.3f}, paired)"
        better = {"a": "A is better.", "b": "B is better.", "": "no clear difference."}
        return f"A - B: {figures}: {better[self.better]}"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        first, second = ({"ref": s.name, "score": asdict(s.score)} for s in (self.a, self.b))
        facts = {"split": self.split, "n": self.gain.n, "simulated": self.simulated}
        return {"a": first, "b": second, "gain": asdict(self.gain), **facts}

    def __repr__(self) -> str:
        gain = self.gain
        interval = f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
        return f"Comparison({self.a.name!r} - {self.b.name!r} = {interval}, n={gain.n})"

    def _repr_html_(self) -> str:
        model = "simulated model, " if self.simulated else ""
        scores = [(mark, side.name, side.score) for mark, side in (("A", self.a), ("B", self.b))]
        rows = [
            (mark, name, number(score.mean), f"{number(score.low)} to {number(score.high)}")
            for mark, name, score in scores
        ]
        gain = self.gain
        interval = f"{number(gain.low, signed=True)} to {number(gain.high, signed=True)}"
        rows.append(("A - B", "", number(gain.mean, signed=True), interval))
        title = f"{model}{self.split} split, n = {gain.n}; {self.sentence}"
        return shown_table(title, ("", "policy", "reward", "95 %"), rows)
