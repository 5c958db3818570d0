"""The screen of all runs: a line each, the latest first; two of them are picked to be compared."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from promptcodebook.errors import StoreError
from promptcodebook.report.pages import render
from promptcodebook.store.lock import FILE, holder
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import RunSummary, file_marks, read_runs, run_folders
from promptcodebook.viewer.following import key_of
from promptcodebook.viewer.page import ALL_SIMULATED, SOME_SIMULATED, Screen

_log = logging.getLogger(__name__)
_ON_A_PAGE = 50
_REST = 20
"""How many times as long as a look took is waited until the next."""
_Files = tuple[list[list[int] | None], int | None]


@dataclass(frozen=True, slots=True)
class _Line:
    """What a line shows beyond the run's summary: its validation scores in order, over how many
    examples the best was, and whether they are simulated."""

    scores: tuple[float, ...]
    n: int
    simulated: bool


class Runs:
    """The runs of one folder; what was read of a run whose files are as they were is not read
    again. From any thread; all pages that follow the list share one look a `kept_s`."""

    def __init__(self, runs_dir: Path, kept_s: float = 1.0) -> None:
        self._runs_dir = runs_dir
        self._kept_s = kept_s
        self._lines: dict[Path, tuple[_Files, _Line]] = {}
        self._marked, self._until = "", 0.0
        self._read: tuple[str, list[RunSummary]] = ("", [])
        self._unreadable: dict[Path, StoreError] = {}
        self._lock = threading.RLock()

    def mark(self) -> str:
        """Changes whenever the screen would, and costs a look at the files, not at what is in
        them; of the time a twentieth at most goes into looking."""
        with self._lock:
            began = time.monotonic()
            if began >= self._until:
                self._marked = self._look()
                spent = time.monotonic() - began
                self._until = (
                    began + spent + max(self._kept_s, _REST * spent if self._kept_s else 0)
                )
            return self._marked

    def _look(self) -> str:
        lines = [(str(folder), _files(folder)) for folder in run_folders(self._runs_dir)]
        return hashlib.sha256(repr(lines).encode("utf-8", "replace")).hexdigest()[:16]

    def screen(self, page: int = 1) -> Screen:
        """One page of the runs, the first being 1."""
        with self._lock:
            mark, runs = self._summaries()
            pages = max(1, -(-len(runs) // _ON_A_PAGE))
            page = min(max(1, page), pages)
            shown = runs[(page - 1) * _ON_A_PAGE : page * _ON_A_PAGE]
            lines = [self._line(run) for run in shown]
            unreadable = list(self._unreadable.items())
        marks = [line.simulated for line in lines]
        body = render(
            "viewer/templates/runs.html.jinja",
            folder=self._runs_dir,
            rows=[
                (key_of(self._runs_dir, run.path), run, line, _spark(line.scores))
                for run, line in zip(shown, lines, strict=True)
            ],
            unreadable=[(folder.name, str(e), e.hint) for folder, e in unreadable],
            page=page,
            pages=pages,
            count=len(runs),
        )
        said = (ALL_SIMULATED if all(marks) else SOME_SIMULATED) if any(marks) else ""
        return Screen("Runs", body, live="/live/runs", mark=mark, simulated=said)

    def _summaries(self) -> tuple[str, list[RunSummary]]:
        """The mark and all runs, the latest first, as they were when it was taken or later."""
        mark = self._look()
        if mark != self._read[0]:
            runs, unreadable = read_runs(self._runs_dir)
            for folder, error in unreadable.items():
                if folder not in self._unreadable:
                    _log.warning("run %s: %s (%s)", folder.name, error, error.hint)
            self._read, self._unreadable = (mark, runs[::-1]), unreadable
        return self._read

    def _line(self, run: RunSummary) -> _Line:
        files = _files(run.path)
        known = self._lines.get(run.path)
        if known is None or known[0] != files:
            known = self._lines[run.path] = (files, _read_line(run.path))
        return known[1]


def _files(folder: Path) -> _Files:
    """What a run's line is read from: its files, and of one whose log of writes is there, as of a
    run that was killed, who writes it."""
    marks = file_marks(folder)
    return marks, holder(folder) if (folder / f"{FILE}-wal").exists() else None


def _read_line(path: Path) -> _Line:
    try:
        store = RunStore.open(path)
    except StoreError as error:
        _log.debug("run %s: %s", path.name, error)
        return _Line((), 0, False)
    try:
        state = store.outline()
        marks, best = state.validations, state.best
        scores = tuple(m.score for m in marks if m.score is not None and m.scope == "subset")
        return _Line(scores, best.n if best is not None else 0, store.header.simulated)
    finally:
        store.close()


def _spark(scores: Sequence[float]) -> str:
    """The scores as a line of 90 by 20 pixels without axes; '' of too few."""
    if len(scores) < 2:
        return ""
    low, high = min(scores), max(scores)
    across, up = 86 / (len(scores) - 1), 16 / ((high - low) or 1.0)
    return "M" + "L".join(
        f"{2 + i * across:.1f} {18 - (score - low) * up:.1f}" for i, score in enumerate(scores)
    )
