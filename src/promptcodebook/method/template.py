"""One prompt file: chat turns with placeholders, parsed once, filled in a single pass.

A value is inserted as data and never looked at again: braces, role markers or template syntax in an
input, an instinct or a reply do nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from promptcodebook.calls import Message
from promptcodebook.errors import ConfigError, did_you_mean

_PLACE = re.compile(r"\{([a-z_]+)\}")
_SECTION = re.compile(r"^## (system|user)$", re.M)


@dataclass(frozen=True)
class Template:
    """One prompt file, cut into its chat turns."""

    source: str

    @cached_property
    def _turns(self) -> tuple[tuple[Literal["system", "user"], tuple[str, ...]], ...]:
        pieces = _SECTION.split(self.source)
        turns = zip(pieces[1::2], pieces[2::2], strict=True)
        return tuple(
            ("system" if role == "system" else "user", tuple(_PLACE.split(body.strip("\n"))))
            for role, body in turns
        )

    def fill(self, values: Mapping[str, object]) -> tuple[Message, ...]:
        """The chat with every placeholder replaced; KeyError names one that has no value."""
        return tuple(Message(role, _join(pieces, values)) for role, pieces in self._turns)


@dataclass(frozen=True, slots=True)
class Places:
    """The placeholders of a template: those it must have and those it may have."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()

    def __str__(self) -> str:
        must, may = _in_braces(self.required), _in_braces(self.optional)
        return f"it needs {must}" + (f" and may use {may}" if may else "")


_RUN = ("task", "prompt", "response")
"""What no judgement of a run can do without."""
_TRACE = ("route", "stages", "reward", "range", "codebook")
PLACES: Mapping[str, Places] = {
    "encoder": Places(("theta", "select", "codebook", "task"), ("size", "last")),
    "generator": Places(("phi", "instincts", "task"), ("format", "stage")),
    "critic": Places(("psi", *_RUN, "instincts", "reference"), _TRACE),
    "critic_one": Places(("psi", *_RUN, "instincts", "reference"), _TRACE),
    "attribution": Places(("verdict",), ("score", *_RUN, "instincts", "reference", *_TRACE)),
    "adversary": Places(("psi", "verdict", *_RUN), ("instincts", "reference", *_TRACE)),
    "updater": Places(("text", "gradient"), ("variable", "others", "cap")),
    "merge": Places(("text", "gradient"), ("variable", "others", "cap")),
    "revive": Places(("gradient",), ("text", "variable", "others", "cap")),
    "split": Places(("text", "size"), ("cap",)),
    "random": Places(("size",), ("cap",)),
    "from_prompt": Places(("text", "size"), ("cap",)),
}
"""Each template's placeholders; its caller has a value for every one of them."""


def fill_text(text: str, values: Mapping[str, object]) -> str:
    """A text with every placeholder replaced in one pass; KeyError names one without a value."""
    return _join(_PLACE.split(text), values)


def check_template(name: str, source: str, where: str) -> None:
    """Raises ConfigError, with `where` and the line, unless the request `name` can be made of it:
    chat turns, all placeholders that it needs, and none that has no value."""
    first = _SECTION.search(source)
    if first is None or "user" not in _SECTION.findall(source):
        raise ConfigError(
            f"{where}: there is no user turn", hint="begin it with a line that says: ## user"
        )
    if source[: first.start()].strip():
        raise ConfigError(
            f"{where}:1: the text before the first turn would be lost",
            hint="begin the file with a line that says: ## system",
        )
    check_places(source, PLACES[name], where)


def check_places(source: str, places: Places, where: str) -> None:
    """Raises ConfigError, with `where` and the line, for a placeholder unknown or missing."""
    known = (*places.required, *places.optional)
    for match in _PLACE.finditer(source):
        if match[1] not in known:
            line = source.count("\n", 0, match.start()) + 1
            at = f"{where}:{line}" if "\n" in source else where
            close = did_you_mean(match[1], known)
            raise ConfigError(f"{at}: unknown placeholder {match[0]}{close}", hint=str(places))
    present = _PLACE.findall(source)
    for name in places.required:
        if name not in present:
            raise ConfigError(f"{where}: placeholder {{{name}}} is missing", hint=str(places))


def _in_braces(names: Iterable[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


def _join(pieces: Sequence[str], values: Mapping[str, object]) -> str:
    """Text and placeholder names alternate; a line that holds an empty value alone goes."""
    out: list[str] = []
    for i, piece in enumerate(pieces):
        if i % 2 == 0:
            alone = i > 0 and out[-1] == "" and out[-2].endswith("\n")
            out.append(piece.removeprefix("\n") if alone else piece)
        else:
            out.append(str(values[piece]))
    return "".join(out)
