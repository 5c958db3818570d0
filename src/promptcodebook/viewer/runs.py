"""The screen of all runs: a line each, the latest first; two of them are picked to be compared."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptcodebook.errors import StoreError
from promptcodebook.report.html import MISSING, Column, Content, Html, el, table, together
from promptcodebook.report.svg import Picture
from promptcodebook.store.lock import FILE, holder
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import RunSummary, file_marks, read_runs, run_folders
from promptcodebook.units import count_text, duration, money, number, plural
from promptcodebook.viewer.following import key_of
from promptcodebook.viewer.page import (
    ALL_SIMULATED,
    SOME_SIMULATED,
    Screen,
    address,
    filter_box,
    link,
)

_log = logging.getLogger(__name__)
_ON_A_PAGE = 50
_SPARK = (90, 20)
_REST = 20
"""How many times as long as a look took is waited until the next."""
_Files = tuple[list[list[int] | None], int | None]
_COLUMNS = (
    Column("compare", numeric=False),
    Column("run", numeric=False),
    Column("task", numeric=False),
    Column("state", numeric=False),
    Column("steps"),
    Column("best validation"),
    Column("validations", numeric=False),
    Column("calls"),
    Column("cost"),
    Column("time"),
)


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
            damaged = _damaged(self._unreadable)
        body = (
            self._table(shown, lines)
            if shown
            else together(
                el("p.empty", f"There is no run in {self._runs_dir} yet."),
                el("p.note", "Next: ", el("code", "pco train")),
            )
        )
        return Screen(
            "Runs",
            [body, damaged, _pages(page, pages, len(runs))],
            live=address("live", "runs"),
            mark=mark,
            simulated=_said([line.simulated for line in lines]),
        )

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

    def _table(self, runs: Sequence[RunSummary], lines: Sequence[_Line]) -> Html:
        rows = [self._cells(run, line) for run, line in zip(runs, lines, strict=True)]
        pick = el(
            "p.pick",
            el("button", "Compare the two picked", attrs={"type": "submit"}),
            el("span.note", " Pick two runs of the same test split."),
        )
        return together(
            filter_box("runs"),
            el(
                "form.runs",
                table(_COLUMNS, rows),
                pick,
                attrs={"action": "/compare", "method": "get"},
            ),
        )

    def _cells(self, run: RunSummary, line: _Line) -> tuple[Content, ...]:
        key = key_of(self._runs_dir, run.path)
        pick = {"type": "checkbox", "name": "run", "value": key, "aria-label": f"Pick {key}"}
        best = number(run.best, missing=MISSING)
        return (
            el("input", attrs=pick),
            together(
                link(run.name or run.id, "run", key, look=".stop"),
                el("span.aside", run.id) if run.name else None,
                el("span.badge", "simulated") if line.simulated else None,
            ),
            run.task or "own data",
            "running" if run.running else run.ended or "stopped",
            f"{run.step + 1:,}",
            together(best, el("span.aside", f"n = {line.n}")) if line.n else best,
            _spark(line.scores),
            count_text(run.usage.calls),
            money(run.usage.cost),
            duration(run.elapsed_s),
        )


def _files(folder: Path) -> _Files:
    """What a run's line is read from: its files, and of one whose log of writes is there, as of a
    run that was killed, who writes it."""
    marks = file_marks(folder)
    return marks, holder(folder) if (folder / f"{FILE}-wal").exists() else None


def _damaged(unreadable: Mapping[Path, StoreError]) -> Html | None:
    if not unreadable:
        return None
    folder, error = next(iter(unreadable.items()))
    more = f" (the first is {folder.name})" if len(unreadable) > 1 else f": {folder.name}"
    return together(
        el("p.note", f"{plural(len(unreadable), 'run')} cannot be read{more}: {error}"),
        el("p.note", "Next: ", el("code", error.hint or f"pco runs show {folder.name}")),
    )


def _said(simulated: Sequence[bool]) -> str:
    if not any(simulated):
        return ""
    return ALL_SIMULATED if all(simulated) else SOME_SIMULATED


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


def _spark(scores: Sequence[float]) -> Content:
    """The scores as a small line without axes."""
    if len(scores) < 2:
        return MISSING
    width, height = _SPARK
    low, high = min(scores), max(scores)
    across, up = (width - 4) / (len(scores) - 1), (height - 4) / ((high - low) or 1.0)
    points = [
        f"{2 + i * across:.1f} {height - 2 - (s - low) * up:.1f}" for i, s in enumerate(scores)
    ]
    line = el("path.main", attrs={"d": "M" + "L".join(points)})
    words = f"{len(scores)} scores from {number(scores[0])} to {number(scores[-1])}"
    picture = Picture("Validation reward", words, _SPARK, line, fixed=True)
    return el("span.spark", picture.html())


def _pages(page: int, pages: int, runs: int) -> Html | None:
    if pages == 1:
        return None
    to = [_page_link(n, page) for n in range(1, pages + 1)]
    return el("nav.pages", f"{runs:,} runs, page ", to, attrs={"aria-label": "Pages"})


def _page_link(n: int, page: int) -> Html:
    current = {"aria-current": "page"} if n == page else {}
    return el("a", str(n), attrs={"href": address(page=str(n)), **current})
