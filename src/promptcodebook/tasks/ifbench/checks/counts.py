"""IFBench, groups `count` and `ratio`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from promptcodebook.tasks.ifbench.instruction import MARKS, Arguments, Check, Text, without_marks

_CONJUNCTIONS = frozenset(("and", "but", "for", "nor", "or", "so", "yet"))

_NAMES = re.compile(
    r"\b(?:Emma|Liam|Sophia|Jackson|Olivia|Noah|Ava|Lucas|Isabella|Mason|Mia|Ethan|Charlotte|"
    r"Alexander|Amelia|Benjamin|Harper|Leo|Zoe|Daniel|Chloe|Samuel|Lily|Matthew|Grace|Owen|"
    r"Abigail|Gabriel|Ella|Jacob|Scarlett|Nathan|Victoria|Elijah|Layla|Nicholas|Audrey|David|"
    r"Hannah|Christopher|Penelope|Thomas|Nora|Andrew|Aria|Joseph|Claire|Ryan|Stella|Jonathan)\b"
)

_PRONOUNS = frozenset(
    re.findall(
        r"\w+",
        """
        i me we us you he him she her it they them my mine our ours your yours his hers its
        their theirs myself ourselves yourself yourselves himself herself itself themselves
        this that these those who whom whose which what whoever whomever whatever whichever
        anybody anyone anything everybody everyone everything nobody nothing somebody
        someone something each either neither both all some any none
        """,
    )
)

_DIGITS = re.compile(r"\d+")
_JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")


def _word_count_range(text: Text, args: Arguments) -> bool:
    return args.integer("min_words") <= len(text.words) <= args.integer("max_words")


def _unique_word_count(text: Text, args: Arguments) -> bool:
    # A token of punctuation only leaves the empty string, which counts as one word.
    return len({word.strip(MARKS) for word in text.lower.split()}) >= args.integer("N")


def _conjunctions(text: Text, args: Arguments) -> bool:
    # Distinct raw tokens are counted, so "and" and "And," are two.
    found = {word for word in text.value.split() if word.strip(MARKS).lower() in _CONJUNCTIONS}
    return len(found) >= args.integer("small_n")


def _person_names(text: Text, args: Arguments) -> bool:
    return len(set(_NAMES.findall(text.value))) >= args.integer("N")


def _numbers(text: Text, args: Arguments) -> bool:
    return len(_DIGITS.findall(without_marks(text.value))) == args.integer("N")


def _punctuation(text: Text, args: Arguments) -> bool:
    value = text.value
    if not any(mark in value for mark in ("?!", "!?", "\u203d")):
        return False
    rest = value.replace("?!" if "?!" in value else "!?", "", 1)
    return all(mark in rest for mark in ".,!?;:")


def _words_japanese(text: Text, args: Arguments) -> bool:
    step = args.integer("N")
    if step < 1:
        return False
    chosen = (word.strip(MARKS) for word in text.value.split()[step - 1 :: step])
    return all(not word or word.isdigit() or _JAPANESE.search(word) for word in chosen)


def _pronouns(text: Text, args: Arguments) -> bool:
    tokens = text.language.tokens(text.value.replace("/", " ").lower())
    return sum(token in _PRONOUNS for token in tokens) >= args.integer("N")


def _keywords_multiple(text: Text, args: Arguments) -> bool:
    wanted = enumerate((1, 2, 3, 5, 7), start=1)
    return all(
        text.lower.count(args.text(f"keyword{i}").strip().lower()) == times for i, times in wanted
    )


COUNT: Mapping[str, Check] = {
    "count:word_count_range": _word_count_range,
    "count:unique_word_count": _unique_word_count,
    "count:conjunctions": _conjunctions,
    "count:person_names": _person_names,
    "count:numbers": _numbers,
    "count:punctuation": _punctuation,
    "count:words_japanese": _words_japanese,
    "count:pronouns": _pronouns,
    "count:keywords_multiple": _keywords_multiple,
}


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


RATIO: Mapping[str, Check] = {
    "ratio:stop_words": _stop_words,
    "ratio:sentence_type": _sentence_type,
    "ratio:sentence_balance": _sentence_balance,
    "ratio:overlap": _overlap,
    "ratio:sentence_words": _sentence_words,
}
