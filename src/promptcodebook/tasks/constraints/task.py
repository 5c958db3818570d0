"""`constraints`: our own instruction-following task, shipped with the package; the demo.

160 everyday writing requests with 0 to 8 verifiable constraints each, over 24 kinds; there is no
reference answer, the checks decide: the reward is the share of a prompt's constraints that the
answer keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import cast

from promptcodebook.data import Dataset, load
from promptcodebook.tasks.constraints.checks import Constraint, check, words
from promptcodebook.tasks.constraints.compose import compose
from promptcodebook.tasks.home import read_seeds
from promptcodebook.tasks.program import SingleCall
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import Example, Score

_FEWEST_WORDS = 5
"""What an answer to a prompt without constraints needs to count as one."""


def load_constraints(_data_dir: Path | None = None) -> Task:
    """The task; its data ships with the package, so no folder is looked at."""
    shipped = resources.files("promptcodebook.tasks.constraints").joinpath("data.jsonl")
    with resources.as_file(shipped) as path:
        dataset = load(path, target=None, id="id", split="split", name="constraints")
    return Task(
        name="constraints",
        dataset=dataset,
        reward=asks_nobody(reward),
        program=SingleCall(),
        seeds=read_seeds(Path(__file__).parent),
        zero_shot="Answer the request and follow all of its requirements.",
        description="Everyday writing requests with up to eight verifiable constraints each; "
        "the reward is the share of constraints that the answer satisfies.",
        output_format="Only the answer itself, in exactly the form the request asks for, "
        "without any comment on it.",
    )


def draw_constraints(world: int, kinds: Sequence[str] = ()) -> Dataset:
    """Other prompts in place of the shipped ones, drawn alike: world 1 is what is shipped. With
    `kinds`, which must go together, each prompt has constraints of just these kinds."""
    rows = list(compose(world, kinds))
    return load(rows, target=None, id="id", split="split", name="constraints")


def constraints_of(example: Example) -> tuple[Constraint, ...]:
    """The constraints an example carries in `fields["constraints"]`, in the prompt's order."""
    return tuple(cast("list[Constraint]", example.fields.get("constraints") or []))


def reward(example: Example, output: str) -> Score:
    """Satisfied / all constraints, in [0, 1]; the feedback says for each what was found.

    Without constraints: 1 for an answer of at least five words, else 0.
    """
    constraints = constraints_of(example)
    if not constraints:
        if len(words(output)) >= _FEWEST_WORDS:
            return Score(1.0, "The request sets no constraints, and it was answered.")
        return Score(0.0, "The request was not answered: there are fewer than five words.")
    results = [check(constraint, example.input, output) for constraint in constraints]
    kept = [result.explanation for result in results if result.satisfied]
    broken = [result.explanation for result in results if not result.satisfied]
    parts = [f"{len(kept)} of {len(results)} constraints are satisfied."]
    if broken:
        parts.append("Not satisfied: " + " ".join(broken))
    if kept:
        parts.append("Satisfied: " + " ".join(kept))
    return Score(len(kept) / len(results), " ".join(parts))
