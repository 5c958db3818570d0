"""OUT.part: the checkpoint of a batch, a folder beside OUT that is removed when OUT is whole.

job.json        which IN, policy and settings it belongs to
rows.jsonl      the results so far, in the order of IN; a last line that a kill tore is cut off
journal.sqlite  every reply, on disk before its chain continues, and what all sessions spent
in-flight       attempts that have left and are not booked (store/journal.py)
lock            who writes"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from promptcodebook.base.paths import make_private_folder, write_whole
from promptcodebook.base.sqlite import Layout, on_disk
from promptcodebook.calls import Role, Usage
from promptcodebook.config.loading import training_keys
from promptcodebook.deploy.batch.rows import RowResult
from promptcodebook.errors import ConfigError, RunChanged, StoreError
from promptcodebook.store.header import FREE_KEYS, differences
from promptcodebook.store.journal import BOOKS, Journal, add_usage
from promptcodebook.store.lock import LOCK_FILES, RunLock

_JOB, _ROWS, _JOURNAL = "job.json", "rows.jsonl", "journal.sqlite"
_LAYOUT = Layout("journal of a batch", 1, (*BOOKS, Path(__file__).with_suffix(".sql")))


def checkpoint_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def book_shard(
    journal: Journal, place: str, paid: Mapping[Role, Usage], lost: Mapping[Role, Usage]
) -> None:
    """Books what a shard has cost at a place (number and machine), less what is booked already."""

    def work(db: Any) -> None:
        row = db.execute("SELECT booked FROM shards WHERE place = ?", (place,)).fetchone()
        booked: dict[str, dict[str, dict[str, Any]]] = json.loads(row[0]) if row else {}
        for book, sums in (("paid", paid), ("lost", lost)):
            before = booked.setdefault(book, {})
            for role, usage in sums.items():
                new = usage - Usage(**before.get(role, {}))
                add_usage(db, role, new, lost=book == "lost")
                before[role] = asdict(usage)
        db.execute("INSERT OR REPLACE INTO shards VALUES (?, ?)", (place, json.dumps(booked)))

    journal.writer.write_now(work)


def open_journal(folder: Path, again: str) -> Journal:
    """Of a batch, or of a shard; `again` is the command to type after a full disk. Raises
    StoreError."""
    return Journal(folder / _JOURNAL, _LAYOUT, again)


class Checkpoint:
    """The folder while a process writes it; `failed` of the `count` results so far are errors."""

    def __init__(
        self, folder: Path, job: Mapping[str, Any], again: str, *, restart: bool = False
    ) -> None:
        """Continues what is there, or discards it (`restart`). `again` is the command to type.
        Raises RunBusy while another process writes, RunChanged for another job's folder, and
        ConfigError for one that is no batch's."""
        self.folder, self.count, self.failed = folder, 0, 0
        _require_ours(folder)
        with on_disk(folder):
            make_private_folder(folder)
        with ExitStack() as opened, on_disk(folder / _ROWS):
            lock = RunLock(folder)
            opened.callback(lock.release)
            if restart:  # job.json goes last: until then what a kill leaves belongs to that batch
                for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == _JOB):
                    if entry.is_dir() and not entry.is_symlink():
                        shutil.rmtree(entry)
                    elif entry.name not in LOCK_FILES:
                        entry.unlink()
            self.job = _settle_job(folder, job, again)
            self.journal = opened.enter_context(closing(open_journal(folder, again)))
            self._file = opened.enter_context((folder / _ROWS).open("a+b"))
            end = self._file.seek(0)
            with suppress(ValueError, KeyError, TypeError):  # a line that is not whole
                for line in self._file:
                    if not line.endswith(b"\n"):
                        break
                    self.failed += RowResult.read(line).error is not None
                    self.count += 1
                    end += len(line)
            # What a kill or a full disk left behind the whole lines is cut off.
            self._file.truncate(end)
            self._file.seek(end)
            self._open = opened.pop_all()

    def append(self, results: list[RowResult]) -> None:
        """Adds what comes next; returns when it would survive kill -9. Raises DiskFull or
        StoreError."""
        with on_disk(self.folder / _ROWS):
            self._file.write(b"".join(result.line() for result in results))
            self._file.flush()
        self.count += len(results)
        self.failed += sum(result.error is not None for result in results)

    def results(self) -> Iterator[RowResult]:
        with (self.folder / _ROWS).open("rb") as file:
            for line in file:
                yield RowResult.read(line)

    def close(self) -> None:
        """Writes what waits and releases the folder. Safe to call twice."""
        with on_disk(self.folder / _ROWS):
            self._open.close()


def _require_ours(folder: Path) -> None:
    """Raises ConfigError where the folder holds something else, which the end would delete."""
    with on_disk(folder):
        if not folder.exists():
            return
        names = [entry.name for entry in folder.iterdir()]
    # A process that died before it wrote job.json has left its lock alone.
    left = [n for n in names if n not in LOCK_FILES and not n.startswith(f".{_JOB}.")]
    if left and _JOB not in left:
        message = f"already exists and belongs to no batch: it has {min(left)!r} but no {_JOB}"
        raise ConfigError(f"{folder} {message}", hint="name another OUT, or move that folder")


def _settle_job(folder: Path, job: Mapping[str, Any], again: str) -> Mapping[str, Any]:
    path = folder / _JOB
    try:
        with on_disk(path):
            if not path.exists():
                job = {**job, "id": uuid.uuid4().hex}
                write_whole(path, json.dumps(job, indent=2, ensure_ascii=True) + "\n")
                return job
            known: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except ValueError:
        hint = f"remove {folder} to start again; that discards paid answers"
        raise StoreError(f"{path} is damaged", hint=hint) from None
    # Free are `id`, which differs for each batch to the same OUT, and settings that decide no
    # answer of a deployed policy.
    free = [f"settings.{key}" for key in (*FREE_KEYS, *training_keys())]
    changed = [each.key for each in differences(known, job, ("id", *free))]
    if not changed:
        return known
    means = {
        "input": "the contents of IN changed",
        "policy": "REF or --input is different",
        "ray": f"it was started {'with' if known.get('ray') else 'without'} --ray",
    }
    changes = [means.get(key) or f"{key.removeprefix('settings.')} is different" for key in changed]
    more = f", and {len(changes) - 3} more" if len(changes) > 3 else ""
    hint = f"repeat the first command, or discard paid answers: {again} --restart --budget LIMIT"
    if changed == ["ray"]:
        alone = f"{again} --ray local continues on this machine only"
        hint = alone if known.get("ray") else "leave out --ray"
    why = f"{'; '.join(changes[:3])}{more}"
    raise RunChanged(f"{folder} holds a different, unfinished batch: {why}", hint=hint)
