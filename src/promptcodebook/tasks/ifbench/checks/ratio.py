"""IFBench, group `ratio`."""

from __future__ import annotations

from collections.abc import Mapping

from promptcodebook.tasks.ifbench.arguments import Arguments
from promptcodebook.tasks.ifbench.constraint import Constraint
from promptcodebook.tasks.ifbench.text import Text

__all__ = ["RATIO"]


def _stop_words(text: Text, args: Arguments) -> bool:
    words = text.words
    if not words:
        return False
    known = text.language.stop_words
    # Divide first, do not round: 11 of 20 is above a limit of 55, as in the public scorer.
    share = sum(word.lower() in known for word in words) / len(words) * 100
    return share <= args.number("percentage")


def _sentence_type(text: Text, args: Arguments) -> bool:
    return _ending(text, ".") == 2 * _ending(text, "?")


def _sentence_balance(text: Text, args: Arguments) -> bool:
    return _ending(text, ".") == _ending(text, "?") == _ending(text, "!")


def _overlap(text: Text, args: Arguments) -> bool:
    # Trigrams of characters, not of words, whatever the request says.
    own, other = _trigrams(text.value), _trigrams(args.text("reference_text"))
    if not own:
        return False
    share = len(own & other) / len(own) * 100
    wanted = args.number("percentage")
    return wanted - 2 <= share <= wanted + 2


def _sentence_words(text: Text, args: Arguments) -> bool:
    lengths = [len(sentence.strip()) for sentence in text.sentences]
    return len(lengths) == 3 and len(set(lengths)) == 1


def _ending(text: Text, mark: str) -> int:
    return sum(sentence.endswith(mark) for sentence in text.sentences)


def _trigrams(value: str) -> set[str]:
    return {value[i : i + 3] for i in range(len(value) - 2)}


RATIO: Mapping[str, Constraint] = {
    "ratio:stop_words": Constraint(
        _stop_words,
        "At most {percentage} percent of the words of the response may be stop words.",
        ("percentage",),
    ),
    "ratio:sentence_type": Constraint(
        _sentence_type,
        "The response must have twice as many sentences that end in a full stop as sentences "
        "that end in a question mark.",
    ),
    "ratio:sentence_balance": Constraint(
        _sentence_balance,
        "The response must have equally many sentences that end in a full stop, in a question "
        "mark and in an exclamation mark.",
    ),
    "ratio:overlap": Constraint(
        _overlap,
        "{percentage} percent (2 more or less) of the response's trigrams of characters must "
        "occur in the reference text.",
        ("reference_text", "percentage"),
    ),
    "ratio:sentence_words": Constraint(
        _sentence_words,
        "The response must be exactly three sentences with equally many characters.",
    ),
}
