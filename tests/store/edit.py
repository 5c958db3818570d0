"""A run's header as its owner, or somebody else, would have written it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

from promptcodebook.base.paths import make_secret
from promptcodebook.store.header import seal


def edit_header(file: Path, change: Callable[[str], str], *, sealed: bool = True) -> None:
    """The header's text in `run.sqlite` changed; `sealed` = by its owner, who has the secret."""
    with contextlib.closing(sqlite3.connect(file)) as db, db:
        (text,) = db.execute("SELECT json FROM header").fetchone()
        edited = change(text)
        written = seal(edited, make_secret()) if sealed else edited
        db.execute("UPDATE header SET json = ?", (written,))
