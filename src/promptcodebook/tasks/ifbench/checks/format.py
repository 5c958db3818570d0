"""IFBench, group `format`, second half: markup, bullets, titles, templates."""

from __future__ import annotations

from collections.abc import Mapping

from promptcodebook.tasks.ifbench.arguments import Arguments
from promptcodebook.tasks.ifbench.checks.layout import LAYOUT
from promptcodebook.tasks.ifbench.constraint import Constraint
from promptcodebook.tasks.ifbench.text import Text

__all__ = ["FORMAT"]


def _list(text: Text, args: Arguments) -> bool:
    separator = args.text("sep")
    return bool(separator) and text.value.count(separator) >= 2


def _thesis(text: Text, args: Arguments) -> bool:
    start = _first_of(text.value, "<i>", "<em>")
    if start < 0:
        return False
    rest = text.value[start:]
    end = _first_of(rest, "</i>", "</em>")
    # Both offsets are those of the short tags, for the long ones too.
    return end >= 0 and bool(rest[3:end].strip()) and bool(rest[end + 4 :].strip())


def _first_of(value: str, preferred: str, other: str) -> int:
    at = value.find(preferred)
    return at if at >= 0 else value.find(other)


def _sub_bullets(text: Text, args: Arguments) -> bool:
    return all("-" in part for part in text.value.split("*")[1:])


def _no_bullets_bullets(text: Text, args: Arguments) -> bool:
    sentences, bullets, prose = 0, 0, True
    for line in text.value.split("\n"):
        if line.strip().startswith("*"):
            if bullets == 0 and sentences < 2:
                return False
            bullets += 1
            prose = False
        elif not prose:
            return False
        else:
            found = len(text.language.sentences(line.strip()))
            # A blank line, having no sentence, counts as the end of the prose.
            sentences, prose = sentences + found, found > 0
    return bullets >= 2


def _title_case(text: Text, args: Arguments) -> bool:
    return not any(_uncapitalised(token) for token in text.tokens if token[0].isalpha())


def _uncapitalised(token: str) -> bool:
    if len(token) == 1:
        return token.islower()
    rest = token[1:]
    return token[0].islower() and (rest.islower() or rest.isupper())


def _output_template(text: Text, args: Arguments) -> bool:
    parts = ("My Answer:", "My Conclusion:", "Future Outlook:")
    return all(part in text.value for part in parts)


def _no_whitespace(text: Text, args: Arguments) -> bool:
    return not any(character.isspace() for character in text.value)


FORMAT: Mapping[str, Constraint] = {
    **LAYOUT,
    "format:list": Constraint(
        _list, "The response must be a list whose items are separated by {sep}.", ("sep",)
    ),
    "format:thesis": Constraint(
        _thesis,
        "Each part of the response must start with a thesis in HTML italics, followed by text.",
    ),
    "format:sub-bullets": Constraint(
        _sub_bullets,
        "Each bullet point (*) of the response must have at least one sub-bullet (-).",
    ),
    "format:no_bullets_bullets": Constraint(
        _no_bullets_bullets,
        "The response must be at least two sentences followed by at least two bullet points (*) "
        "and nothing after them.",
    ),
    "format:title_case": Constraint(
        _title_case, "Each word of the response, short ones too, must be in title case."
    ),
    "format:output_template": Constraint(
        _output_template,
        'The response must contain the parts "My Answer:", "My Conclusion:" and "Future Outlook:".',
    ),
    "format:no_whitespace": Constraint(
        _no_whitespace, "The response must contain no white space at all."
    ),
}
