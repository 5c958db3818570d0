"""What doctor has to say: findings, gathered under titles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing examined: how it is, and what to type next ('' = nothing)."""

    name: str
    level: Level
    what: str
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Everything found about one subject, such as one model (its spec is then the title)."""

    title: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether a run can do with it (warnings do not prevent one)."""
        return all(each.level != "fail" for each in self.findings)

    def __getitem__(self, name: str) -> Finding:
        return next(each for each in self.findings if each.name == name)
