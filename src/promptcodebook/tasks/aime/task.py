r"""`aime`: competition problems whose answer is an integer from 0 to 999.

Reward: accuracy of the boxed integer. The folder holds train.jsonl, val.jsonl and
test.jsonl with the fields id, problem, answer and (where known) solution; without one the
public copy that was fetched, or the few problems of our own that ship with the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import ConfigDict, model_validator

from promptcodebook.errors import DataError
from promptcodebook.tasks.aime.score import accuracy, reward
from promptcodebook.tasks.home import BenchmarkRow, blank_fields, home_of, read_dataset, read_seeds
from promptcodebook.tasks.program import SingleCall
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import Example


class ProblemRow(BenchmarkRow):
    """A problem; `solution` is a worked one, where it is known. Other columns are kept."""

    model_config = ConfigDict(extra="allow")
    input_column = "problem"

    id: str | int
    problem: str
    answer: str | int
    solution: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        blank_fields(self, "id", "problem")
        if not accuracy(f"\\boxed{{{self.answer}}}", str(self.answer)):
            raise DataError(
                f"the answer {str(self.answer)!r} is not an integer from 0 to 999",
                hint="correct it in the data file",
            )
        return self

    def example(self) -> Example:
        return Example(str(self.id), self.problem, str(self.answer), fields=self.model_dump())


def load_aime(data_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir` (or its folder aime/), else where `home_of` finds it."""
    home = home_of("aime", data_dir)
    dataset = read_dataset("aime", home.folder, ProblemRow, ProblemRow.example)
    return Task(
        name="aime",
        dataset=dataset,
        reward=asks_nobody(reward),
        program=SingleCall(),
        seeds=read_seeds(Path(__file__).parent),
        zero_shot="Solve the problem and give the final answer as \\boxed{integer}.",
        description=f"Competition mathematics with integer answers from 0 to 999: "
        f"{len(dataset)} problems; {home.origin}.",
        output_format="A worked solution that ends with the final answer as \\boxed{integer}, "
        "an integer from 0 to 999.",
    )
