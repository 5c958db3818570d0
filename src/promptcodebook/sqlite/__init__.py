"""SQLite as the house uses it: WAL, one writer thread that groups commits, point-lookup reads.

A `Writer` owns the only writing connection of this process to one file. Its thread takes all units
of work that wait, commits them in one transaction, and then wakes every waiter. So an awaited write
costs a queue put and a future, not a transaction. With `synchronous = NORMAL` a commit survives
kill -9 of the process at any moment. A power cut may lose the last commits, never the file.

Values are packed as zstd-compressed JSON, never pickled. Text is encoded with `surrogatepass`, so a
lone surrogate in a model's reply survives.
"""

from __future__ import annotations

from promptcodebook.sqlite.database import (
    Layout,
    Packer,
    Reader,
    connect,
    pack,
    restrain,
    store_os_error,
    unpack,
)
from promptcodebook.sqlite.writer import Write, Writer

__all__ = [
    "Layout",
    "Packer",
    "Reader",
    "Write",
    "Writer",
    "connect",
    "pack",
    "restrain",
    "store_os_error",
    "unpack",
]
