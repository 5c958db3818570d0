"""What a user says of a run's test examples: a label and a note each, kept in the run's folder as
lines of JSON. A later line about the same example counts."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from promptcodebook.sqlite import store_os_error
from promptcodebook.store.lock import NO_LINK, refuse_links

_FILE, _MOST_BYTES = "notes.jsonl", 10_000_000
MOST_LABEL, MOST_NOTE = 60, 4000
"""Characters of each that are kept."""


@dataclass(frozen=True, slots=True)
class Note:
    label: str = ""
    text: str = ""


def read_notes(run: Path) -> dict[str, Note]:
    """By example id. A line that cannot be read is left out."""
    found = dict[str, Note]()
    with suppress(OSError), open(run / _FILE, "rb") as file:
        for line in file.read(_MOST_BYTES).splitlines():
            with suppress(ValueError, TypeError, KeyError):
                name, *words = (str(json.loads(line)[key]) for key in ("example", "label", "note"))
                found[name] = Note(*words)
    return found


def add_note(run: Path, example: str, note: Note) -> None:
    """Raises StoreError and DiskFull."""
    refuse_links(run)
    told = {"example": example, "label": note.label[:MOST_LABEL], "note": note.text[:MOST_NOTE]}
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_LINK
    try:
        with open(os.open(run / _FILE, flags, 0o600), "ab") as file:
            file.write(f"{json.dumps(told)}\n".encode())
    except OSError as error:
        raise store_os_error(error, run / _FILE) from error
