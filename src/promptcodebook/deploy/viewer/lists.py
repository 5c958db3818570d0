"""The list of all runs, the latest first unless another order is wanted."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from promptcodebook.base.intervals import Interval
from promptcodebook.base.units import number
from promptcodebook.deploy.viewer.following import key_of
from promptcodebook.deploy.viewer.screens import ALL_SIMULATED, SOME_SIMULATED, Screen, time_left
from promptcodebook.errors import StoreError
from promptcodebook.report.context import Context
from promptcodebook.report.pages import MISSING, render
from promptcodebook.store.lock import FILE, holder
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import (
    COLUMNS,
    RunColumn,
    RunSummary,
    file_marks,
    read_runs,
    run_folders,
)

_log = logging.getLogger(__name__)
_ON_A_PAGE = 50
_REST = 20  # how many times as long as a look took is waited until the next
_Files = tuple[list[list[int] | None], int | None]


class _ScoreLine(NamedTuple):
    """Validation scores in order, the best one's examples; how long a run at work still takes."""

    scores: tuple[float, ...] = ()
    n: int = 0
    simulated: bool = False
    left: str = ""


_Listed = tuple[RunSummary, _ScoreLine]
KINDS = ("Deploy", "Do not deploy", "Undecided", "running", "stopped", "finished")


class RunFilter(NamedTuple):
    """Which runs, and in which order: `words` are searched for, `only` is one of `KINDS`, `by` a
    column of `COLUMNS` (with '-' before it, the other way round)."""

    page: int = 1
    words: str = ""
    only: str = ""
    by: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> RunFilter:
        """Of the address; what it does not know is left out."""
        page, by = query.get("page", ""), query.get("by", "")
        number = int(page) if page.isdecimal() and len(page) < 9 else 1
        known = by if by.removeprefix("-") in _SORTED else ""
        return cls(max(1, number), query.get("words", ""), query.get("only", ""), known)

    @property
    def query(self) -> dict[str, str]:
        """What an address says of it, the page left out."""
        fields = {"words": self.words, "only": self.only, "by": self.by}
        return {name: text for name, text in fields.items() if text}

    def of_all(self, listed: Sequence[_Listed]) -> list[_Listed]:
        """Those wanted, in order; what has no such figure comes last."""
        found = [each for each in listed if self._fits(*each)]
        if not self.by:
            return found
        column = _SORTED[self.by.removeprefix("-")]

        def figure(each: _Listed) -> Any:
            value = column.value(each[0])
            return value.mean if isinstance(value, Interval) else value

        known = [each for each in found if figure(each) is not None]
        known.sort(key=figure, reverse=not self.by.startswith("-"))
        return known + [each for each in found if figure(each) is None]

    def _fits(self, run: RunSummary, line: _ScoreLine) -> bool:
        kinds = run.decision, run.state
        text = " ".join((run.id, run.name, run.task, *kinds)).lower()
        return self.only in ("", *kinds) and all(w in text for w in self.words.lower().split())


_SORTED = {column.heading: column for column in COLUMNS if column.heading}
_ALL = RunFilter()


