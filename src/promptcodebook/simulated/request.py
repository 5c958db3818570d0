"""How the simulated model reads a request, in process and over HTTP alike: messages and sampling,
the form of reply requested, numbered lists, sections, and the demand.

It reads headings of many styles by their meaning, so that it understands templates that we did not
write. Data (inputs, replies, lists, fenced text) is taken out of the `frame`; only there the
recogniser looks for the demand.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

from promptcodebook.calls import Message, Request
from promptcodebook.simulated.orders import meaning, patterns, says

_SEEDS = 2**31  # seeds over HTTP are 31-bit integers
_KEY = re.compile(r"[\"'`]([A-Za-z][A-Za-z_ -]{1,40})[\"'`]\s*:")
_NAMED = re.compile(r"[\"`]([A-Za-z][A-Za-z_-]{1,40})[\"`]")
_BULLETED = re.compile(r"^\s*[-*]\s*([a-z]+_[a-z_]+)\s*:", re.MULTILINE)
_OPENED = re.compile(r"[\"'`]([A-Za-z_ ]*)[\"'`]\s*:\s*([\"{\[])")
_INNER = re.compile(r"[\"'`]\s*:\s*\{([^{}]*)\}")
_FREE_TEXT = ("input", "prompt", "response", "text")
"""Sections that may themselves hold paragraphs with orders in them."""
_LISTED = ("active", "codebook")
_FENCE = re.compile(r"```[a-z]*\n?(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat completion request: no role, no tag, nothing an endpoint would not see."""

    messages: tuple[Message, ...]
    temperature: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None
    schema: Mapping[str, object] | None = None
    """The JSON schema asked for, if any."""
    json_mode: bool = False
    digest: bytes = field(default=b"", compare=False)
    """Of the messages as they came."""

    def __post_init__(self) -> None:
        if self.digest:
            return
        seen = hashlib.sha256()
        for m in self.messages:
            seen.update(f"{m.role}\x1f{len(m.content)}\x1f{m.content}".encode(errors="replace"))
        object.__setattr__(self, "digest", seen.digest()[:16])

    @property
    def sample(self) -> int | None:
        """The sample seed; None at temperature 0, where every sample is the same."""
        return None if self.temperature <= 0.0 else (self.seed or 0) % _SEEDS

    @property
    def system(self) -> str:
        return "\n\n".join(m.content for m in self.messages if m.role == "system")

    @property
    def user(self) -> str:
        return "\n\n".join(m.content for m in self.messages if m.role == "user")


