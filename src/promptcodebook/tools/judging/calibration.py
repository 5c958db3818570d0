"""A judge beside people: the labels, the judge's scores of the same answers, and what comes of it.
The rule was fixed before any figure was seen (`figures.py` has its numbers). "Do not trust it": too
few rows were judged, too many could not be, or κ is low or not clear of chance. "Use it": κ is
high, also at its lower end, and neither repeats nor length sway it. Else: with its error."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, variance

from promptcodebook.assemble import Assembled
from promptcodebook.base.intervals import Bounds, Interval, mean_interval
from promptcodebook.base.text import printable
from promptcodebook.calls import Reply, Request
from promptcodebook.data.load import read_source
from promptcodebook.data.table import SourceRow, cell_text
from promptcodebook.errors import DataError
from promptcodebook.lm.structured import Ask
from promptcodebook.method.failures import attempt, gather_all
from promptcodebook.tasks.rewards import apply_reward
from promptcodebook.tools.judging import figures
from promptcodebook.types import Example, Failure, Output

Values = tuple[float, ...]
FORMAT = "promptcodebook judge 1"
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

    @property
    def length(self) -> float:
        """The logarithm of the words."""
        return math.log1p(len(self.answer.split()))


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
            raise DataError(f"{path} is a folder", hint="name one file of labels")
        for column in ("input", "answer", "label"):
            if column not in table.columns:
                hint = "the columns are input, answer and label; target and id too"
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


@dataclass(frozen=True)
class JudgeTrial:
    """Asks the judge about labelled answers."""

    assembled: Assembled

    def _ask(self, repeat: int) -> Ask:
        """A repeat caps the reply a token lower: to cache and journal it is another question."""
        models = self.assembled.models

        async def again(request: Request) -> Reply:
            own = models.lm.sampling_of(request.role, request.greedy)
            cap = (own.max_tokens or 4096) - repeat
            return await models.lm(replace(request, sampling=replace(own, max_tokens=cap)))

        return Ask(again, models.tally) if repeat else models.ask

    async def judge(
        self, items: Sequence[Item], repeats: int, count: Callable[[object], None]
    ) -> list[Values | Failure]:
        """Of each item a value by repeat; or why not."""

        async def one(item: Item) -> Values | Failure:
            asked = gather_all(self._score(item, repeat) for repeat in range(repeats))
            found, failure = await attempt("reward", asked)
            count(found)
            if found is None:
                assert failure is not None
                return failure
            return tuple(found)

        return await gather_all(map(one, items))

    async def _score(self, item: Item, repeat: int) -> float:
        assembled = self.assembled
        reward, bounds = assembled.task.reward(self._ask(repeat)), assembled.config.reward_range
        output = Output(item.answer)
        score = await apply_reward(reward, item.example, output, bounds, assembled.plan.calls)
        return score.value


@dataclass(frozen=True, slots=True)
class Calibration:
    """What labelled answers say of a judge. `kappa` is None where all say the same, `people` is κ
    of two raters, `noise` the deviation of one value around its repeats and `turned` how often a
    repeat lands on another level. `length` is how the judge's error follows the answer's length,
    the label held fixed."""

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
    people: Interval | None
    noise: float | None
    turned: Interval | None
    length: Interval | None
    format: str = FORMAT


def calibrate(
    judging: JudgeTrial, labels: Labels, found: Sequence[Values | Failure]
) -> Calibration:
    """The figures, and the decision by the rule. Raises DataError when nothing was judged."""
    failed = tuple(f"{f.kind}: {f.message}" for f in found if isinstance(f, Failure))
    known = [(i, f) for i, f in zip(labels.items, found, strict=True) if not isinstance(f, Failure)]
    if not known:
        message = f"no labelled answer could be judged: {(*failed, 'no row has a label')[0]}"
        raise DataError(message, hint="pco doctor; or write what people say into the column label")
    bounds = judging.assembled.config.reward_range
    levels = sorted({label for item, _ in known for label in item.labels})

    def level(value: float) -> int:
        return min(range(len(levels)), key=lambda k: (abs(levels[k] - value), -k))

    values = [made for _, made in known]
    rated = [
        ([*map(level, i.labels)], level(v[0])) for (i, _), v in zip(known, values, strict=True)
    ]
    both = [(people[:1], people[1]) for people, _ in rated if len(people) > 1]
    people = [item.label for item, _ in known]
    repeats, noise, turned = len(values[0]), None, None
    if repeats > 1:
        noise = math.sqrt(fmean(map(variance, values)))
        turned = mean_interval([float(len({*map(level, each)}) > 1) for each in values])
    errors = [v[0] - label for v, label in zip(values, people, strict=True)]
    made = Calibration(
        decision="",
        why="",
        judge=judging.assembled.models.lm.model_of("judge"),
        reward=judging.assembled.scored_by,
        simulated=judging.assembled.models.simulated,
        reward_range=bounds,
        judged=len(known),
        failures=failed,
        blank=labels.blank,
        agreement=mean_interval([fmean(p == judged for p in given) for given, judged in rated]),
        kappa=figures.cohen_kappa(rated, len(levels)),
        people=figures.cohen_kappa(both, len(levels)) if both else None,
        noise=noise,
        turned=turned,
        length=figures.partial_correlation(errors, [item.length for item, _ in known], people),
    )
    decision, why = decide(made)
    return replace(made, decision=decision, why=why)


def decide(made: Calibration) -> tuple[str, str]:
    """What to do with the judge, in the words of the rule, and why."""
    kappa, lost = made.kappa, len(made.failures) / (len(made.failures) + made.judged)
    unjudged = f"{lost:.0%} of the answers could not be judged"
    refusals = {
        f"it takes {figures.ENOUGH} judged answers to tell": made.judged < figures.ENOUGH,
        unjudged: lost > figures.MANY,
        "people and judge say the same of every answer": kappa is None,
        "its agreement with people may be chance": kappa is not None and kappa.low <= 0,
        f"κ is below {figures.FAIR:g}": kappa is not None and kappa.mean < figures.FAIR,
    }
    why = next((why for why, holds in refusals.items() if holds), "")
    if why or kappa is None:
        return "do not trust it", why
    sure = kappa.mean >= figures.ALMOST_PERFECT and kappa.low >= figures.CLEARLY_GOOD
    length = made.length
    limits = figures.ALMOST_PERFECT, figures.CLEARLY_GOOD
    doubts = {
        "κ is below {:g}, or its lower end below {:g}".format(*limits): not sure,
        unjudged: lost > figures.FEW,
        "repeats turn its decisions": made.turned is not None and made.turned.mean > figures.FEW,
        "its error follows the answer's length": length and not length.low <= 0 <= length.high,
    }
    why = "; ".join(doubt for doubt, holds in doubts.items() if holds)
    if why:
        return "use it with its error in the interval", why
    return "use it", "it agrees with people, and nothing that was tried sways it"
