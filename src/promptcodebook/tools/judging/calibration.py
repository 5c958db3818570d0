"""A judge beside people: the labels, the judge's scores of the same answers, and what comes of it.
The rule was fixed before any figure was seen (`figures.py` has its numbers). "Do not trust it": too
few rows were judged, too many could not be, or κ is low or not clear of chance. "Use it": κ is
high, also at its lower end. Else: with its error."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from promptcodebook.assemble import Assembled
from promptcodebook.base.intervals import Bounds, Interval, mean_interval
from promptcodebook.base.text import printable
from promptcodebook.data.load import read_source
from promptcodebook.data.table import SourceRow, cell_text
from promptcodebook.errors import DataError
from promptcodebook.method.failures import attempt, gather_all
from promptcodebook.tasks.rewards import apply_reward
from promptcodebook.tools.judging import figures
from promptcodebook.types import Example, Failure, Output

FORMAT = "promptcodebook judge 2"
_WORDS = {
    **dict.fromkeys(("yes", "true", "right", "good", "pass"), 1.0),
    **dict.fromkeys(("no", "false", "wrong", "bad", "fail"), 0.0),
}
# What keeps a spreadsheet from taking a text for a formula.
_ESCAPED = re.compile(r"'(?=\s*[=+\-@＝＋－＠]|[\t\r\n])")


@dataclass(frozen=True, slots=True)
class Item:
    """An answer with the labels that people gave it, on the scale of the reward."""

    example: Example
    answer: str
    labels: tuple[float, ...]

    @property
    def label(self) -> float:
        return fmean(self.labels)


@dataclass(frozen=True, slots=True)
class Labels:
    """What a file holds; `blank` rows have no label yet."""

    items: tuple[Item, ...]
    blank: int

    @classmethod
    def read(cls, path: Path, bounds: Bounds, scale: Bounds | None = None) -> Labels:
        """Rows with the columns input, answer and label; id and target if there are any.

        `scale` is that of the labels (None = the reward's). The same answer to the same input once
        more is another person's label. Raises DataError when a column or a label is wrong."""
        table = read_source(path)
        if isinstance(table, Mapping):
            raise DataError(f"{path} is a folder", hint="pass one file of labels")
        for column in ("input", "answer", "label"):
            if column not in table.columns:
                hint = "the columns are input, answer and label; optionally target and id"
                raise DataError(f"{path} has no column {column!r}", hint=hint)
        blank, kept = 0, dict[tuple[str, ...], Item]()
        for row in table.rows:
            text = {name: cell_text(v) for name, v in row.values.items() if v is not None}
            if not text.get("label", "").strip():
                blank += 1
                continue
            label = _label(row, text["label"], bounds, scale or bounds)
            answer = _ESCAPED.sub("", text.get("answer", ""), 1)
            input = text.get("input", "")
            name = text.get("id") or answer_key(input)
            key = (name, answer_key(answer))
            example = Example(name, input, text.get("target"), fields=row.values)
            item = kept.get(key, Item(example, answer, ()))
            kept[key] = replace(item, labels=(*item.labels, label))
        return cls(tuple(kept.values()), blank)


def _label(row: SourceRow, text: str, bounds: Bounds, scale: Bounds) -> float:
    word, (low, high) = text.strip().lower(), bounds
    share = _WORDS.get(word)
    if share is None:
        try:
            share = (float(word) - scale[0]) / (scale[1] - scale[0])
        except ValueError:
            share = math.nan
    if not 0.0 <= share <= 1.0:
        known = f"yes, no or a number from {scale[0]:g} to {scale[1]:g}"
        hint = f"write {known}; labels from 1 to 5 need --scale 1 5"
        raise DataError(f"{row.where}: the label {text!r} is not on the scale", hint=hint)
    return low + share * (high - low)


def answer_key(text: str) -> str:
    """The same for an answer before and after a spreadsheet."""
    return hashlib.sha256(" ".join(printable(text).split()).encode()).hexdigest()[:32]


async def judge_items(
    assembled: Assembled, items: Sequence[Item], count: Callable[[object], None]
) -> list[float | Failure]:
    """The judge's value of each labelled answer; or why there is none."""
    reward, bounds = assembled.reward, assembled.config.reward_range

    async def one(item: Item) -> float | Failure:
        output, calls = Output(item.answer), assembled.plan.calls
        asked = apply_reward(reward, item.example, output, bounds, calls)
        found, failure = await attempt("reward", asked)
        count(found)
        if found is None:
            assert failure is not None
            return failure
        return found.value

    return await gather_all(map(one, items))


@dataclass(frozen=True, slots=True)
class Calibration:
    """What labelled answers say of a judge. `kappa` is None where all say the same."""

    decision: str
    why: str
    judge: str
    reward: str
    simulated: bool
    reward_range: Bounds
    judged: int
    failures: tuple[str, ...]
    blank: int
    agreement: Interval
    kappa: Interval | None
    format: str = FORMAT


def calibrate(
    assembled: Assembled, labels: Labels, found: Sequence[float | Failure]
) -> Calibration:
    """The figures, and the decision by the rule. Raises DataError when nothing was judged."""
    failed = tuple(f"{f.kind}: {f.message}" for f in found if isinstance(f, Failure))
    known = [(i, f) for i, f in zip(labels.items, found, strict=True) if not isinstance(f, Failure)]
    if not known:
        message = f"no labelled answer could be judged: {(*failed, 'no row has a label')[0]}"
        raise DataError(message, hint="pco doctor; or fill in the label column")
    bounds = assembled.config.reward_range
    levels = sorted({label for item, _ in known for label in item.labels})

    def level(value: float) -> int:
        return min(range(len(levels)), key=lambda k: (abs(levels[k] - value), -k))

    rated = [([*map(level, item.labels)], level(value)) for item, value in known]
    made = Calibration(
        decision="",
        why="",
        judge=assembled.models.lm.model_of("judge"),
        reward=assembled.scored_by,
        simulated=assembled.models.simulated,
        reward_range=bounds,
        judged=len(known),
        failures=failed,
        blank=labels.blank,
        agreement=mean_interval([fmean(p == judged for p in given) for given, judged in rated]),
        kappa=figures.cohen_kappa(rated, len(levels)),
    )
    decision, why = decide(made)
    return replace(made, decision=decision, why=why)


def decide(made: Calibration) -> tuple[str, str]:
    """What to do with the judge, in the words of the rule, and why."""
    kappa, lost = made.kappa, len(made.failures) / (len(made.failures) + made.judged)
    unjudged = f"{lost:.0%} of the answers could not be judged"
    refusals = {
        f"a decision needs {figures.ENOUGH} judged answers": made.judged < figures.ENOUGH,
        unjudged: lost > figures.MANY,
        "people and the judge give every answer the same label": kappa is None,
        "its agreement with people may be due to chance": kappa is not None and kappa.low <= 0,
        f"κ is below {figures.FAIR:g}": kappa is not None and kappa.mean < figures.FAIR,
    }
    why = next((why for why, holds in refusals.items() if holds), "")
    if why or kappa is None:
        return "do not trust it", why
    sure = kappa.mean >= figures.ALMOST_PERFECT and kappa.low >= figures.CLEARLY_GOOD
    limits = figures.ALMOST_PERFECT, figures.CLEARLY_GOOD
    doubts = {
        "κ is below {:g}, or the lower end of its interval below {:g}".format(*limits): not sure,
        unjudged: lost > figures.FEW,
    }
    why = "; ".join(doubt for doubt, holds in doubts.items() if holds)
    if why:
        return "use it, with intervals that include its error", why
    return "use it", "it agrees with people"
