"""Which view of a run fits a stream: live in a terminal, plain lines everywhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, TextIO

from promptcodebook.cli.lines import LineView
from promptcodebook.session.events import Event

__all__ = ["View", "make_view"]


class View(Protocol):
    """A Listener that holds the terminal while it is entered."""

    def __enter__(self) -> View: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def __call__(self, event: Event) -> None: ...


def make_view(
    stream: TextIO, *, plain: bool = False, environment: Mapping[str, str] | None = None
) -> View:
    """The view for `stream` (stderr). `plain`, NO_COLOR, a dumb or no terminal give lines."""
    env = os.environ if environment is None else environment
    dumb = env.get("TERM", "") in ("", "dumb")
    utf8 = (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"
    if plain or env.get("NO_COLOR") or dumb or not utf8 or not stream.isatty():
        return LineView(stream)
    from rich.console import Console

    from promptcodebook.cli.live import LiveView

    return LiveView(Console(file=stream))
