"""IFBench, group `format`, first half: nesting, options, lines, emoji."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Mapping
from itertools import pairwise

from promptcodebook.tasks.ifbench.arguments import Arguments
from promptcodebook.tasks.ifbench.constraint import Constraint
from promptcodebook.tasks.ifbench.language import Language
from promptcodebook.tasks.ifbench.text import EDGES, MARKS, Text, unmarked

__all__ = ["LAYOUT"]

_OPENER = {")": "(", "]": "[", "}": "{"}
_LETTERED = re.compile(r"\W*[aA]\W*[bB]\W*[cC]\W*")


def _parentheses(text: Text, args: Arguments) -> bool:
    opened, deepest = list[str](), 0
    for mark in text.value:
        if mark in "([{":
            opened.append(mark)
            deepest = max(deepest, len(opened))
        elif mark in _OPENER:
            if opened and opened[-1] == _OPENER[mark]:
                opened.pop()
                if deepest >= 5:
                    return True
            else:
                opened, deepest = [], 0
    return False


def _quotes(text: Text, args: Arguments) -> bool:
    # Apostrophes count as quotation marks.
    opened, deepest = list[str](), 0
    for mark in text.value:
        if mark not in "\"'":
            continue
        if opened and opened[-1] == mark:
            opened.pop()
            if deepest - len(opened) >= 3:
                return True
        else:
            opened.append(mark)
            deepest = max(deepest, len(opened))
    return False


def _options(text: Text, args: Arguments) -> bool:
    listed = args.text("options")
    separator = next((s for s in ("/", "or") if s in listed), ",")
    options = [option.strip() for option in listed.split(separator)]
    if _LETTERED.match(listed):
        return text.value in options
    return text.lower.strip(EDGES) in [option.strip(EDGES).lower() for option in options]


def _newline(text: Text, args: Arguments) -> bool:
    bare = unmarked(text.value).strip()
    return sum(bool(line) for line in bare.split("\n")) == len(bare.split())


def _emoji(text: Text, args: Arguments) -> bool:
    cleaned = [unmarked(sentence).strip() for sentence in text.sentences]
    # Punkt puts an emoji after a full stop at the head of the next sentence.
    return all(
        _ends_in_emoji(sentence, text.language)
        or (bool(sentence and after) and text.language.is_emoji(after[0]))
        for sentence, after in pairwise([*cleaned, ""])
    )


def _ends_in_emoji(sentence: str, language: Language) -> bool:
    return any(language.is_emoji(character) for character in sentence[-2:])


def _line_indent(text: Text, args: Arguments) -> bool:
    depths = [len(line) - len(line.lstrip(" ")) for line in _kept(text.value.split("\n"))]
    return all(before < after for before, after in pairwise(depths))


def _kept(lines: list[str]) -> list[str]:
    """The lines after the public scorer's removal of blank ones.

    It removes from the list it walks over: each removal takes the first equal line that is left,
    and the line after the current one is passed over.
    """
    left = defaultdict[str, deque[int]](deque)
    removed, passed_over = set[int](), False
    for at, line in enumerate(lines):
        if line.strip():
            passed_over = False
            continue
        left[line].append(at)
        if not passed_over:
            removed.add(left[line].popleft())
        passed_over = not passed_over
    return [line for at, line in enumerate(lines) if at not in removed]


def _quote_unquote(text: Text, args: Arguments) -> bool:
    joined = "".join(text.value.replace("'\"'", "").split())
    if '""' in joined:
        return False
    outer = MARKS.replace('"', "") + "0123456789"
    return not joined.strip(outer).endswith('"')


LAYOUT: Mapping[str, Constraint] = {
    "format:parentheses": Constraint(
        _parentheses, "The response must nest parentheses, brackets or braces 5 deep or deeper."
    ),
    "format:quotes": Constraint(
        _quotes,
        "The response must hold a quotation in a quotation in a quotation, alternating double "
        "and single quotation marks.",
    ),
    "format:options": Constraint(
        _options, "The response must be exactly one of the options {options}.", ("options",)
    ),
    "format:newline": Constraint(_newline, "Each word of the response must stand on its own line."),
    "format:emoji": Constraint(_emoji, "Each sentence of the response must end with an emoji."),
    "format:line_indent": Constraint(
        _line_indent, "Each line must be indented by more spaces than the line before it."
    ),
    "format:quote_unquote": Constraint(
        _quote_unquote,
        "Each quoted phrase of the response must be followed by an explanation without quotation "
        "marks.",
    ),
}