class RunsList:
    """The runs of one folder. From any thread; pages that follow them share one look a `kept_s`."""

    def __init__(self, runs_dir: Path, kept_s: float = 1.0) -> None:
        self._runs_dir, self._kept_s = runs_dir, kept_s
        self._lines: dict[Path, tuple[_Files, _ScoreLine]] = {}
        self._marked, self._until = "", 0.0
        self._read: tuple[str, list[RunSummary]] = ("", [])
        self._unreadable: dict[Path, StoreError] = {}
        self._lock = threading.RLock()

    def mark(self) -> str:
        """Changes whenever the screen would; a twentieth of the time at most goes into looking."""
        with self._lock:
            began = time.monotonic()
            if began >= self._until:
                self._marked = self._look()
                ended = time.monotonic()
                rest = _REST * (ended - began) if self._kept_s else 0
                self._until = ended + max(self._kept_s, rest)
            return self._marked

    def _look(self) -> str:
        lines = [(str(folder), _files(folder)) for folder in run_folders(self._runs_dir)]
        return hashlib.sha256(repr(lines).encode("utf-8", "replace")).hexdigest()[:16]

    def screen(self, wanted: RunFilter = _ALL) -> Screen:
        """A page of the runs that are wanted."""
        with self._lock:
            # Before the rest: a page may be newer than it says, never older.
            mark = self._look()
            if mark != self._read[0]:
                found, unreadable = read_runs(self._runs_dir)
                for folder, error in unreadable.items():
                    if folder not in self._unreadable:
                        _log.warning("run %s: %s (%s)", folder.name, error, error.hint)
                self._read, self._unreadable = (mark, found[::-1]), unreadable
            known = runs = self._read[1]
            if wanted.query:  # without an order or a search, no more is read than is shown
                listed = wanted.of_all([(run, self._line(run)) for run in known])
                runs = [run for run, _ in listed]
            pages = max(1, -(-len(runs) // _ON_A_PAGE))
            page = min(wanted.page, pages)
            shown = runs[(page - 1) * _ON_A_PAGE : page * _ON_A_PAGE]
            rows = [(run, self._line(run)) for run in shown]
            unread = list(self._unreadable.items())
        marks = [line.simulated for _, line in rows]
        body = render(
            "deploy/viewer/templates/runs.html.jinja",
            folder=self._runs_dir,
            wanted=wanted,
            columns=tuple(_SORTED.values()),
            cell=_cell,
            kinds=KINDS,
            known=len(known),
            rows=[(key_of(self._runs_dir, r.path), r, x, _spark(x.scores)) for r, x in rows],
            unreadable=[(folder.name, str(e), e.hint) for folder, e in unread],
            page=page,
            pages=pages,
            count=len(runs),
        )
        remark = (ALL_SIMULATED if all(marks) else SOME_SIMULATED) if any(marks) else ""
        return Screen("Runs", body, live="/live/runs", mark=mark, simulated=remark)

    def _line(self, run: RunSummary) -> _ScoreLine:
        files, kept = _files(run.path), self._lines.get(run.path)
        if kept is None or kept[0] != files:
            kept = self._lines[run.path] = (files, _read_line(run.path))
        return kept[1]


def _cell(column: RunColumn, run: RunSummary, line: _ScoreLine) -> tuple[str, str]:
    """The text of a column in a run's row, and a small text beside it."""
    asides = {"state": line.left, "best validation": f"n = {line.n}" if line.n else ""}
    value, aside = column.value(run), asides.get(column.heading, "")
    if isinstance(value, Interval):
        return number(value.mean, signed=column.signed), value.ends(signed=column.signed)
    return column.missing or MISSING if value is None else column.write(value), aside


def _files(folder: Path) -> _Files:
    """What a run's line is read from: its files, and who writes it where its log of writes is."""
    marks = file_marks(folder)
    return marks, holder(folder) if (folder / f"{FILE}-wal").exists() else None


def _read_line(path: Path) -> _ScoreLine:
    try:
        with closing(RunStore.open(path)) as store:
            state, header = store.outline(), store.header
            left = time_left(Context.of(store, {})) if holder(path) is not None else ""
    except StoreError as error:
        _log.debug("run %s: %s", path.name, error)
        return _ScoreLine()
    scored = (m.score for m in state.validations if m.scope == "subset")
    scores = tuple(score for score in scored if score is not None)
    return _ScoreLine(scores, state.best.n if state.best is not None else 0, header.simulated, left)


def _spark(scores: Sequence[float]) -> str:
    """The scores as a line of 90 by 20 pixels; '' of too few."""
    if len(scores) < 2:
        return ""
    low, high = min(scores), max(scores)
    across, up = 86 / (len(scores) - 1), 16 / ((high - low) or 1.0)
    return "M" + "L".join(
        f"{2 + i * across:.1f} {18 - (score - low) * up:.1f}" for i, score in enumerate(scores)
    )
