"""Every command that a page prints exists, with the options that it is given there."""

from __future__ import annotations

import re
import shlex

import pytest

from promptcodebook.cli import app as tree
from tests.docs.blocks import DOCS

PAGES = [
    DOCS.parent / "README.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if page.name != "cli.md"),
    *sorted((DOCS.parent / "examples").glob("*/README.md")),
]
_FENCE = re.compile(r"^```\w*[^\n]*\n(.*?)^```$", re.M | re.S)
_SPAN = re.compile(r"(?<!`)`(?:PCO_\w+=\S+ )?(pco [a-z][^`]*)`(?!`)")
_END = {"&&", "||", "|", ";", ">", "2>"}


def _options(command: object) -> set[str]:
    names = {"--help"}
    for parameter in getattr(command, "params", ()):
        names |= {*parameter.opts, *parameter.secondary_opts}
    return names


def fault_of(words: list[str]) -> str:
    """What is wrong with `pco WORDS`; '' = nothing."""
    if not words or not words[0].startswith(tuple("abcdefghijklmnopqrstuvwxyz")):
        return ""
    if words[0] not in tree.COMMANDS:
        return f"there is no command {words[0]}"
    command, path = tree.load_command(words[0]), words[:1]
    for word in words[1:]:
        if not hasattr(command, "list_commands"):
            break
        below = command.list_commands(None)
        if word.startswith("-") or word.upper() == word or "|" in word:
            return ""
        if word not in below:
            return f"pco {' '.join(path)} has no command {word}"
        command, path = command.get_command(None, word), [*path, word]
    known = _options(command)
    for word in words[len(path) :]:
        name = word.split("=")[0]
        if name in _END:
            break
        if name.startswith("--") and name not in known:
            return f"pco {' '.join(path)} has no option {name}"
    return ""


def lines_of(text: str) -> list[str]:
    """The commands of a page: typed in blocks, or named in its sentences."""
    blocks = "\n".join(_FENCE.findall(text)).replace("\\\n", " ")
    typed = re.findall(r"^(?:\$ |.*&& |\s*- run: )?(pco [^\n]*)", blocks, re.M)
    flowing = re.sub(r"\s+", " ", _FENCE.sub("", text))
    return [*typed, *_SPAN.findall(flowing)]


def test_the_commands_that_pages_print_exist() -> None:
    faults: list[str] = []
    lines = [(page.name, line) for page in PAGES for line in lines_of(page.read_text("utf-8"))]
    assert len(lines) > 200
    for page, line in lines:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            words = line.split()
        if fault := fault_of(words[1:]):
            faults.append(f"{page}: {line}: {fault}")
    assert faults == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("train --nonesuch 3", "no option --nonesuch"),
        ("trian", "no command trian"),
        ("codebook melt last", "no command melt"),
        ("codebook promote REF NAME@REF --why x", ""),
    ],
)
def test_a_command_that_does_not_exist_is_told(line: str, fault: str) -> None:
    assert fault in fault_of(line.split()) and bool(fault) == bool(fault_of(line.split()))
