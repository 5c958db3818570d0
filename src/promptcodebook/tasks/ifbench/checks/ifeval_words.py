"""IFEval: keywords, language, lengths, letter case."""

from __future__ import annotations

import re
from collections.abc import Mapping

from promptcodebook.tasks.ifbench.arguments import Arguments
from promptcodebook.tasks.ifbench.constraint import Constraint
from promptcodebook.tasks.ifbench.text import Text

__all__ = ["IFEVAL_WORDS"]

_RULE = re.compile(r"\s?\*\*\*\s?")
_FIRST_WORD_ENDS = re.compile(r"[.,?!'\"]")


def _existence(text: Text, args: Arguments) -> bool:
    return all(text.language.patterns.counts(args.texts("keywords"), text.value))


def _frequency(text: Text, args: Arguments) -> bool:
    found = text.language.patterns.counts([args.text("keyword").strip()], text.value)[0]
    return args.compare("relation", found, "frequency")


def _forbidden_words(text: Text, args: Arguments) -> bool:
    words = args.texts("forbidden_words")
    found = text.language.patterns.counts(words, text.value, prefix=r"\b", suffix=r"\b")
    return not any(found)


def _letter_frequency(text: Text, args: Arguments) -> bool:
    # The public scorer replaces what is no letter by a random one; here it is counted as given.
    found = text.lower.count(args.text("letter").lower())
    return args.compare("let_relation", found, "let_frequency")


def _response_language(text: Text, args: Arguments) -> bool:
    return text.language.guess(text.value) in ("", args.text("language"))


def _number_sentences(text: Text, args: Arguments) -> bool:
    return args.compare("relation", len(text.sentences), "num_sentences")


def _number_words(text: Text, args: Arguments) -> bool:
    return args.compare("relation", len(text.words), "num_words")


def _number_paragraphs(text: Text, args: Arguments) -> bool:
    blank = [not piece.strip() for piece in _RULE.split(text.value)]
    if any(blank[1:-1]):
        return False
    return len(blank) - sum(blank) == args.integer("num_paragraphs")


def _nth_paragraph_first_word(text: Text, args: Arguments) -> bool:
    pieces = text.value.split("\n\n")
    count = sum(bool(piece.strip()) for piece in pieces)
    nth = args.integer("nth_paragraph")
    if count != args.integer("num_paragraphs") or not 1 <= nth <= count:
        return False
    words = pieces[nth - 1].split(maxsplit=1)
    if not words:
        return False
    word = _FIRST_WORD_ENDS.split(words[0].lstrip("'").lstrip('"'), maxsplit=1)[0]
    return word.lower() == args.text("first_word").lower()


def _capital_word_frequency(text: Text, args: Arguments) -> bool:
    found = sum(token.isupper() for token in text.tokens)
    return args.compare("capital_relation", found, "capital_frequency")


def _english_capital(text: Text, args: Arguments) -> bool:
    return text.value.isupper() and text.language.guess(text.value) in ("", "en")


def _english_lowercase(text: Text, args: Arguments) -> bool:
    return text.value.islower() and text.language.guess(text.value) in ("", "en")


IFEVAL_WORDS: Mapping[str, Constraint] = {
    "keywords:existence": Constraint(
        _existence, "The response must contain the keywords {keywords}.", ("keywords",)
    ),
    "keywords:frequency": Constraint(
        _frequency,
        'The keyword "{keyword}" must occur {relation} {frequency} times in the response.',
        ("keyword", "frequency", "relation"),
    ),
    "keywords:forbidden_words": Constraint(
        _forbidden_words,
        "The response must not contain the words {forbidden_words}.",
        ("forbidden_words",),
    ),
    "keywords:letter_frequency": Constraint(
        _letter_frequency,
        'The letter "{letter}" must occur {let_relation} {let_frequency} times in the response.',
        ("letter", "let_frequency", "let_relation"),
    ),
    "language:response_language": Constraint(
        _response_language,
        'The whole response must be in the language with the code "{language}".',
        ("language",),
    ),
    "length_constraints:number_sentences": Constraint(
        _number_sentences,
        "The number of sentences must be {relation} {num_sentences}.",
        ("num_sentences", "relation"),
    ),
    "length_constraints:number_words": Constraint(
        _number_words,
        "The number of words must be {relation} {num_words}.",
        ("num_words", "relation"),
    ),
    "length_constraints:number_paragraphs": Constraint(
        _number_paragraphs,
        "The response must have exactly {num_paragraphs} paragraphs, separated by ***.",
        ("num_paragraphs",),
    ),
    "length_constraints:nth_paragraph_first_word": Constraint(
        _nth_paragraph_first_word,
        "The response must have exactly {num_paragraphs} paragraphs, separated by one blank line, "
        'and paragraph {nth_paragraph} must start with the word "{first_word}".',
        ("num_paragraphs", "nth_paragraph", "first_word"),
    ),
    "change_case:capital_word_frequency": Constraint(
        _capital_word_frequency,
        "The number of words in capitals must be {capital_relation} {capital_frequency}.",
        ("capital_frequency", "capital_relation"),
    ),
    "change_case:english_capital": Constraint(
        _english_capital, "The whole response must be in English and in capital letters."
    ),
    "change_case:english_lowercase": Constraint(
        _english_lowercase, "The whole response must be in English and in lower-case letters."
    ),
}
