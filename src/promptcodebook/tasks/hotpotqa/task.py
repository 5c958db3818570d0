"""`hotpotqa`: questions whose answer takes two pages of an encyclopedia, found by search.

Reward: exact match of the answer. The folder handed in holds train.jsonl, val.jsonl and test.jsonl
with the fields id, question, answer, gold_titles and supporting_facts, and corpus.jsonl with title
and sentences. The executor's output is a JSON object: the answer, then the titles found hop by hop,
which the feedback speaks of.
"""

from __future__ import annotations

from pathlib import Path

from promptcodebook.errors import TaskError
from promptcodebook.tasks.base import Task
from promptcodebook.tasks.home import home_of
from promptcodebook.tasks.hotpotqa.pipeline import HotpotProgram
from promptcodebook.tasks.hotpotqa.reward import reward
from promptcodebook.tasks.hotpotqa.rows import read_dataset
from promptcodebook.tasks.retrieval import Search, open_retriever

__all__ = ["SEEDS", "load_hotpotqa"]

SEEDS: tuple[str, ...] = (
    "Break the question into the fact that leads to a page and the fact that page must give.",
    "Name the bridge: the person, place or work that links the two pages.",
    "For a comparison, collect the same fact about each of the two things before comparing.",
    "In a first summary keep names, dates and places exactly as the passages spell them.",
    "Say in the summary which part of the question the passages leave open.",
    "Ignore passages about namesakes; check that details match the question.",
    "Search for the missing page by the name that its title is likely to bear.",
    "Keep a search query short: the name and one or two telling words.",
    "Do not search again for what is already known.",
    "When the bridge was not found, search by its description in other words.",
    "Trust the passages over memory when they disagree.",
    "Combine both summaries step by step before giving the answer.",
    "Give the shortest complete answer: a name, a date, a number or a phrase, no sentence.",
    "Answer a yes-or-no question with yes or no alone.",
    "Answer with the kind of thing that is asked for: who, when, where, how many.",
    "Use the full name as the passage gives it, without titles or explanations.",
    "For 'which of the two', answer with one of the two names as the question writes it.",
    "For numbers and dates, copy the form that the passage uses.",
    "If the passages do not settle it, give the most likely answer instead of refusing.",
)

_OWN = Path(__file__).parent / "examples"


def load_hotpotqa(data_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir` (or its folder hotpotqa/), else on the fetched copy, else
    on our own few examples. TaskError or DataError name what is missing or wrong; MissingExtra
    without bm25s and PyStemmer. The first use of a corpus indexes it."""
    home = home_of("hotpotqa", data_dir)
    corpus = home.folder / "corpus.jsonl"
    if not corpus.is_file():
        raise TaskError(
            f"the task hotpotqa needs {corpus}, which is missing",
            hint='one page a line: {"title": "...", "sentences": ["...", "..."]}',
        )
    # The package's own folder is not ours to write to, and its few pages are indexed at once.
    retriever = open_retriever(corpus, keep=home.folder != _OWN)
    return Task(
        name="hotpotqa",
        dataset=read_dataset(home.folder, retriever),
        reward=reward,
        executor=HotpotProgram(Search(retriever)),
        seeds=SEEDS,
        zero_shot="Find what the question needs and answer it with the bare answer.",
        description="Questions that take two pages of an encyclopedia, found in two searches over "
        f"{len(retriever):,} pages; the reward is exact match of the answer. Data: {home.origin}.",
        output_format="Whatever the stage asks for: a summary, a short search query, or the bare "
        "answer (a name, a date, a number, yes or no) without a sentence around it.",
    )
