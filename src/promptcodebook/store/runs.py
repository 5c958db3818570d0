"""The folder of all runs: finding one by what a person types, listing, removing.

Summaries of runs that have ended are kept, so that a list of a thousand runs opens quickly. What a
run needs is imported when one must be opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcodebook.calls import Usage
from promptcodebook.errors import RunNotFound, StoreError, did_you_mean
from promptcodebook.paths import BENCH, cache_folder, write_whole
from promptcodebook.sqlite import store_os_error
from promptcodebook.store.lock import (
    ATTEMPTS,
    EFFECTS,
    FILE,
    LOCK_FILES,
    RunLock,
    holder,
    is_unborn,
    lock_effects,
)

if TYPE_CHECKING:
    from promptcodebook.store.events import EndReason
    from promptcodebook.store.header import Header

_log = logging.getLogger(__name__)
_FORM = 3
"""Counts what a summary holds: those of an earlier form are made again."""
_WATCHED = (FILE, f"{FILE}-wal", ATTEMPTS, *LOCK_FILES)
"""A writer signs the lock as soon as it has it: an unchanged file means that no process wrote."""
_MISFITS = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError),
    *(TypeError, ValueError),
)
"""What reading a damaged or foreign file raises."""
_KINDS: dict[str, type | tuple[type, ...]] = {
    "id": str,
    "created": str,
    "task": str,
    "step": int,
    "best": (float, int, type(None)),
    "ended": (str, type(None)),
    "elapsed_s": (float, int),
    "name": str,
    "simulated": bool,
}
"""What of a summary is kept, besides the usage."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line about a run. `step` is -1 before the first; `writer` is the pid of who writes it.
    `simulated`: a model of it was."""

    id: str
    path: Path
    created: str
    task: str
    step: int
    best: float | None
    ended: EndReason | None
    usage: Usage
    elapsed_s: float
    writer: int | None
    name: str = ""
    simulated: bool = False

    @property
    def running(self) -> bool:
        return self.writer is not None

    @property
    def resumable(self) -> bool:
        """Neither finished nor being written."""
        return not self.running and self.ended not in ("finished", "early_stop", "target")


class Summaries:
    """Of the runs in one folder. Those that have ended are kept in the user's cache folder, each
    with the sizes and times of its files: one that was written to since is read again.

    A convenience, never a reason to fail: a cache that cannot be read or written is done without.
    """

    def __init__(self, runs_dir: Path) -> None:
        place = hashlib.sha256(str(runs_dir.resolve()).encode("utf-8", "surrogateescape"))
        self._runs_dir = runs_dir
        self._file = cache_folder() / "runs" / f"{place.hexdigest()[:16]}.json"
        self._kept = self._read()
        self._seen = dict[str, Any]()

    def of(self, path: Path) -> RunSummary:
        """Of the run in that folder. StoreError where it cannot be read, whatever is in it."""
        try:
            return self._of(path)
        except _MISFITS as error:
            raise StoreError(
                f"it holds what no run does ({type(error).__name__})",
                hint=f"pco runs show {path.name}",
            ) from error

    def _of(self, path: Path) -> RunSummary:
        name, mark = str(path.relative_to(self._runs_dir)), file_marks(path)
        kept = self._kept.get(name)
        if kept is not None:
            try:
                if kept["mark"] == mark:
                    summary = _read_summary(kept["summary"], path)
                    self._seen[name] = kept
                    return summary
            except (KeyError, TypeError):
                _log.debug("the kept summary of %s is damaged", name)
        writer = holder(path)
        summary = _summary(path, writer)
        if writer is None and summary.ended is not None and mark == file_marks(path):
            plain = {key: getattr(summary, key) for key in _KINDS}
            self._seen[name] = {"mark": mark, "summary": {**plain, "usage": asdict(summary.usage)}}
        return summary

    def close(self) -> None:
        """Keeps what was read, and forgets runs that are gone."""
        if self._seen == self._kept:
            return
        try:
            self._file.parent.mkdir(0o700, parents=True, exist_ok=True)
            write_whole(self._file, json.dumps({"form": _FORM, "runs": self._seen}))
        except OSError as error:
            _log.debug("summaries of runs were not kept: %s", error)

    def _read(self) -> dict[str, Any]:
        try:
            tree = json.loads(self._file.read_text("utf-8"))
            return dict(tree["runs"]) if tree["form"] == _FORM else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}


def _read_summary(kept: dict[str, Any], path: Path) -> RunSummary:
    """KeyError or TypeError where it is not as it was kept."""
    values = {key: kept[key] for key in _KINDS}
    for key, kind in _KINDS.items():
        if not isinstance(values[key], kind):
            raise TypeError(key)
    return RunSummary(**values, path=path, usage=Usage(**kept["usage"]), writer=None)


def file_marks(path: Path) -> list[list[int] | None]:
    """Size and time of each file that a run's summary is read from; None = it is not there."""
    folder, marks = str(path), list[list[int] | None]()
    for name in _WATCHED:
        try:
            stat = os.stat(f"{folder}/{name}")  # a third faster than Path, and there are thousands
            marks.append([stat.st_size, stat.st_mtime_ns])
        except OSError:
            marks.append(None)
    return marks


