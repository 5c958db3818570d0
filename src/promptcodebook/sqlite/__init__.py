"""SQLite as the house uses it: WAL, one writer thread that groups commits, point-lookup reads.

A `Writer` owns the only writing connection of this process to one file, so that an awaited write
costs a queue put and a future, not a transaction. With `synchronous = NORMAL` a commit survives
kill -9 of the process; a power cut may lose the last commits, never the file. Values are packed as
zstd-compressed JSON in which a lone surrogate of a model's reply survives.
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
