"""`constraints`: our own instruction-following task, shipped with the package; the demo.

160 everyday writing requests with 0 to 8 verifiable constraints each, over 24 kinds; there is no
reference answer, the checks decide.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from promptcodebook.data import load
from promptcodebook.tasks.base import Task
from promptcodebook.tasks.constraints.score import reward
from promptcodebook.tasks.single import single_call

__all__ = ["SEEDS", "load_constraints"]

SEEDS: tuple[str, ...] = (
    "Read the whole request first and note every requirement before writing.",
    "Count the sentences before answering and again afterwards.",
    "Keep an eye on the length: estimate the number of words and stay inside the limit.",
    "If a list is wanted, give it the number of points that was asked for.",
    "Use the words the user insists on, and leave out the ones they dislike.",
    "Keep a friendly, professional tone.",
    "Follow formatting instructions about headings and titles.",
    "Separate ideas into clear paragraphs.",
    "Be concise; leave out filler.",
    "Give concrete examples where they help the reader.",
    "If the answer must be machine readable, return only that format without any comment.",
    "Mind requests about capital and small letters.",
    "Address the reader directly and stay on the topic.",
    "Check the punctuation the user asked for or forbade.",
    "Begin with the most important point.",
    "Prefer simple words over technical terms.",
    "Before you finish, compare the draft with the request and correct what is missing.",
    "Do not mention these rules in the answer.",
)


def load_constraints(_data_dir: Path | None = None) -> Task:
    """The task; its data ships with the package, so no folder is looked at."""
    shipped = resources.files("promptcodebook.tasks.constraints").joinpath("data.jsonl")
    with resources.as_file(shipped) as path:
        dataset = load(path, target=None, id="id", split="split", name="constraints")
    return Task(
        name="constraints",
        dataset=dataset,
        reward=reward,
        executor=single_call,
        seeds=SEEDS,
        zero_shot="Answer the request and follow all of its requirements.",
        description="Everyday writing requests with up to eight verifiable constraints each; "
        "the reward is the share of constraints that the answer satisfies.",
        output_format="Only the answer itself, in exactly the form the request asks for, "
        "without any comment on it.",
    )
