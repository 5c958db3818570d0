"""A run's folder: its files, how it is made under a name of its own and closed to other users, and
what it is when whoever made it was killed before the run had a header.

Lists of runs need this and no more of a run: pydantic and the events are imported elsewhere."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from promptcodebook.errors import DiskFull, StoreError
from promptcodebook.paths import make_private_folder, run_reference, tighten
from promptcodebook.sqlite import restrain, store_os_error
from promptcodebook.store.lock import RunLock, refuse_links

if TYPE_CHECKING:
    from promptcodebook.store.header import Header

FILE = "run.sqlite"
ATTEMPTS = "in-flight"
EFFECTS = "effects"
"""Names of files in a run's folder: its tables, and the attempts that are on their way."""


def new_folder(runs_dir: Path, header: Header) -> tuple[Path, Header]:
    """Makes `runs_dir`/id; a chosen id gets a number behind it where it is taken."""
    from promptcodebook.store.header import run_id

    stem = header.id or run_id(header.task, datetime.fromisoformat(header.created))
    name, again = stem, 1
    while True:
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            (runs_dir / name).mkdir(mode=0o700)
            return runs_dir / name, replace(header, id=name)
        except FileExistsError as error:
            if not runs_dir.is_dir():
                raise StoreError(
                    f"{error.filename} is no folder, so no run can be kept in it",
                    hint="set PCO_RUNS to a folder of your own",
                ) from None
            if header.id:
                reference = run_reference(runs_dir / name)
                raise StoreError(
                    f"{error.filename} exists already", hint=f"pco train --resume {reference}"
                ) from None
            again += 1
            name = f"{stem}-{again}"
        except OSError as error:
            fault = store_os_error(error, runs_dir)
            if not isinstance(fault, DiskFull):
                fault.hint = "set PCO_RUNS to a folder that you may write to"
            raise fault from error


def close_to_others(folder: Path) -> None:
    """Takes away what other users of the machine may do in the folder. StoreError."""
    try:
        make_private_folder(folder)
        for file in folder.iterdir():
            if file.is_file() and not file.is_symlink():
                tighten(file, 0o600)
    except OSError as error:
        raise store_os_error(error, folder) from error


def lock_effects(run: Path) -> RunLock:
    """Held while instincts of the run are measured, in the folder for that. RunBusy, StoreError."""
    refuse_links(run)
    return RunLock(run / EFFECTS, f"an instinct of the run {run.name} is being measured")


def is_unborn(folder: Path) -> bool:
    """Whether the run in this folder has no header: who made it was killed, or is making it."""
    if is_blank(folder / FILE):
        return True
    try:
        with _opened(folder / FILE) as db:
            return db.execute("SELECT 1 FROM header").fetchone() is None
    except sqlite3.Error:  # no database of ours, or one that is damaged
        return False


def is_blank(file: Path) -> bool:
    """Whether it is a database without a table: who made it has not come any further yet."""
    try:
        with _opened(file) as db:
            return db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None
    except sqlite3.Error:
        return False


@contextlib.contextmanager
def _opened(file: Path) -> Generator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)) as db:
        restrain(db)
        yield db


def never_started(path: Path) -> StoreError:
    """The error that tells of a run without a header."""
    return StoreError(
        f"the run {path.name} was never started", hint=f"pco runs rm {run_reference(path)}"
    )
