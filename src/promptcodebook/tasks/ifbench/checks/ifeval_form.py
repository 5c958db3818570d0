"""IFEval: content marks, formats, combinations, beginnings and ends, punctuation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from promptcodebook.tasks.ifbench.arguments import Arguments
from promptcodebook.tasks.ifbench.constraint import Constraint
from promptcodebook.tasks.ifbench.text import Text

__all__ = ["IFEVAL_FORM"]

_POSTSCRIPTS = {
    "P.P.S": re.compile(r"p\.\s?p\.\s?s"),
    "P.S.": re.compile(r"p\.\s?s\."),
}

# Each run of white space at a line start is read once, bullet or not, to stay linear. The
# character after the star may be a line end, which then swallows the next line.
_STARRED = re.compile(r"(?:\A|\n)\s*+(\*[^*].*)?")
_DASHED = re.compile(r"(?:\A|\n)\s*+(-.*)?")

_SINGLE = re.compile(r"\*[^\n*]*\*")
_DOUBLE = re.compile(r"\*\*[^\n*]*\*\*")
_FENCES = ("```json", "```Json", "```JSON", "```")
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def _number_placeholders(text: Text, args: Arguments) -> bool:
    return _bracketed(text.value) >= args.integer("num_placeholders")


def _bracketed(value: str) -> int:
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


def _constrained_response(text: Text, args: Arguments) -> bool:
    return any(answer in text.value for answer in _ANSWERS)


def _number_highlighted_sections(text: Text, args: Arguments) -> bool:
    single = sum(bool(found.strip("*").strip()) for found in _SINGLE.findall(text.value))
    double = sum(bool(found[2:-2].strip()) for found in _DOUBLE.findall(text.value))
    return single + double >= args.integer("num_highlights")


def _multiple_sections(text: Text, args: Arguments) -> bool:
    splitter = args.text("section_spliter").strip()
    found = text.language.patterns.counts(
        [splitter], text.value, suffix=r"\s?\d+", ignore_case=False
    )
    return found[0] >= args.integer("num_sections")


def _json_format(text: Text, args: Arguments) -> bool:
    value = text.value.strip()
    for fence in _FENCES:
        value = value.removeprefix(fence)
    try:
        json.loads(value.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: Text, args: Arguments) -> bool:
    return any(_titled(line) for line in text.value.split("\n"))


def _titled(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    return 0 <= start <= end - 3 and bool(line[start : end + 2].lstrip("<").rstrip(">").strip())


def _two_responses(text: Text, args: Arguments) -> bool:
    pieces = [piece.strip() for piece in text.value.split("******")]
    full = [piece for piece in pieces if piece]
    return all(pieces[1:-1]) and len(full) == 2 and full[0] != full[1]


def _repeat_prompt(text: Text, args: Arguments) -> bool:
    return text.lower.strip().startswith(args.text("prompt_to_repeat").strip().lower())


def _end_checker(text: Text, args: Arguments) -> bool:
    return text.value.strip().strip('"').lower().endswith(args.text("end_phrase").strip().lower())


def _quotation(text: Text, args: Arguments) -> bool:
    value = text.value.strip()
    return len(value) > 1 and value[0] == value[-1] == '"'


def _no_comma(text: Text, args: Arguments) -> bool:
    return "," not in text.value


IFEVAL_FORM: Mapping[str, Constraint] = {
    "detectable_content:number_placeholders": Constraint(
        _number_placeholders,
        "The response must contain at least {num_placeholders} placeholders in square brackets.",
        ("num_placeholders",),
    ),
    "detectable_content:postscript": Constraint(
        _postscript,
        "The response must end with a postscript that starts with {postscript_marker}",
        ("postscript_marker",),
    ),
    "detectable_format:number_bullet_lists": Constraint(
        _number_bullet_lists,
        "The response must have exactly {num_bullets} bullet points, written with * or -.",
        ("num_bullets",),
    ),
    "detectable_format:constrained_response": Constraint(
        _constrained_response,
        'The response must contain one of "My answer is yes.", "My answer is no." and "My answer '
        'is maybe.".',
    ),
    "detectable_format:number_highlighted_sections": Constraint(
        _number_highlighted_sections,
        "At least {num_highlights} parts of the response must be highlighted, as in *part*.",
        ("num_highlights",),
    ),
    "detectable_format:multiple_sections": Constraint(
        _multiple_sections,
        "The response must have {num_sections} sections, each headed by {section_spliter} and its "
        "number.",
        ("section_spliter", "num_sections"),
    ),
    "detectable_format:json_format": Constraint(
        _json_format, "The whole response must be valid JSON."
    ),
    "detectable_format:title": Constraint(
        _title, "The response must contain a title in double angle brackets, as in <<title>>."
    ),
    "combination:two_responses": Constraint(
        _two_responses,
        "The response must consist of two different responses, separated by ******.",
    ),
    "combination:repeat_prompt": Constraint(
        _repeat_prompt,
        "The response must first repeat the request word for word and then answer it.",
        ("prompt_to_repeat",),
    ),
    "startend:end_checker": Constraint(
        _end_checker,
        'The response must end with the exact phrase "{end_phrase}" and nothing after it.',
        ("end_phrase",),
    ),
    "startend:quotation": Constraint(
        _quotation, "The whole response must stand in double quotation marks."
    ),
    "punctuation:no_comma": Constraint(_no_comma, "The response must contain no comma."),
}
