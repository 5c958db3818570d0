"""Reading beside the writer."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

from promptcodebook.sqlite.layout import Layout, connect, store_error

__all__ = ["Reader"]


class Reader:
    """A connection for reading, shared by threads; sees every commit made before the call."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._path = path
        self._what = layout.what
        self._db = connect(path, layout, write=False)
        self._lock = threading.Lock()

    def row(self, sql: str, parameters: tuple[object, ...] = ()) -> tuple[Any, ...] | None:
        """The first row, or None."""
        rows = self.rows(sql, parameters)
        return rows[0] if rows else None

    def rows(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows at once: the statement bounds how many."""
        try:
            with self._lock:
                return self._db.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise store_error(error, self._path, self._what) from error

    def close(self) -> None:
        with self._lock:
            self._db.close()
