"""`pupa`: private user queries answered with an outside model's help (PUPA-New, PAPILLON).

Reward: U - λL in -1..1 with λ = 1: quality against the reference answer, less the share of private
pieces in the request that went outside. Decided by the role `judge`; without one (or with
`reward = "stand-in"`) by a deterministic stand-in. The executor's output is a JSON object with the
answer to the user first and the request after it, since both are scored.
"""

from __future__ import annotations

from pathlib import Path

from promptcodebook.tasks.base import Task
from promptcodebook.tasks.home import home_of
from promptcodebook.tasks.pupa.check import NoUnitCheck
from promptcodebook.tasks.pupa.judge import WEIGHT, Judged, StandIn
from promptcodebook.tasks.pupa.pipeline import Papillon
from promptcodebook.tasks.pupa.rows import read_dataset

__all__ = ["SEEDS", "load_pupa"]

SEEDS: tuple[str, ...] = (
    "Replace people's names by their roles, such as 'a colleague' or 'the applicant'.",
    "Leave out e-mail addresses, phone numbers, user names and links.",
    "Replace street addresses and small places by a general region, or drop them.",
    "Name a kind of organisation instead of the organisation, such as 'a mid-sized bank'.",
    "Turn exact dates, ages and amounts into rough ones when the task allows it.",
    "Keep what the task needs: the kind of text, its purpose, tone, length and language.",
    "State the language of the answer that is wanted instead of quoting the query.",
    "Ask for a template with placeholders such as [NAME], to be filled in afterwards.",
    "Summarise a private document's structure and themes instead of copying it.",
    "For a text to be revised, describe its weaknesses and ask how to improve such a text.",
    "For a translation, ask about difficult general phrases, and translate the private parts at "
    "home.",
    "Combine few details only: several harmless ones together can identify a person.",
    "Famous people and public works may be named when the query is about them.",
    "Write the outside request so that it stands alone, without 'see above'.",
    "Before the request leaves, read it as a stranger would and strike what points to someone.",
    "In the final answer put names, dates and facts of the user's query back in their places.",
    "Answer in the language and form that the user asked for, completely and directly.",
    "Where the outside answer is off the point, answer from your own knowledge.",
    "Do not tell the user about the rewriting, the outside model or what was hidden.",
)


def load_pupa(data_dir: Path | None = None) -> Task:
    """The task on the data in `data_dir`, else the public copy, else our own invented examples."""
    home = home_of("pupa", data_dir)
    dataset = read_dataset(home.folder)
    return Task(
        name="pupa",
        dataset=dataset,
        reward=StandIn(),
        executor=Papillon(),
        reward_range=(-WEIGHT, 1.0),
        seeds=SEEDS,
        zero_shot="Protect the user's privacy and answer the user's query well.",
        description="Private user queries answered with the help of an untrusted outside model; "
        f"the reward is quality - {WEIGHT:g} x leakage: {home.origin}. The real queries are real "
        "people's: keep runs on them private.",
        output_format="Whatever the stage asks for: a request that holds nothing private, or the "
        "complete answer to the user.",
        judged=Judged,
        private=not home.own,
        checks=(NoUnitCheck(dataset.train),),
    )