def _summary(path: Path, writer: int | None) -> RunSummary:
    from promptcodebook.store.run import RunStore

    with closing(RunStore.open(path)) as store:
        state = store.outline()
        return RunSummary(
            id=path.name,
            path=path,
            created=store.header.created,
            task=store.header.task,
            step=state.step,
            best=state.best.score if state.best else None,
            ended=state.ended,
            usage=sum((*store.usage().values(), *store.lost().values()), Usage()),
            elapsed_s=store.elapsed_s,
            writer=writer,
            name=store.header.name,
            simulated=store.header.simulated,
        )


_LIST = "pco runs list"
_ID = re.compile(r"\d{8}-\d{6}-[a-z0-9-]+")
_SIDES = tuple(f"{FILE}-{side}" for side in ("wal", "shm", "journal", "reserve"))
_OF_A_BIRTH = {*LOCK_FILES, ATTEMPTS, FILE, *_SIDES}
_SMALL = 1_000_000
"""Bytes: a larger file has steps in it, and need not be opened to know that."""
_BIRTH_S = 60.0


def find_run(runs_dir: Path, ref: str) -> Path:
    """The folder of a run by exact id, path, 'last', name, or the unique beginning of an id.

    A name that several runs share means the latest of them, so that what is trained again
    under its name is found by it. Raises RunNotFound with what was probably meant.
    """
    if "/" in ref or ref in (".", ".."):
        if (Path(ref) / FILE).is_file():
            return Path(ref)
        raise RunNotFound(f"there is no run at {ref}", hint=_LIST)
    folders = run_folders(runs_dir)
    if (runs_dir / ref) in folders:
        return runs_dir / ref
    headers = _headers(folders) if ref else {}
    called = [path for path, header in headers.items() if ref in ("last", header.name)]
    if called:
        return max(called, key=lambda path: (headers[path].created, path.name))
    if ref == "last" and folders:
        raise RunNotFound(
            f"no run in {runs_dir} can be read", hint=f"pco runs show {folders[0].name}"
        )
    if ref == "last":
        raise RunNotFound(f"there is no run in {runs_dir} yet", hint="pco train")
    return _only(folders, headers, ref, runs_dir)


