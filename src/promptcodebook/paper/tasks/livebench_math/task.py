"""`livebench_math`: competition problems, exercises with LaTeX results and proofs with gaps. The
program is one call: each question holds the form that its answer must have."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Self

from pydantic import model_validator

from promptcodebook.base.text import shipped_table
from promptcodebook.errors import DataError, require_modules
from promptcodebook.paper.tasks.livebench_math import score as scoring
from promptcodebook.tasks.home import BenchmarkRow, Filled, home_of, read_dataset, read_texts
from promptcodebook.tasks.program import SingleCall
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import Example, Score

_GOLD = {
    "choice": (re.compile(r"[A-E]"), "one letter from A to E"),
    "aime": (re.compile(r"[0-9]{3}"), "three digits"),
    "rearrangement": (
        re.compile(r"\s*\d{1,4}\s*(?:,\s*\d{1,4}\s*){0,199}"),
        "a list of at most 200 expression numbers, separated by commas",
    ),
    "amps": (re.compile(r".*\S.*", re.DOTALL), "LaTeX"),
}

_FOLDER = Path(__file__).parent
_FEEDBACK = shipped_table(__file__, "feedback.toml")
_SHOWN = 300
_GAPS_SHOWN = 8


class MathRow(BenchmarkRow):
    """A question; `ground_truth` has the form of its subtask."""

    input_column = "question"
    question_id: str
    task: str
    subtask: str
    question: Filled
    ground_truth: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        form, words = _GOLD[scoring.kind_of(self.subtask)]
        if not form.fullmatch(self.ground_truth):
            message = f"the ground_truth of a {self.subtask} row must be {words}"
            raise DataError(message, hint="correct it in the data file")
        return self

    def example(self) -> Example:
        fields = {"task": self.task, "subtask": self.subtask}
        return Example(self.question_id, self.question, self.ground_truth, fields=fields)


def load_livebench_math(data_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir`, else the public copy, else our own few examples."""
    home = home_of(_FOLDER, data_dir)
    dataset = read_dataset(home, "livebench_math", MathRow, MathRow.example)

    def require() -> None:
        asked = (str(e.fields["subtask"]) for _, split in dataset.items() for e in split)
        if "amps" in map(scoring.kind_of, asked):
            require_modules(scoring.ALGEBRA, "comparing mathematical answers", "bench")

    return Task(
        name="livebench_math",
        dataset=dataset,
        reward=asks_nobody(reward),
        program=SingleCall(),
        require=require,
        **read_texts(_FOLDER, origin=home.origin),
    )


async def reward(example: Example, output: str) -> Score:
    """The public score; the feedback says what is wrong and what the right answer is."""
    gold, subtask = example.target or "", str(example.fields["subtask"])
    # In a thread: comparing formulas may wait for the worker process for seconds.
    scored = await asyncio.to_thread(scoring.math_score, example.input, gold, subtask, output)
    return Score(scored.score, feedback(example.input, gold, output, scored))


def feedback(question: str, gold: str, answer: str, scored: scoring.MathScore) -> str:
    """One short paragraph on `answer`, as `scored` says it was read."""
    if scored.score == 1.0:
        return f"Right: the answer is {_short(gold)} (read from: {scored.path})."
    return _WRONG[scored.kind](question, gold, scoring.without_thoughts(answer), scored)


def _choice(question: str, gold: str, answer: str, scored: scoring.MathScore) -> str:
    value = scoring.option_value(question, gold)
    named = f"{gold}, which is {_short(value)}" if value != "FAILURE" else gold
    letter = scoring.read_letter(answer)
    if not letter or letter == gold:
        return _text("no_choice", right=named, repeated=gold * 5)
    other = scoring.option_value(question, letter)
    meant = "" if other == "FAILURE" else f" ({_short(other)})"
    return _text("other_choice", letter=letter, meant=meant, right=named)


def _aime(question: str, gold: str, answer: str, scored: scoring.MathScore) -> str:
    plain = str(int(gold))
    if gold in answer:
        return _text("not_at_end", right=gold)
    if plain != gold and re.search(rf"(?<!\d){plain}(?!\d)", answer[-50:]):
        return _text("too_few_digits", plain=plain, right=gold)
    return _text("other_digits", right=gold)


def _rearrangement(question: str, gold: str, answer: str, scored: scoring.MathScore) -> str:
    order = [int(piece) for piece in gold.split(",")]
    right = ", ".join(map(str, order))
    if not scored.path:
        return _text("no_list", right=right)
    parts = [_text("distance", score=scored.score, right=right)]
    if len(scored.ids) != len(order):
        parts.append(_text("other_count", given=len(scored.ids), gaps=len(order)))
    pairs = enumerate(zip(scored.ids, order, strict=False), 1)
    wrong = [
        _text("gap", gap=gap, wanted=wanted, given="no number" if given is None else given)
        for gap, (given, wanted) in pairs
        if given != wanted
    ]
    more = len(wrong) - _GAPS_SHOWN
    shown = "; ".join(wrong[:_GAPS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return " ".join([*parts, f"Wrong places: {shown}."] if wrong else parts)


def _amps(question: str, gold: str, answer: str, scored: scoring.MathScore) -> str:
    case = "other_result"
    if not scored.read:
        case = "no_result"
    elif scored.timed_out:
        case = "late"
    elif scored.path.endswith("not readable"):
        case = "no_formula"
    return _text(case, read=_short(scored.read), right=_short(gold))


def _text(case: str, **values: object) -> str:
    return _FEEDBACK[case].format(**values)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " …"


_WRONG: dict[str, Callable[[str, str, str, scoring.MathScore], str]] = {
    "choice": _choice,
    "aime": _aime,
    "rearrangement": _rearrangement,
    "amps": _amps,
}
