"""A part of the report: it hears every event once, in order, and then shows what it kept."""

from __future__ import annotations

from typing import Protocol

from promptcodebook.report.html import Html
from promptcodebook.store import Event

__all__ = ["Section"]


class Section(Protocol):
    """Keeps only what it will show, so that a long run takes no more memory than a short one."""

    title: str
    anchor: str

    def see(self, event: Event) -> None:
        """One event, with its traces and full rollouts."""
        ...

    def html(self) -> Html:
        """The section's body."""
        ...