def _only(
    folders: Sequence[Path], headers: Mapping[Path, Header], ref: str, runs_dir: Path
) -> Path:
    """The one folder whose name is `ref`, or else begins with it."""
    exact = [path for path in folders if path.name == ref]
    matches = exact or [path for path in folders if ref and path.name.startswith(ref)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        shown = ", ".join(str(path) if exact else path.name for path in matches[:5])
        raise RunNotFound(
            f"{ref!r} matches more than one run: {shown}",
            hint="type its path" if exact else "type more of the id",
        )
    known = [path.name for path in folders] + [h.name for h in headers.values() if h.name]
    raise RunNotFound(f"no run {ref!r} in {runs_dir}{did_you_mean(ref, known)}", hint=_LIST)


def list_runs(runs_dir: Path) -> list[RunSummary]:
    """All readable runs, those of suites too, oldest first; an unreadable one is logged and left
    out."""
    runs, unreadable = read_runs(runs_dir)
    for folder, error in unreadable.items():
        _log.warning("run %s: %s (%s)", folder.name, error, error.hint)
    return runs


def read_runs(runs_dir: Path) -> tuple[list[RunSummary], dict[Path, StoreError]]:
    """All readable runs as `list_runs` has them, and why others cannot be read, by folder."""
    runs: list[RunSummary] = []
    unreadable: dict[Path, StoreError] = {}
    kept = Summaries(runs_dir)
    for folder in run_folders(runs_dir):
        try:
            runs.append(kept.of(folder))
        except StoreError as error:
            unreadable[folder] = error
    kept.close()
    return sorted(runs, key=lambda run: (run.created, run.id)), unreadable


def remove_run(path: Path) -> None:
    """Deletes a run's folder. Raises RunBusy while it is written or one of its instincts measured,
    RunNotFound for other folders."""
    if not (path / FILE).is_file():
        raise RunNotFound(f"there is no run at {path}", hint=_LIST)
    if path.is_symlink():  # what lies at its other end may be another run
        raise StoreError(f"{path} is a link to a run, and only runs are removed", hint=f"rm {path}")
    if (path / EFFECTS).is_dir():
        lock_effects(path).release()
    lock = RunLock(path)
    try:
        try:
            for file in path.glob(f"{FILE}*"):
                file.unlink()
        finally:
            lock.release()  # first: Windows deletes no file that is open
        shutil.rmtree(path)
    except OSError as error:
        raise store_os_error(error, path) from error


def remove_unborn(runs_dir: Path) -> None:
    """Deletes what is left of runs whose making was killed: a folder of ours without a header.

    A run that is being made right now is left alone, and so is everything else; what cannot be
    deleted stays.
    """
    for folder in runs_dir.iterdir() if runs_dir.is_dir() else ():
        with contextlib.suppress(OSError):  # StoreError and RunBusy among them
            if _looks_unborn(folder):
                _remove_if_unborn(folder)


def _looks_unborn(folder: Path) -> bool:
    if folder.is_symlink() or not folder.is_dir():
        return False
    file = folder / FILE
    if file.is_file():
        return file.stat().st_size < _SMALL and is_unborn(folder)
    # Between its folder and its file a run being made holds no lock for an instant.
    age = time.time() - folder.stat().st_mtime
    return _ID.fullmatch(folder.name) is not None and age > _BIRTH_S


def _remove_if_unborn(folder: Path) -> None:
    if {entry.name for entry in folder.iterdir()} - _OF_A_BIRTH:
        return
    lock = RunLock(folder)
    try:
        if (folder / FILE).is_file() and not is_unborn(folder):
            return  # it was born in the meantime
        for side in folder.glob(f"{FILE}*"):
            side.unlink()
    finally:
        lock.release()
    shutil.rmtree(folder)
    _log.info("removed %s: a run whose making was interrupted", folder)


def run_folders(runs_dir: Path) -> list[Path]:
    """The folders of runs: those of `runs_dir`, and those of its suites."""
    names = os.listdir(runs_dir) if runs_dir.is_dir() else ()
    alone = [runs_dir / name for name in names if os.path.exists(f"{runs_dir}/{name}/{FILE}")]
    return sorted([*alone, *(file.parent for file in runs_dir.glob(f"{BENCH}/*/*/{FILE}"))])


def _headers(folders: Sequence[Path]) -> dict[Path, Header]:
    """The headers of the runs that can be read."""
    from promptcodebook.store.run import RunStore

    headers: dict[Path, Header] = {}
    for folder in folders:
        try:
            with closing(RunStore.open(folder)) as store:
                headers[folder] = store.header
        except StoreError as error:
            _log.warning("run %s: %s", folder.name, error)
    return headers
