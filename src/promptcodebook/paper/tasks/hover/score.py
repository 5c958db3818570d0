"""Scoring HoVer claims: were all gold pages retrieved, and is the label right? `titles_subset` is
the GEPA artifact's; `hit_at`, `doc_em` and `doc_f1` are the benchmark's own. `reward` is the task's
(Table 7), `retrieval_reward` asks for the pages alone (the GEPA artifact's, Table 1)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import chain
from typing import Literal, cast

from promptcodebook.base.text import answer_words, quote
from promptcodebook.errors import RewardError
from promptcodebook.paper.tasks import retrieval
from promptcodebook.types import Example, Output, Score

Label = Literal["SUPPORTED", "NOT_SUPPORTED"]

_JOINS = re.compile(r"[\s_\-\u2010\u2011]+")
# "not fully supported" is neither label: a negation that is not part of a label leaves it open.
_SENTENCE_END = re.compile(r"[.!?;:\n]+")
_NEGATION = re.compile(r"(?<![^\W_])(?:NOT|NEVER|NO|NEITHER|CANNOT|HARDLY)(?![^\W_])|N['\u2019]T")


def titles_subset(retrieved_docs: Sequence[str], gold_titles: Sequence[str]) -> bool:
    """True iff every gold title is the title of a retrieved document, both normalised."""
    retrieved = {answer_words(retrieval.title_of(document)) for document in retrieved_docs}
    return {answer_words(title) for title in gold_titles} <= retrieved


def hit_at(ranked_titles: Sequence[str], gold_titles: Sequence[str], k: int) -> bool:
    """True iff every gold title is among the first k ranked ones, letter by letter."""
    return set(gold_titles) <= set(ranked_titles[:k])


def _nfd(titles: Sequence[str]) -> list[str]:
    return [unicodedata.normalize("NFD", title) for title in titles]


def doc_em(predicted_titles: Sequence[str], gold_titles: Sequence[str]) -> float:
    """1.0 iff the gold titles are predicted, each once, and nothing else, after NFD; else 0.0."""
    predicted, gold = _nfd(predicted_titles), {*_nfd(gold_titles)}
    return float(len(predicted) == len(gold) and gold <= set(predicted))


def doc_f1(predicted_titles: Sequence[str], gold_titles: Sequence[str]) -> float:
    """2PR / (P + R) over titles after NFD. Repeated predictions count in P; gold titles once."""
    predicted, gold = _nfd(predicted_titles), {*_nfd(gold_titles)}
    common = len(gold.intersection(predicted))
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def parse_label(text: str) -> Label | None:
    """The label that `text` gives, NOT_SUPPORTED looked for first; None when it gives neither."""
    upper = text.strip().upper()
    if re.search(r"(?<![^\W_])(?:NOT_SUPPORTED|REFUTED|FALSE)(?![^\W_])", _JOINS.sub("_", upper)):
        return "NOT_SUPPORTED"
    label: Label | None = None
    for part in _SENTENCE_END.split(upper):
        sentence = _JOINS.sub("_", part)
        if match := re.search(r"(?<![^\W_])SUPPORTED(?![^\W_])", sentence):
            if _NEGATION.search(sentence, 0, match.start()):
                return None
            label = "SUPPORTED"
    return label


def reward(example: Example, output: Output) -> Score:
    """1 iff all gold pages were retrieved and the label is right, else 0. Raises RewardError
    without gold."""
    complete = retrieval_reward(example, output)
    wanted = parse_label(example.target or "")
    right = wanted is not None and parse_label(output.text) == wanted
    return Score(float(right and complete.value), complete.feedback)


def retrieval_reward(example: Example, output: Output) -> Score:
    """1 iff all gold pages were retrieved, whatever the label. Raises RewardError without gold."""
    titles = [*chain.from_iterable(retrieval.retrieved_titles(output))]
    complete = titles_subset(titles, gold_titles(example))
    return Score(float(complete), feedback(example, output))


def gold_titles(example: Example) -> tuple[str, ...]:
    """The example's distinct gold titles in their order. Raises RewardError when there are none."""
    held = example.fields.get("gold_titles")
    titles = cast("Sequence[object]", held) if isinstance(held, list | tuple) else ()
    if not titles:
        message = f"example {example.id} has no gold titles to look for"
        raise RewardError(message, hint="add a gold_titles field with a list of page titles")
    return tuple(dict.fromkeys(str(title) for title in titles))


def feedback(example: Example, output: Output) -> str:
    """What was retrieved when, what is still missing, and whether the label is right."""
    gold, retrieved = gold_titles(example), retrieval.retrieved_titles(output)
    sentences, missing = retrieval.describe_hops(gold, retrieved, "claim")
    if not retrieved:
        sentences.append(f"Nothing was retrieved; needed: {retrieval.name_titles(gold)}.")
    elif not missing:
        sentences.append("All needed pages were retrieved.")
    else:
        sentences.append(f"Never retrieved: {retrieval.name_titles(missing)}.")
    label, right = parse_label(output.text), parse_label(example.target or "")
    message = f"The label {label} is right."
    if label is None:
        message = (
            f"The label could not be read from {quote(output.text)}: it must be SUPPORTED or "
            f"NOT_SUPPORTED. The right label is {right}."
        )
    elif label != right:
        message = f"The label {label} is wrong; the right label is {right}."
    return " ".join((*sentences, message))
