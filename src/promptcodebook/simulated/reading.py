"""How the simulated model reads a request: numbered lists, sections, and what is asked around them.

Generous on purpose: headings in many styles and wordings are read by meaning, so that templates
that nobody here wrote are understood alike. Data (inputs, replies, lists, fenced text) is taken
out of the `frame`, in which alone the recogniser looks for what is asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from promptcodebook.simulated.words import pattern, patterns

__all__ = ["Block", "Entry", "Reading", "asked_number", "fenced", "read"]

_FREE_TEXT = ("input", "prompt", "response", "text")
"""Sections that may themselves hold paragraphs with orders in them."""
_BLANK = re.compile(r"\n\s*\n")
_FENCE = re.compile(r"```[a-z]*\n?(.*?)```", re.DOTALL)
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
_NUMBERS = {word: number for number, word in enumerate(_NUMBER_WORDS.split())}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a numbered list, with the success rate shown beside it (None = none)."""

    index: int
    text: str
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A numbered list and the line that stands above it."""

    caption: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """A request as understood: what is asked (lower case), sections by meaning, and lists."""

    system_frame: str
    user_frame: str
    sections: Mapping[str, str]
    blocks: tuple[Block, ...]

    @property
    def frame(self) -> str:
        return f"{self.system_frame}\n{self.user_frame}"

    def codebook(self) -> tuple[Entry, ...]:
        """The numbered list to choose from: the longest one of the right name, else the longest."""
        named = [b for b in self.blocks if _meaning(b.caption) == "codebook"]
        blocks = named or [b for b in self.blocks if _meaning(b.caption) != "ask"]
        return max(blocks, key=lambda b: len(b.entries)).entries if blocks else ()

    def active(self) -> tuple[Entry, ...]:
        """The instincts that were chosen, where the request shows them."""
        for block in self.blocks:
            if _meaning(block.caption) == "active":
                return block.entries
        return ()


@lru_cache(maxsize=512)
def _meaning(label: str) -> str | None:
    label = " ".join(label.lower().replace("_", " ").strip(" :*#").split())
    if not label or len(label) > 120:
        return None
    for name, meant in patterns("meanings").items():
        if meant.search(label):
            return name
    return None


def read(system: str, user: str) -> Reading:
    """A request read; `user` without the inputs that the model knows."""
    system_frame, system_blocks = _read_system(system)
    rest, blocks = _lists(_FENCE.sub(" ", user))
    sections, frame = _sections(rest)
    for block in blocks:
        name = _meaning(block.caption)
        if name in ("active", "codebook"):
            # What is left below a list that was taken out is no part of it.
            frame += f"\n{sections.get(name, '')}"
            sections[name] = "\n".join(e.text for e in block.entries)
    return Reading(system_frame, frame.lower(), sections, (*system_blocks, *blocks))


@lru_cache(maxsize=512)
def _read_system(text: str) -> tuple[str, tuple[Block, ...]]:
    rest, blocks = _lists(_FENCE.sub(" ", text))
    return rest.lower(), tuple(blocks)


def _lists(text: str) -> tuple[str, list[Block]]:
    """The text without its numbered lists of two lines or more that a caption calls for; lists."""
    kept: list[str] = []
    blocks: list[Block] = []
    entries: list[Entry] = []
    lines: list[str] = []
    for line in [*text.split("\n"), ""]:
        match = pattern("item").match(line)
        if match is not None and (not entries or _follows(entries[-1], match)):
            entries.append(_entry(match))
            lines.append(line)
            continue
        _close(entries, lines, kept, blocks)
        entries, lines = ([_entry(match)], [line]) if match is not None else ([], [])
        if match is None:
            kept.append(line)
    return "\n".join(kept), blocks


def _close(entries: list[Entry], lines: list[str], kept: list[str], blocks: list[Block]) -> None:
    if not entries:
        return
    caption = next((k for k in reversed(kept) if k.strip()), "")
    if len(entries) > 1 or _meaning(caption) in ("active", "codebook"):
        blocks.append(Block(caption, tuple(entries)))
    if len(entries) < 2 or _meaning(caption) not in ("active", "codebook"):
        kept.extend(lines)


def _follows(before: Entry, match: re.Match[str]) -> bool:
    return int(match[1] or match[2] or match[3]) > before.index


def _entry(match: re.Match[str]) -> Entry:
    index = int(match[1] or match[2] or match[3])
    text = match[4].strip()
    rate = None
    tail = pattern("rate").search(text) if text[-1] in ")]}%" else None
    if tail is not None and tail.start() > 0:
        said = tail[1].replace(" ", "")
        text = text[: tail.start()].rstrip()
        if said:
            rate = float(said.rstrip("%")) / (100 if said.endswith("%") else 1)
    return Entry(index, text, rate)


def _sections(text: str) -> tuple[dict[str, str], str]:
    """Sections by meaning, and the text outside them."""
    lines = text.split("\n")
    style = _style(lines)
    if style is None:
        return {}, text
    found: dict[str, list[str]] = {}
    frame: list[str] = []
    current: list[str] = frame
    name = ""
    for line in lines:
        match = patterns("headings")[style].match(line)
        meaning = _meaning(match[1]) if match is not None else None
        if match is None or meaning is None:
            current.append(line)
            continue
        frame.append(match[1])
        name = meaning
        current = frame if meaning == "ask" else found.setdefault(meaning, [])
        if match[2]:
            current.append(match[2])
    sections = {key: "\n".join(value).strip() for key, value in found.items()}
    for key, content in sections.items():
        # What is asked after the data, without a heading of its own, belongs to the frame.
        cut = pattern("ask").search(content) if key == name or key not in _FREE_TEXT else None
        if cut is not None:
            frame.append(content[cut.start() :])
            sections[key] = content[: cut.start()].strip()
        elif key == name:
            sections[key] = _without_tail(content, not "".join(found[key][:1]).strip(), frame)
            # An input that nobody knows may well end in a paragraph of its own.
            sections[key] = content if key == "input" else sections[key]
    return sections, "\n".join(frame)


def _without_tail(content: str, emptied: bool, frame: list[str]) -> str:
    """The last section without its last paragraph, which goes to the frame: there, what is asked
    may follow the data. `emptied` = the section's own data was taken out already."""
    paragraphs = _BLANK.split(content)
    if len(paragraphs) == 1 and not emptied:
        return content
    frame.append(paragraphs[-1])
    return "\n\n".join(paragraphs[:-1])


def _style(lines: list[str]) -> str | None:
    """The first heading style that opens a section."""
    for line in lines:
        for style, heading in patterns("headings").items():
            match = heading.match(line)
            if match is not None and _meaning(match[1]) is not None:
                return style
    return None


def fenced(text: str) -> list[str]:
    """What stands between triple backquotes."""
    return [m.strip() for m in _FENCE.findall(text)]


def asked_number(text: str, pattern: str) -> int | None:
    """The first number (digits or a word up to twelve) that stands where the pattern has `#`."""
    number = r"(\d{1,4}|" + "|".join(_NUMBERS) + r")"
    match = re.search(pattern.replace("#", number), text, re.IGNORECASE)
    if match is None:
        return None
    said = match[1].lower()
    return _NUMBERS[said] if said in _NUMBERS else int(said)