def from_request(request: Request) -> ChatRequest:
    """What an endpoint would receive of a Request: its role and model stay behind."""
    sampling = request.sampling
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    return ChatRequest(
        messages=request.messages,
        temperature=0.0 if request.greedy else temperature,
        max_tokens=sampling.max_tokens,
        seed=request.sample % _SEEDS,
        schema=None if request.schema is None else request.schema.body,
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """Asked keys in order, by name; `json` says whether a JSON object is wanted at all. `objects`
    and `lists` are the keys whose value is shown, or by the schema must be, such a thing."""

    json: bool
    keys: tuple[str, ...] = ()
    objects: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()

    def meant(self, *meanings: str) -> str:
        """The first key of one of these meanings; '' if there is none."""
        return next((k for k in self.keys if _key_meaning(k) in meanings), "")

    def has(self, *meanings: str) -> bool:
        """Whether a key of each of these meanings is asked for."""
        return all(map(self.meant, meanings))

    def fill(self, values: Mapping[str, object], plain: str = "") -> str:
        """A reply of this shape; `values` by meaning. `plain` when no JSON is asked for."""
        if not self.json:
            return plain
        said = {key: values[_key_meaning(key)] for key in self.keys if _key_meaning(key) in values}
        return json.dumps(said or dict(values), ensure_ascii=False)


def _key_meaning(key: str) -> str:
    return meaning("keys", key.lower().strip().replace(" ", "_").replace("-", "_"))


def shape_of(request: ChatRequest, frame: str) -> Shape:
    """The shape asked for by the request's schema, else by its words."""
    if request.schema is None:
        return _shape_of_words(frame, request.json_mode)
    properties = cast("Mapping[str, Mapping[str, object]]", request.schema.get("properties") or {})
    kinds = {key: str(node.get("type", "")) for key, node in properties.items()}
    return Shape(True, tuple(properties), _of_kind(kinds, "object"), _of_kind(kinds, "array"))


@lru_cache(maxsize=512)
def _shape_of_words(frame: str, json_mode: bool) -> Shape:
    if not json_mode and not says("json", frame):
        return Shape(False)
    nested = {key for inner in _INNER.findall(frame) for key in _KEY.findall(inner)}
    names: Sequence[str] = [k for k in _KEY.findall(frame) if k not in nested]
    names = names or _NAMED.findall(frame) or _BULLETED.findall(frame)
    opened = {m[1].strip(): m[2] for m in _OPENED.finditer(frame)}
    keys = tuple(dict.fromkeys(k.strip() for k in names))
    return Shape(True, keys, _of_kind(opened, "{"), _of_kind(opened, "["))


def _of_kind(kinds: Mapping[str, str], wanted: str) -> frozenset[str]:
    return frozenset(key for key, kind in kinds.items() if kind == wanted)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a numbered list, with the success rate shown beside it (None = none)."""

    index: int
    text: str
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A numbered list, and what the line above it means."""

    name: str
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
        named = [b.entries for b in self.blocks if b.name == "codebook"]
        named = named or [b.entries for b in self.blocks if b.name != "ask"]
        return max(named, key=len, default=())

    def active(self) -> tuple[Entry, ...]:
        """The instincts that were chosen, where the request shows them."""
        return next((b.entries for b in self.blocks if b.name == "active"), ())


def read(system: str, user: str) -> Reading:
    """A request read; `user` without the inputs that the model knows."""
    rest, system_blocks = _read_system(system)
    text, blocks = _lists(user)
    sections, frame = _sections(text)
    for block in blocks:
        if block.name in _LISTED:
            # What is left below a list that was taken out is no part of it.
            frame += f"\n{sections.get(block.name, '')}"
            sections[block.name] = "\n".join(e.text for e in block.entries)
    return Reading(rest.lower(), frame.lower(), sections, (*system_blocks, *blocks))


def _meaning(label: str) -> str:
    label = " ".join(label.lower().replace("_", " ").strip(" :*#").split())
    return meaning("meanings", label) if len(label) <= 120 else ""


def _lists(text: str) -> tuple[str, list[Block]]:
    """The text without fences and the lists of two lines or more that a caption calls for; lists.

    A list's numbers rise."""
    kept: list[str] = []
    blocks: list[Block] = []
    entries: dict[Entry, str] = {}
    for line in [*_FENCE.sub(" ", text).split("\n"), ""]:
        match = says("item", line)
        entry = _entry(match) if match is not None else None
        if entries and (entry is None or entry.index <= max(e.index for e in entries)):
            name = _meaning(next((k for k in reversed(kept) if k.strip()), ""))
            if len(entries) > 1 or name in _LISTED:
                blocks.append(Block(name, tuple(entries)))
            if len(entries) < 2 or name not in _LISTED:
                kept.extend(entries.values())
            entries = {}
        if entry is None:
            kept.append(line)
        else:
            entries[entry] = line
    return "\n".join(kept), blocks


_read_system = lru_cache(maxsize=512)(_lists)


def _entry(match: re.Match[str]) -> Entry:
    index = int(match[1] or match[2] or match[3])
    text = match[4].strip()
    tail = says("rate", text) if text[-1] in ")]}%" else None
    if tail is None or tail.start() == 0:
        return Entry(index, text)
    said, text = tail[1].replace(" ", ""), text[: tail.start()].rstrip()
    percent = 100 if said.endswith("%") else 1
    return Entry(index, text, float(said.rstrip("%")) / percent if said else None)


def _sections(text: str) -> tuple[dict[str, str], str]:
    """Sections by meaning, under the first style of headings that opens one; the text outside."""
    lines = text.split("\n")
    matches = ((s, s.match(line)) for line in lines for s in patterns("headings").values())
    style = next((s for s, match in matches if match is not None and _meaning(match[1])), None)
    if style is None:
        return {}, text
    found: dict[str, list[str]] = {}
    frame: list[str] = []
    current, last = frame, ""
    for line in lines:
        match = style.match(line)
        name = _meaning(match[1]) if match is not None else ""
        if match is None or not name:
            current.append(line)
            continue
        frame.append(match[1])
        last = name
        current = frame if name == "ask" else found.setdefault(name, [])
        current += filter(None, [match[2]])
    sections = {name: "\n".join(held).strip() for name, held in found.items()}
    for name, content in sections.items():
        # What is asked after the data, without a heading of its own, belongs to the frame.
        cut = says("ask", content) if name == last or name not in _FREE_TEXT else None
        if cut is not None:
            frame.append(content[cut.start() :])
            sections[name] = content[: cut.start()].strip()
        elif name == last:
            # So does the last paragraph, beside others or where the data were taken out already.
            *held, asked = re.split(r"\n\s*\n", content)
            if held or not "".join(found[name][:1]).strip():
                frame.append(asked)
                if name != "input":  # an unknown one may well end in a paragraph of its own
                    sections[name] = "\n\n".join(held)
    return sections, "\n".join(frame)


def fenced(text: str) -> list[str]:
    """The text between triple backquotes."""
    return [m.strip() for m in _FENCE.findall(text)]
