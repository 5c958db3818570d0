"""The 25 constraints of IFEval, a table of pure functions: keywords, language, lengths, letter
case; content marks, formats, combinations, beginnings and ends, punctuation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from promptcodebook.tasks.ifbench.instruction import Arguments, Check, Text

_RULE = re.compile(r"\s?\*\*\*\s?")
_FIRST_WORD_ENDS = re.compile(r"[.,?!'\"]")


def _frequency(text: Text, args: Arguments) -> bool:
    found = text.language.patterns.counts([args.text("keyword").strip()], text.value)[0]
    return args.compare("relation", found, "frequency")


def _forbidden_words(text: Text, args: Arguments) -> bool:
    words = args.texts("forbidden_words")
    found = text.language.patterns.counts(words, text.value, prefix=r"\b", suffix=r"\b")
    return not any(found)


def _letter_frequency(text: Text, args: Arguments) -> bool:
    # The public scorer replaces what is not a letter by a random one; here it is counted as given.
    found = text.lower.count(args.text("letter").lower())
    return args.compare("let_relation", found, "let_frequency")


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


_POSTSCRIPTS = {"P.P.S": re.compile(r"p\.\s?p\.\s?s"), "P.S.": re.compile(r"p\.\s?s\.")}
# Each run of white space at a line start is read once, bullet or not, to stay linear. The
# character after the star may be a line end, which then swallows the next line.
_STARRED = re.compile(r"(?:\A|\n)\s*+(\*[^*].*)?")
_DASHED = re.compile(r"(?:\A|\n)\s*+(-.*)?")
_SINGLE = re.compile(r"\*[^\n*]*\*")
_DOUBLE = re.compile(r"\*\*[^\n*]*\*\*")
_FENCES = ("```json", "```Json", "```JSON", "```")
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def _count_brackets(value: str) -> int:
    """Non-overlapping [...] within lines; by hand, as the expression is quadratic."""
    count = 0
    for line in value.split("\n"):
        end = -1
        while (start := line.find("[", end + 1)) >= 0 and (end := line.find("]", start)) >= 0:
            count += 1
    return count


def _postscript(text: Text, args: Arguments) -> bool:
    marker = args.text("postscript_marker").strip()
    if marker in _POSTSCRIPTS:
        return _POSTSCRIPTS[marker].search(text.lower) is not None
    found = text.language.patterns.counts([marker.lower()], text.lower, ignore_case=False)
    return found[0] > 0


def _number_bullet_lists(text: Text, args: Arguments) -> bool:
    found = (*_STARRED.findall(text.value), *_DASHED.findall(text.value))
    return sum(bool(line) for line in found) == args.integer("num_bullets")


def _number_highlighted_sections(text: Text, args: Arguments) -> bool:
    single = sum(bool(found.strip("*").strip()) for found in _SINGLE.findall(text.value))
    double = sum(bool(found[2:-2].strip()) for found in _DOUBLE.findall(text.value))
    return single + double >= args.integer("num_highlights")


def _multiple_sections(text: Text, args: Arguments) -> bool:
    splitter = args.text("section_spliter").strip()
    counts = text.language.patterns.counts
    [found] = counts([splitter], text.value, suffix=r"\s?\d+", ignore_case=False)
    return found >= args.integer("num_sections")


def _json_format(text: Text, args: Arguments) -> bool:
    value = text.value.strip()
    for fence in _FENCES:
        value = value.removeprefix(fence)
    try:
        json.loads(value.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _holds_title(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    return 0 <= start <= end - 3 and bool(line[start : end + 2].lstrip("<").rstrip(">").strip())


def _two_responses(text: Text, args: Arguments) -> bool:
    pieces = [piece.strip() for piece in text.value.split("******")]
    full = [piece for piece in pieces if piece]
    return all(pieces[1:-1]) and len(full) == 2 and full[0] != full[1]


def _quotation(text: Text, args: Arguments) -> bool:
    value = text.value.strip()
    return len(value) > 1 and value[0] == value[-1] == '"'


IFEVAL: Mapping[str, Check] = {
    "keywords:existence": lambda text, args: all(
        text.language.patterns.counts(args.texts("keywords"), text.value)
    ),
    "keywords:frequency": _frequency,
    "keywords:forbidden_words": _forbidden_words,
    "keywords:letter_frequency": _letter_frequency,
    "language:response_language": lambda text, args: (
        text.language.guess(text.value) in ("", args.text("language"))
    ),
    "length_constraints:number_sentences": lambda text, args: args.compare(
        "relation", len(text.sentences), "num_sentences"
    ),
    "length_constraints:number_words": lambda text, args: args.compare(
        "relation", len(text.words), "num_words"
    ),
    "length_constraints:number_paragraphs": _number_paragraphs,
    "length_constraints:nth_paragraph_first_word": _nth_paragraph_first_word,
    "change_case:capital_word_frequency": lambda text, args: args.compare(
        "capital_relation", sum(token.isupper() for token in text.tokens), "capital_frequency"
    ),
    "change_case:english_capital": lambda text, args: (
        text.value.isupper() and text.language.guess(text.value) in ("", "en")
    ),
    "change_case:english_lowercase": lambda text, args: (
        text.value.islower() and text.language.guess(text.value) in ("", "en")
    ),
    "detectable_content:number_placeholders": lambda text, args: (
        _count_brackets(text.value) >= args.integer("num_placeholders")
    ),
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _number_bullet_lists,
    "detectable_format:constrained_response": lambda text, args: any(
        answer in text.value for answer in _ANSWERS
    ),
    "detectable_format:number_highlighted_sections": _number_highlighted_sections,
    "detectable_format:multiple_sections": _multiple_sections,
    "detectable_format:json_format": _json_format,
    "detectable_format:title": lambda text, args: any(map(_holds_title, text.value.split("\n"))),
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": lambda text, args: text.lower.strip().startswith(
        args.text("prompt_to_repeat").strip().lower()
    ),
    "startend:end_checker": lambda text, args: (
        text.value.strip().strip('"').lower().endswith(args.text("end_phrase").strip().lower())
    ),
    "startend:quotation": _quotation,
    "punctuation:no_comma": lambda text, args: "," not in text.value,
}
"""The 25 constraints of IFEval by id."""
