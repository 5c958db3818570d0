"""IFBench, group `format`: nesting, options, lines, emoji; markup, bullets, titles, templates."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Mapping
from itertools import pairwise

from promptcodebook.tasks.ifbench.instruction import (
    EDGES,
    MARKS,
    Arguments,
    Check,
    Text,
    without_marks,
)

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
    bare = without_marks(text.value).strip()
    return sum(bool(line) for line in bare.split("\n")) == len(bare.split())


def _emoji(text: Text, args: Arguments) -> bool:
    cleaned = [without_marks(sentence).strip() for sentence in text.sentences]
    # Punkt puts an emoji after a full stop at the head of the next sentence.
    return all(
        any(text.language.is_emoji(character) for character in sentence[-2:])
        or (bool(sentence and after) and text.language.is_emoji(after[0]))
        for sentence, after in pairwise([*cleaned, ""])
    )


def _line_indent(text: Text, args: Arguments) -> bool:
    depths = [len(line) - len(line.lstrip(" ")) for line in _nonblank_lines(text.value.split("\n"))]
    return all(before < after for before, after in pairwise(depths))


def _nonblank_lines(lines: list[str]) -> list[str]:
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
    return not any(_lacks_capital(token) for token in text.tokens if token[0].isalpha())


def _lacks_capital(token: str) -> bool:
    if len(token) == 1:
        return token.islower()
    rest = token[1:]
    return token[0].islower() and (rest.islower() or rest.isupper())


def _output_template(text: Text, args: Arguments) -> bool:
    parts = ("My Answer:", "My Conclusion:", "Future Outlook:")
    return all(part in text.value for part in parts)


def _no_whitespace(text: Text, args: Arguments) -> bool:
    return not any(character.isspace() for character in text.value)


FORMAT: Mapping[str, Check] = {
    "format:parentheses": _parentheses,
    "format:quotes": _quotes,
    "format:options": _options,
    "format:newline": _newline,
    "format:emoji": _emoji,
    "format:line_indent": _line_indent,
    "format:quote_unquote": _quote_unquote,
    "format:list": _list,
    "format:thesis": _thesis,
    "format:sub-bullets": _sub_bullets,
    "format:no_bullets_bullets": _no_bullets_bullets,
    "format:title_case": _title_case,
    "format:output_template": _output_template,
    "format:no_whitespace": _no_whitespace,
}
