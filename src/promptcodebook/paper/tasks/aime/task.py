"""`aime`: competition problems whose answer is an integer from 0 to 999 (docs/tasks/aime.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import ConfigDict, model_validator

from promptcodebook.errors import DataError
from promptcodebook.paper.tasks.aime.score import accuracy, reward
from promptcodebook.tasks.home import BenchmarkRow, Filled, home_of, read_dataset, read_texts
from promptcodebook.tasks.program import SingleCall
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import Example


class ProblemRow(BenchmarkRow):
    """A problem; `solution` is a worked one, where it is known. Other columns are kept."""

    model_config = ConfigDict(extra="allow")
    input_column = "problem"

    id: Filled | int
    problem: Filled
    answer: str | int
    solution: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not accuracy(f"\\boxed{{{self.answer}}}", str(self.answer)):
            message = f"the answer {str(self.answer)!r} is not an integer from 0 to 999"
            raise DataError(message, hint="correct it in the data file")
        return self

    def example(self) -> Example:
        return Example(str(self.id), self.problem, str(self.answer), fields=self.model_dump())


def load_aime(data_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir` (or its folder aime/), else where `home_of` finds it."""
    home = home_of(Path(__file__).parent, data_dir)
    dataset = read_dataset(home, "aime", ProblemRow, ProblemRow.example)
    return Task(
        name="aime",
        dataset=dataset,
        reward=asks_nobody(reward),
        program=SingleCall(),
        **read_texts(Path(__file__).parent, count=len(dataset), origin=home.origin),
    )
