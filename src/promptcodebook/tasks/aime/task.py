r"""`aime`: competition problems whose answer is an integer from 0 to 999.

Reward: accuracy of the boxed integer. The folder handed in holds train.jsonl, val.jsonl and
test.jsonl with the fields id, problem, answer and (where known) solution; without one the
public copy that was fetched, or the few problems of our own that ship with the package.
"""

from __future__ import annotations

from pathlib import Path

from promptcodebook.data import SPLITS, Dataset, load
from promptcodebook.errors import TaskError
from promptcodebook.tasks.aime.score import accuracy, read_answer
from promptcodebook.tasks.base import Task
from promptcodebook.tasks.home import home_of
from promptcodebook.tasks.single import single_call
from promptcodebook.types import Example, Score

__all__ = ["SEEDS", "load_aime", "reward"]

SEEDS: tuple[str, ...] = (
    "Restate the problem in your own words and list what is given and what is asked.",
    "Name the unknowns and write down every equation before solving.",
    "Try small cases first and look for a pattern.",
    "For counting problems, decide whether order matters and whether repetition is allowed.",
    "Count the complement when it is simpler.",
    "For geometry, draw a figure in coordinates or look for similar triangles.",
    "For divisibility and remainders, work with modular arithmetic and prime factors.",
    "Use symmetry to reduce the work.",
    "For sequences, find the recurrence or the period.",
    "For polynomials, use the relations between roots and coefficients.",
    "For probability, count favourable and possible outcomes separately.",
    "Keep fractions exact; avoid rounding.",
    "Consider bounds and extreme cases to limit the possibilities.",
    "Work step by step and justify each step briefly.",
    "Check the result by substituting it or by a second method.",
    "If the question asks for m + n, reduce the fraction first and then add.",
    "Make sure that the final number answers the question that was asked.",
    "State the final answer clearly at the end.",
)

_FEEDBACK_CHARS = 1500
"""Worked solutions are cut here, so that the critic's context holds several examples."""


def reward(example: Example, output: str) -> Score:
    """1 or 0; the feedback gives the right number and the worked solution where there is one."""
    gold = example.target or ""
    value = accuracy(output, gold)
    if value == 1.0:
        return Score(value, f"The answer {gold} is right.")
    found = read_answer(output)
    if found is None:
        said = (
            "No answer could be read: the answer must be one integer from 0 to 999 "
            f"in \\boxed{{}}. The right answer is {gold}."
        )
    else:
        said = f"The answer {found} is wrong; the right answer is {gold}."
    solution = str(example.fields.get("solution") or "").strip()
    return Score(value, f"{said} A worked solution: {_cut(solution)}" if solution else said)


def load_aime(data_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir` (or its folder aime/), else where `home_of` finds it."""
    home = home_of("aime", data_dir)
    dataset = _read(home.folder)
    return Task(
        name="aime",
        dataset=dataset,
        reward=reward,
        executor=single_call,
        seeds=SEEDS,
        zero_shot="Solve the problem and give the final answer as \\boxed{integer}.",
        description=f"Competition mathematics with integer answers from 0 to 999: "
        f"{len(dataset)} problems; {home.origin}.",
        output_format="A worked solution that ends with the final answer as \\boxed{integer}, "
        "an integer from 0 to 999.",
    )


def _read(folder: Path) -> Dataset:
    files = {split: folder / f"{split}.jsonl" for split in SPLITS}
    dataset = load(files, input="problem", target="answer", id="id", name="aime")
    for _, examples in dataset.items():
        for example in examples:
            if not accuracy(f"\\boxed{{{example.target}}}", example.target or ""):
                raise TaskError(
                    f"{example.id} in {folder}: the answer {example.target!r} is no integer "
                    "from 0 to 999",
                    hint="correct it in the data file",
                )
    return dataset


def _cut(text: str) -> str:
    return text if len(text) <= _FEEDBACK_CHARS else text[:_FEEDBACK_CHARS].rsplit(" ", 1)[0] + " …"
