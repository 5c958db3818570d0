"""One module of a compound executor as a request: which stage it is, its fields, its outputs.

Told from what the request asks: the parts its last paragraph wants, or the verbs of its order, and
the labelled texts that it hands over. Names of stages are not seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from promptcodebook.simulated.chat import ChatRequest
from promptcodebook.simulated.words import pattern, patterns

__all__ = ["StageKind", "Staged", "read_stage"]

StageKind = Literal["search", "notes", "answer", "verify", "redact", "respond", "revise", "write"]

_TAGGED = re.compile(r"<([A-Za-z][\w -]{1,40})>\n?(.*?)\n?</\1>", re.DOTALL)
_HASHED = re.compile(r"^\[\[ ## ([\w -]{2,40}) ## \]\]\s*$", re.MULTILINE)
_HELD = re.compile(r"passage|context|summar|note|document|evidence|snippet")
_DRAFT = re.compile(r"^(response|draft|reply|answer)")
_OUTSIDE = re.compile(r"(llm|model|related|outside|external).*(response|reply|answer)")


_THOUGHTS = "Looking at what is given and at what is asked, this follows."


@dataclass(frozen=True, slots=True)
class Staged:
    """A stage as read: its kind, the fields by name, and the outputs asked for, in order."""

    kind: StageKind
    fields: Mapping[str, str]
    outputs: tuple[str, ...]
    json: bool = False
    weighed: str = ""
    """The part of the system message whose words count: all but the stage's own order and form,
    which are the same under every prompt."""

    @property
    def evidence(self) -> str:
        """What the request shows beside the question: passages, context, summaries."""
        return "\n\n".join(v for k, v in self.fields.items() if _HELD.search(k))

    @property
    def hop(self) -> int:
        """Which retrieval it is about: one more than the summaries shown."""
        return 1 + sum(1 for k in self.fields if re.search(r"summar|context|note", k))

    @property
    def helped(self) -> str:
        """What an outside model said, where that is shown."""
        return next((v for k, v in self.fields.items() if _OUTSIDE.search(k)), "")

    def reply(self, said: str) -> str:
        """The reply in the form asked for."""
        if not self.outputs:
            return said
        values = {name: _THOUGHTS for name in self.outputs[:-1]} | {self.outputs[-1]: said}
        if self.json:
            return json.dumps(values, ensure_ascii=False)
        return "\n\n".join(f"{name}: {value}" for name, value in values.items())


def read_stage(request: ChatRequest, known: str) -> Staged | None:
    """The stage that a request is, or None. `known` is the task input found in it."""
    fields = _fields(request.user)
    if not known or not fields:
        return None
    # The order stands last: what comes before it may be anybody's prompt.
    asked = f"{request.system}\n\n{_tail(request.user, fields)}"
    outputs, as_json = _outputs(asked, request.schema)
    kind = _kind(outputs, _order(asked), fields)
    if kind is None:
        return None
    return Staged(kind, fields, outputs, as_json, _weighed(request, outputs))


def _weighed(request: ChatRequest, outputs: Sequence[str]) -> str:
    parts = [p for p in re.split(r"\n\s*\n", request.system) if p.strip()]
    if outputs and parts and pattern("part").search(parts[-1].split("\n")[-1].strip()):
        parts = parts[:-1]
    return "\n\n".join(parts[:-1] if len(parts) > 1 else parts)


def _tail(user: str, fields: Mapping[str, str]) -> str:
    last = max((user.rfind(text) + len(text) for text in fields.values() if text), default=0)
    return re.sub(r"</[\w -]+>", " ", user[last:])


def _fields(user: str) -> dict[str, str]:
    found = {_name(m[1]): m[2].strip() for m in _TAGGED.finditer(user)}
    if found:
        return found
    marks = list(_HASHED.finditer(user)) or list(pattern("labelled").finditer(user))
    for place, mark in enumerate(marks):
        end = marks[place + 1].start() if place + 1 < len(marks) else len(user)
        found[_name(mark[1])] = user[mark.end() : end].strip()
    return found


def _name(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")


def _outputs(asked: str, schema: Mapping[str, object] | None) -> tuple[tuple[str, ...], bool]:
    """The parts wanted, in order, and whether as JSON."""
    properties = schema.get("properties") if schema is not None else None
    if isinstance(properties, Mapping):
        return tuple(str(k) for k in properties), True  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    lines = asked.split("\n")
    found = [
        m[1].strip() for m in map(pattern("part").match, (line.strip() for line in lines)) if m
    ]
    as_json = bool(found) and re.search(r"\bjson\b", asked[-600:], re.IGNORECASE) is not None
    return tuple(dict.fromkeys(found)), as_json


def _order(asked: str) -> str:
    """The paragraph that orders: the last one that is not the form of the reply."""
    parts = [p for p in re.split(r"\n\s*\n", asked) if p.strip()]
    plain = [
        p for p in parts if not any(pattern("part").match(line.strip()) for line in p.split("\n"))
    ]
    return (plain[-1] if plain else asked).lower()


def _kind(outputs: Sequence[str], order: str, fields: Mapping[str, str]) -> StageKind | None:
    kind = _named("outputs", outputs[-1].lower()) if outputs else None
    if kind is None:
        kind = _named("stages", order)
    helped = any(_OUTSIDE.search(k) for k in fields)
    if helped and (kind in ("answer", "write") or not outputs):
        return "respond"
    if kind == "write" and any(_DRAFT.search(k) for k in fields):
        return "revise"
    if kind == "answer" and re.search(r"\bnot[_ ]supported\b", order):
        return "verify"
    return kind


def _named(table: str, text: str) -> StageKind | None:
    found = (kind for kind, said in patterns(table).items() if said.search(text))
    return cast("StageKind | None", next(found, None))
