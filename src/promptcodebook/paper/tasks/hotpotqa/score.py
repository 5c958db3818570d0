"""HotpotQA's answer scores: exact match and token F1 of normalised answers; and its reward. Both
scores follow the official script. Where that is plainly odd, so is this: curly quotes and dashes
stay, and an answer that is an article alone equals the empty one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

from promptcodebook.base.text import answer_words, quote
from promptcodebook.paper.tasks.retrieval import describe_hops, name_titles, retrieved_titles
from promptcodebook.types import Example, Output, Score

# Against any other answer these earn nothing, whatever words they share.
_CLOSED = ("yes", "no", "noanswer")

_FACTS_CHARS = 1200  # of all facts, so that the critic's context holds a batch
_FACT_CHARS = 400


def exact_match(prediction: str, gold: str, nfd: bool = False) -> bool:
    """Equal once normalised. `nfd` decomposes accented letters first, as the GEPA artifact does."""
    return answer_words(prediction, nfd=nfd) == answer_words(gold, nfd=nfd)


def f1(prediction: str, gold: str) -> tuple[float, float, float]:
    """(F1, precision, recall) of words; 0 where one is yes, no or noanswer and the other is not."""
    given, wanted = answer_words(prediction, nfd=False), answer_words(gold, nfd=False)
    if given != wanted and (given in _CLOSED or wanted in _CLOSED):
        return 0.0, 0.0, 0.0
    words, gold_words = given.split(), wanted.split()
    common = sum((Counter(words) & Counter(gold_words)).values())
    if common == 0:
        return 0.0, 0.0, 0.0
    precision, recall = common / len(words), common / len(gold_words)
    return 2 * precision * recall / (precision + recall), precision, recall


def reward(example: Example, output: Output) -> Score:
    """1 iff the answer equals the gold answer once both are normalised (after NFD), else 0."""
    value = float(exact_match(output.text, example.target or "", nfd=True))
    return Score(value, feedback(example, output))


def feedback(example: Example, output: Output) -> str:
    """Whether it is right, what each hop found and missed, and the sentences that decide."""
    wanted, retrieved = _texts(example, "gold_titles"), retrieved_titles(output)
    hops, missing = describe_hops(wanted, retrieved, "question")
    parts = [_describe_answer(output.text, example.target or ""), *hops]
    if missing and retrieved:
        parts.append(f"Never retrieved: {name_titles(missing)}.")
    elif retrieved and wanted:
        parts.append("All needed pages were retrieved.")
    facts, left = list[str](), _FACTS_CHARS
    for fact in _texts(example, "facts"):
        short = fact if len(fact) <= _FACT_CHARS else fact[:_FACT_CHARS] + " …"
        if len(short) > left:
            facts.append("…")
            break
        facts.append(short)
        left -= len(short)
    if facts:
        parts.append("The sentences that decide the answer, which the summaries should carry:")
    return "\n- ".join((" ".join(parts), *facts))


def _describe_answer(answer: str, gold: str) -> str:
    if exact_match(answer, gold, nfd=True):
        return f"The answer {quote(gold)} is right."
    if not answer.strip():
        return f"There is no answer; the right one is {quote(gold)}."
    score, _, recall = f1(answer, gold)
    close = f" (it shares words with it: F1 {score:.2f})" if score > 0 and recall < 1 else ""
    if recall == 1:
        close = ": it holds the right answer and more words, and only the bare answer counts"
    return f"The answer {quote(answer)} is wrong; the right answer is {quote(gold)}{close}."


def _texts(example: Example, field: str) -> list[str]:
    held = example.fields.get(field)
    return [*map(str, cast("Sequence[object]", held))] if isinstance(held, list | tuple) else []
