"""What was spent, by role."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from promptcodebook.types import Role, Usage

__all__ = ["Ledger"]


class Ledger:
    """Usage by role, over all sessions of a run; `sink` is told of each paid call."""

    def __init__(
        self,
        spent: Mapping[Role, Usage] | None = None,
        sink: Callable[[Role, Usage], None] | None = None,
    ) -> None:
        self.usage: dict[Role, Usage] = dict(spent or {})
        self.total = sum(self.usage.values(), Usage())
        self._sink = sink

    def record(self, role: Role, usage: Usage) -> None:
        """Books one paid call."""
        self.usage[role] = self.usage.get(role, Usage()) + usage
        self.total += usage
        if self._sink is not None:
            self._sink(role, usage)
