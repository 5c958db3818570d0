"""A line about a run, and where such lines are kept: a run that has ended stays as it is, and of a
thousand runs nobody wants to wait for each. What a run needs is imported when one must be opened.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcodebook.calls import Usage
from promptcodebook.errors import StoreError
from promptcodebook.paths import cache_folder, write_whole
from promptcodebook.store.folder import ATTEMPTS, FILE
from promptcodebook.store.lock import LOCK_FILES, holder

if TYPE_CHECKING:
    from promptcodebook.store.events import EndReason

_log = logging.getLogger(__name__)
_FORM = 3
"""Counts what a summary holds: those of an earlier form are made anew."""
_WATCHED = (FILE, f"{FILE}-wal", ATTEMPTS, *LOCK_FILES)
"""A writer signs the lock as soon as it has it: where that file is as it was, nobody came since."""
_MISFITS = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError),
    *(TypeError, ValueError),
)
"""What reading a file raises that nobody of us wrote."""
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
    with the sizes and times of its files: one that was written to since is read anew.

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

    store = RunStore.open(path)
    try:
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
    finally:
        store.close()
