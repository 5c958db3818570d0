"""HotpotQA's reward, and what a critic should know: the right answer, what each hop found and
what was still missing, and the sentences that decide the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from promptcodebook.tasks.hotpotqa.pipeline import Answered
from promptcodebook.tasks.hotpotqa.score import exact_match, f1
from promptcodebook.tasks.rewards.text import normalise, quoted
from promptcodebook.types import Example, Score

__all__ = ["feedback", "reward"]

_FACTS_CHARS = 1200
"""All supporting sentences together are cut here, so that the critic's context holds a batch."""
_FACT_CHARS = 400


def reward(example: Example, output: str) -> Score:
    """1 iff the answer equals the gold answer once both are normalised (after NFD), else 0.

    `output` is the program's JSON object; any other text counts as the answer itself.
    """
    found = Answered.of(output)
    value = float(exact_match(found.answer, example.target or "", nfd=True))
    return Score(value, feedback(example, found))


def feedback(example: Example, found: Answered) -> str:
    """Answer, hops and facts in a few sentences: usually under 1,500 characters, never 6,000."""
    parts = [_answer(found.answer, example.target or "")]
    parts += _hops(_texts(example, "gold_titles"), found.retrieved)
    facts = _cut(_texts(example, "facts"))
    if not facts:
        return " ".join(parts)
    parts.append("The sentences that decide the answer, which the summaries should carry:")
    return "\n- ".join((" ".join(parts), *facts))


def _answer(said: str, gold: str) -> str:
    if exact_match(said, gold, nfd=True):
        return f"The answer {quoted(gold)} is right."
    if not said.strip():
        return f"There is no answer; the right one is {quoted(gold)}."
    score, _, recall = f1(said, gold)
    close = f" (it shares words with it: F1 {score:.2f})" if score > 0 and recall < 1 else ""
    if recall == 1:
        close = ": it holds the right answer and more words, and only the bare answer counts"
    return f"The answer {quoted(said)} is wrong; the right answer is {quoted(gold)}{close}."


def _hops(gold: Sequence[str], retrieved: Sequence[Sequence[str]]) -> list[str]:
    said: list[str] = []
    missing = list(gold)
    for hop, titles in enumerate(retrieved, 1):
        came = {normalise(title) for title in titles}
        gained = [title for title in missing if normalise(title) in came]
        missing = [title for title in missing if normalise(title) not in came]
        said.append(_hop(hop, gained, missing))
    if missing and retrieved:
        said.append(f"Never retrieved: {_names(missing)}.")
    elif retrieved and gold:
        said.append("All needed pages were retrieved.")
    return said


def _hop(hop: int, gained: Sequence[str], missing: Sequence[str]) -> str:
    by = "search with the question" if hop == 1 else f"query{hop}"
    if gained:
        what = f"found {_names(gained)}"
    else:
        what = "found none of the pages still needed" if missing else "had nothing left to find"
    rest = f"; still missing: {_names(missing)}" if missing else ""
    return f"Hop {hop} ({by}) {what}{rest}."


def _texts(example: Example, field: str) -> list[str]:
    held = example.fields.get(field)
    values = cast("Sequence[object]", held) if isinstance(held, list | tuple) else ()
    return [str(value) for value in values]


def _cut(facts: Sequence[str]) -> list[str]:
    """The first facts that fit, each cut where it is long; ' …' marks what was left out."""
    kept: list[str] = []
    left = _FACTS_CHARS
    for fact in facts:
        short = fact if len(fact) <= _FACT_CHARS else fact[:_FACT_CHARS] + " …"
        if len(short) > left:
            return [*kept, "…"]
        kept.append(short)
        left -= len(short)
    return kept


def _names(titles: Sequence[str]) -> str:
    return ", ".join(quoted(title, 80) for title in titles[:8]) + (" …" if len(titles) > 8 else "")
