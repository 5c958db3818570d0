"""`livebench_math`: competition problems, exercises with LaTeX results and proofs with gaps.

Reward: LiveBench's own score, 0 to 1. The executor is one call: each question holds the form that
its answer must have.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from promptcodebook.tasks.base import Task
from promptcodebook.tasks.home import home_of
from promptcodebook.tasks.livebench_math.feedback import feedback
from promptcodebook.tasks.livebench_math.rows import read_dataset
from promptcodebook.tasks.livebench_math.score import verdict
from promptcodebook.tasks.single import single_call
from promptcodebook.types import Example, Score

__all__ = ["SEEDS", "load_livebench_math", "reward"]

SEEDS: tuple[str, ...] = (
    "Read the end of the question first: it says in which form the answer must be given.",
    "For multiple choice, solve the problem before looking at the options, then pick the match.",
    "When solving is hard, test the options one by one and strike those that cannot be.",
    "Write the chosen letter five times in one string on a line of its own at the end.",
    "For an integer answer, end with exactly three digits and nothing after them.",
    "Keep results exact: fractions and roots, no decimals.",
    "Put the final result once into a box, alone, without units, words or an equals sign.",
    "For derivatives, name the outer and the inner function and apply product and chain rule.",
    "For integrals, look for a substitution and differentiate the result to check it.",
    "For determinants and characteristic polynomials, expand along the row with most zeros and "
    "watch the signs.",
    "For variance and standard deviation, divide by n - 1 for a sample and list the deviations.",
    "To complete the square, halve the linear coefficient after factoring out the leading one.",
    "Factor numbers into primes for divisors, greatest common divisors and roots.",
    "For a proof with gaps, read it once in full and note what each gap must state before "
    "looking at the formulas.",
    "Match the formulas whose place is certain first, then fill the other gaps from what is left.",
    "Use each formula of the list once, and give as many numbers as there are gaps.",
    "Count by cases that exclude each other, or count the complement.",
    "Introduce coordinates or similar triangles in geometry problems.",
    "For recurring expressions in an equation, substitute a new unknown for them.",
    "Check the result with a special case or by putting it back into the problem.",
    "If the answer stays unclear, still give the best guess in the form that was asked for.",
)


async def reward(example: Example, output: str) -> Score:
    """The public score; the feedback says what is wrong and what the right answer is."""
    gold, subtask = example.target or "", str(example.fields["subtask"])
    # In a thread: comparing formulas may wait for the worker process for seconds.
    found = await asyncio.to_thread(verdict, example.input, gold, subtask, output)
    return Score(found.score, feedback(example.input, gold, output, found))


def load_livebench_math(data_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir`, else the public copy, else our own few examples."""
    home = home_of("livebench_math", data_dir)
    dataset = read_dataset(home.folder)
    return Task(
        name="livebench_math",
        dataset=dataset,
        reward=reward,
        executor=single_call,
        seeds=SEEDS,
        zero_shot="Work out the question and give the answer in the form that it asks for.",
        description="Mathematics of LiveBench: multiple choice, integers of three digits, LaTeX "
        f"results and proofs whose formulas are to be put in order: {home.origin}.",
        output_format="A worked solution that ends with the answer in exactly the form that the "
        "question asks for.",
    )
