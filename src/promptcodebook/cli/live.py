"""A run as it happens, in a terminal: redrawn by its own timer, so that the loop never waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from promptcodebook.cli.seen import Seen, heard, printable
from promptcodebook.session.events import Event, Note

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

__all__ = ["LiveView"]

_PER_SECOND = 4


class LiveView:
    """A Listener and context manager. Outside its context it only remembers what it hears.

    The timer's thread reads one frozen value, which each event replaces: no lock is needed.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._seen = Seen()
        self._live: Live | None = None
        self._ended = False

    def __enter__(self) -> LiveView:
        from rich.live import Live

        self._live = Live(
            console=self._console,
            refresh_per_second=_PER_SECOND,
            get_renderable=self.frame,
            redirect_stdout=False,  # results go there, and must arrive as they are
        )
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Draws the last frame and gives the terminal back, whatever happened."""
        live, self._live = self._live, None
        self._ended = True
        if live is not None:
            live.stop()

    def __call__(self, event: Event) -> None:
        self._seen = heard(self._seen, event, self._clock())
        if isinstance(event, Note) and self._live is not None:
            from rich.text import Text

            self._console.print(Text(printable(event.text)))

    def frame(self) -> RenderableType:
        """What the view shows now."""
        from promptcodebook.cli.frame import Frame

        return Frame(self._seen, self._clock(), self._ended)
