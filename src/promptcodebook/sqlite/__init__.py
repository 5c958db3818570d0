"""SQLite as the house uses it: WAL, one writer thread that groups commits, point-lookup reads.

A `Writer` owns the only writing connection of this process to one file. Callers hand it units of
work; its thread takes all that wait, commits them in ONE transaction and then wakes every waiter
(group commit), so that an awaited write costs a queue put and a future, not a transaction.
With `synchronous = NORMAL` a commit survives kill -9 of the process at any moment; a power cut may
take the last commits, never the file.

Values are packed as zstd-compressed JSON. Nothing is ever pickled. Text is encoded with
`surrogatepass`: a lone surrogate in a model's reply comes back as it was.
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
