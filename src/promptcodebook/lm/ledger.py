"""What a run spent, by role: what was answered, and apart from it what was lost to failures.

A lost attempt went out and brought nothing usable back: its answer came too late, cut, unreadable
or not at all. Nobody knows what the server bills for it, so it is booked at the most it can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from promptcodebook.calls import Role, Usage


class AttemptLog(Protocol):
    """Where attempts outlive the process. `begin` returns once the attempt would survive kill -9,
    with its ticket; what is begun and never ended was in flight at the kill. `end` books what it
    came to and returns at once."""

    def begin(self, role: Role, most: Usage) -> int: ...

    def end(self, ticket: int, role: Role, usage: Usage, lost: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request on its way to a server, and the most it can cost."""

    role: Role
    most: Usage
    ticket: int


class Ledger:
    """Sums over all sessions of a run. `usage` are attempts that were answered or refused, `lost`
    those lost to failures, at the most they can have cost; `total` is both."""

    def __init__(
        self,
        spent: Mapping[Role, Usage] | None = None,
        lost: Mapping[Role, Usage] | None = None,
        log: AttemptLog | None = None,
    ) -> None:
        self.usage: dict[Role, Usage] = dict(spent or {})
        self.lost: dict[Role, Usage] = dict(lost or {})
        self.total = sum((*self.usage.values(), *self.lost.values()), Usage())
        self._log = log

    @property
    def lost_total(self) -> Usage:
        """What was lost to failures, all roles together."""
        return sum(self.lost.values(), Usage())

    def begin(self, role: Role, most: Usage) -> Attempt:
        """An attempt is about to leave."""
        return Attempt(role, most, 0 if self._log is None else self._log.begin(role, most))

    def end(self, attempt: Attempt, usage: Usage, *, lost: bool = False) -> None:
        """Books what the attempt came to."""
        role, book = attempt.role, self.lost if lost else self.usage
        if usage.calls:
            book[role] = book.get(role, Usage()) + usage
            self.total += usage
        if self._log is not None:
            self._log.end(attempt.ticket, role, usage, lost)
