"""Programs of other libraries under our policies. A library runs a program and scores it in one
step, so the output carries its score, and the reward reads it there."""

from __future__ import annotations

from collections.abc import Sequence

from promptcodebook.calls import Usage
from promptcodebook.types import Example, Output, Score, Stage

_VALUE, _FEEDBACK = "score", "feedback"


def scored_output(
    text: str, stages: Sequence[Stage], score: Score, usage: Usage | None = None
) -> Output:
    """y with the stages on the way and what it earned; `usage` is that of calls past our meter."""
    fields = {_VALUE: score.value, _FEEDBACK: score.feedback}
    return Output(text, tuple(stages), fields=fields, usage=usage)


def read_score(example: Example, output: Output) -> Score:
    """What the output earned where it was made."""
    value, feedback = output.fields[_VALUE], output.fields[_FEEDBACK]
    assert isinstance(value, float) and isinstance(feedback, str), "as scored_output has it"
    return Score(value, feedback)
