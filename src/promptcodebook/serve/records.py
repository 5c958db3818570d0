"""What each request was prompted with, kept for `pco explain REQUEST_ID`: the last so many. The
file also has what callers spend a day (`spending.py`).

What a request said is not among it unless asked for, nor are the encoder's words about it. (A
prompt that a generator composed may still take up words of the input.)
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from promptcodebook.errors import StoreError
from promptcodebook.paths import data_folder, make_private_folder
from promptcodebook.sqlite import Layout, Packer, Reader, Write, Writer, store_os_error, unpack

_log = logging.getLogger(__name__)
_PREFIX = "req-"
_DIGITS = 24
_MOMENT_S = 0.2
_LAYOUT = Layout(
    "record of requests",
    1,
    (
        "CREATE TABLE requests (number INTEGER PRIMARY KEY, id TEXT NOT NULL, value BLOB NOT NULL)",
        "CREATE INDEX by_id ON requests (id)",
    ),
    later=(
        "CREATE TABLE IF NOT EXISTS spent (caller TEXT, day TEXT, calls INTEGER NOT NULL, "
        "tokens INTEGER NOT NULL, usd REAL NOT NULL, PRIMARY KEY (caller, day))",
    ),
)


@dataclass(frozen=True, slots=True)
class Record:
    """A request's prompt and how it came about. `time` is in UTC; `instincts` are the route's
    texts; `input`, `analysis` and `constraints` are '' and () unless texts are kept."""

    id: str
    time: str
    model: str
    version: str
    mode: str
    route: tuple[int, ...]
    instincts: tuple[str, ...]
    prompt: str
    fallbacks: tuple[str, ...]
    cached: str
    status: int
    input: str = ""
    analysis: str = ""
    constraints: tuple[str, ...] = ()


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def is_request_id(text: str) -> bool:
    digits = text.removeprefix(_PREFIX)
    return digits != text and len(digits) == _DIGITS and set(digits) <= set("0123456789abcdef")


def new_request_id() -> str:
    return _PREFIX + os.urandom(_DIGITS // 2).hex()


def records_path() -> Path:
    """`$PCO_REQUESTS`, else requests.sqlite in the user's data folder."""
    chosen = os.environ.get("PCO_REQUESTS", "")
    return Path(chosen).expanduser() if chosen else data_folder() / "requests.sqlite"


def open_writer(path: Path, each_batch: Write | None = None) -> Writer:
    """The file, to be written to; several may write to one. Raises StoreError."""
    if not path.parent.is_dir():
        try:
            path.parent.parent.mkdir(parents=True, exist_ok=True)
            make_private_folder(path.parent)
        except OSError as error:
            raise store_os_error(error, path.parent) from None
    return Writer(path, _LAYOUT, each_batch=each_batch)


class Records:
    """The requests in the file, as a server writes them. Raises StoreError."""

    def __init__(self, path: Path, most: int) -> None:
        def prune(db: sqlite3.Connection) -> None:
            db.execute(
                "DELETE FROM requests WHERE number <= (SELECT max(number) FROM requests) - ?",
                (most,),
            )

        self._writer = open_writer(path, prune)
        self._lock = threading.Lock()
        self._waiting: list[Record] = []
        self.lost = 0

    def put(self, record: Record) -> None:
        """Handed over and forgotten: a record that the disk refuses is counted, and no request
        fails for it. Called in an event loop; on the disk within a moment, together with those of
        that moment, since a transaction for each would cost a request more than its routing."""
        with self._lock:
            self._waiting.append(record)
            first = len(self._waiting) == 1
        if first:
            asyncio.get_running_loop().call_later(_MOMENT_S, self._write)

    def _write(self) -> None:
        with self._lock:
            records, self._waiting = self._waiting, []

        def write(db: sqlite3.Connection) -> None:
            packer = Packer()
            rows = [(record.id, packer.pack(_tree(record))) for record in records]
            db.executemany("INSERT INTO requests (id, value) VALUES (?, ?)", rows)

        if not records:
            return
        try:
            self._writer.send(write)
        except StoreError as error:
            if not self.lost:
                _log.error("requests are not recorded any more: %s", error)
            self.lost += len(records)

    def close(self) -> None:
        self._write()
        try:
            self._writer.close()
        except StoreError as error:
            _log.error("requests were not recorded: %s", error)


def _tree(record: Record) -> dict[str, Any]:
    """What `asdict` makes, without a copy of each text: the server waits for the interpreter."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def find_record(path: Path, request_id: str) -> Record:
    """Raises StoreError where there is none, or none any more."""
    missing = StoreError(
        f"no request {request_id} is recorded in {path}",
        hint="the record keeps the last requests only: pco serve REF --records N; "
        "PCO_REQUESTS names its file",
    )
    if not path.is_file():
        raise missing
    reader = Reader(path, _LAYOUT)
    try:
        rows = reader.rows("SELECT value FROM requests WHERE id = ?", (request_id,))
    finally:
        reader.close()
    if not rows:
        raise missing
    tree: dict[str, Any] = unpack(rows[0][0])
    for name in ("route", "instincts", "fallbacks", "constraints"):
        tree[name] = tuple(tree[name])
    return Record(**tree)
