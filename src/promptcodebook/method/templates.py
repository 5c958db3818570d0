"""The prompt files: one template per role and set, parsed once, filled in a single pass.

A value is inserted as data and never looked at again: braces, role markers or template syntax in
an input, an instinct or a reply do nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Literal

from promptcodebook.types import Message

__all__ = ["Template", "TemplateSet", "Templates", "load_templates"]

TemplateSet = Literal["default", "paper"]

_PLACE = re.compile(r"\{([a-z_]+)\}")
_SECTION = re.compile(r"^## (system|user)$", re.M)


@dataclass(frozen=True)
class Template:
    """One prompt file, cut into its chat turns."""

    name: str
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


def _join(pieces: tuple[str, ...], values: Mapping[str, object]) -> str:
    """Text and placeholder names alternate; a line that holds an empty value alone goes."""
    out: list[str] = []
    for i, piece in enumerate(pieces):
        if i % 2 == 0:
            alone = i > 0 and out[-1] == "" and out[-2].endswith("\n")
            out.append(piece.removeprefix("\n") if alone else piece)
        else:
            out.append(str(values[piece]))
    return "".join(out)


@dataclass(frozen=True)
class Templates:
    """One whole set: θ₀, φ₀, ψ₀ and the fixed templates around them."""

    name: TemplateSet
    sources: Mapping[str, str]

    @cached_property
    def _parsed(self) -> dict[str, Template]:
        return {name: Template(name, source) for name, source in self.sources.items()}

    def __getitem__(self, name: str) -> Template:
        return self._parsed[name]

    def text(self, name: str) -> str:
        """A file that is a learned part's first text (theta, phi, psi) or a list (instincts)."""
        return self.sources[name].strip()

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the set, kept in the run record."""
        whole = "\x00".join(f"{name}\x01{text}" for name, text in sorted(self.sources.items()))
        return hashlib.sha256(whole.encode()).hexdigest()


def load_templates(name: TemplateSet) -> Templates:
    """The named set; what the paper does not print (updater, g_ψ, initialisation) is ours."""
    folder = files("promptcodebook.method") / "prompts"
    sources: dict[str, str] = {}
    for part in ("default", name):
        for file in (folder / part).iterdir():
            if file.name.endswith(".md"):
                sources[file.name.removesuffix(".md")] = file.read_text("utf-8")
    return Templates(name, sources)
