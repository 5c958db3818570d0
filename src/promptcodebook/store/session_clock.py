"""Wall time of a run over all its sessions, kept by the commits themselves."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime

__all__ = ["SessionClock"]


class SessionClock:
    """One row per session, brought up to date in every transaction: kill -9 loses no more than
    the time since the last commit. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._row: int | None = None
        self._before_s = 0.0

    def begin(self, db: sqlite3.Connection) -> None:
        """Work for the session's first transaction."""
        self._before_s = float(db.execute("SELECT TOTAL(seconds) FROM sessions").fetchone()[0])
        started = datetime.now(UTC).isoformat(timespec="seconds")
        new = db.execute("INSERT INTO sessions (started, seconds) VALUES (?, 0)", (started,))
        self._row = new.lastrowid

    def beat(self, db: sqlite3.Connection) -> None:
        """Work for every transaction."""
        seconds = self._clock() - self._began
        db.execute("UPDATE sessions SET seconds = ? WHERE id = ?", (seconds, self._row))

    @property
    def elapsed_s(self) -> float:
        """Seconds of all sessions, this one up to now."""
        return self._before_s + self._clock() - self._began
