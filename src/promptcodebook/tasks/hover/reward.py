"""HoVer's rewards, with what a critic should know: found and missing pages by hop, and the label.

`reward` is 1 iff every gold page was retrieved and the label is right (Table 7);
`retrieval_reward` asks for the pages alone (the GEPA artifact's metric, Table 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from promptcodebook.errors import RewardError
from promptcodebook.tasks.hover.pipeline import Found
from promptcodebook.tasks.hover.score import hover_score, parse_label, titles_subset
from promptcodebook.tasks.rewards.text import normalise, quoted
from promptcodebook.types import Example, Score

__all__ = ["feedback", "gold_titles", "retrieval_reward", "reward"]


def reward(example: Example, output: str) -> Score:
    """1 iff all gold pages were retrieved and the label is right, else 0. RewardError: no gold."""
    found, gold = Found.of(output), gold_titles(example)
    value = hover_score(found.titles, gold, found.label, example.target or "")
    return Score(value, feedback(example, found))


def retrieval_reward(example: Example, output: str) -> Score:
    """1 iff all gold pages were retrieved, whatever the label. RewardError: no gold."""
    found, gold = Found.of(output), gold_titles(example)
    return Score(float(titles_subset(found.titles, gold)), feedback(example, found))


def gold_titles(example: Example) -> tuple[str, ...]:
    """The example's distinct gold titles in their order; RewardError when there are none."""
    held = example.fields.get("gold_titles")
    titles = cast("Sequence[object]", held) if isinstance(held, list | tuple) else ()
    if not titles:
        raise RewardError(
            f"example {example.id} has no gold titles to look for",
            hint="give it a field gold_titles, a list of page titles",
        )
    return tuple(dict.fromkeys(str(title) for title in titles))


def feedback(example: Example, found: Found) -> str:
    """What was retrieved when, what is still missing, and whether the label is right."""
    gold, said = gold_titles(example), list[str]()
    missing = gold
    for hop, titles in enumerate(found.retrieved, 1):
        came = {normalise(title) for title in titles}
        gained = [title for title in missing if normalise(title) in came]
        missing = tuple(title for title in missing if normalise(title) not in came)
        said.append(_hop(hop, gained, missing))
    if not found.retrieved:
        said.append(f"Nothing was retrieved; needed: {_names(gold)}.")
    elif not missing:
        said.append("All needed pages were retrieved.")
    else:
        said.append(f"Never retrieved: {_names(missing)}.")
    return " ".join((*said, _label(found.label, parse_label(example.target or ""))))


def _hop(hop: int, gained: Sequence[str], missing: Sequence[str]) -> str:
    by = "search with the claim" if hop == 1 else f"query{hop}"
    what = f"found {_names(gained)}" if gained else "found none of the pages still needed"
    rest = f"; still missing: {_names(missing)}" if missing else ""
    # Once nothing is missing a further hop has nothing to gain, which is no fault of its query.
    if not gained and not missing:
        what = "had nothing left to find"
    return f"Hop {hop} ({by}) {what}{rest}."


def _label(written: str, gold: str | None) -> str:
    label = parse_label(written)
    if label is None:
        return (
            f"The label could not be read from {quoted(written)}: it must be SUPPORTED or "
            f"NOT_SUPPORTED. The right label is {gold}."
        )
    if label == gold:
        return f"The label {label} is right."
    return f"The label {label} is wrong; the right label is {gold}."


def _names(titles: Sequence[str]) -> str:
    return ", ".join(quoted(title) for title in titles)
