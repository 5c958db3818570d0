"""A real `pco train` that is killed, interrupted or stopped, and resumed until it is done.

How the proof of "no finished call is paid for twice" works: the server counts the requests it has
answered (`replies`) and how many of these had been answered before (`repeated`), so
`replies - repeated` is the number of different requests answered. Each row of the run's journal is
one of them. At a kill, the answered ones without a row are those that were in flight: `pending`.
Only they may be answered again; a row that is there must never be asked for again.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from promptcodebook.store.lock import FILE
from promptcodebook.store.run import RunStore
from tests.proof.runs import Finished
from tests.proof.served import ROOT, Served

FLAGS = (
    *("--task", "constraints", "--plain", "--set", "cache=false", "--set", "concurrency=16"),
    *("--set", "update.epochs=4", "--set", "update.batch_size=8"),
    *("--set", "validation.every=2", "--set", "validation.subset=8"),
    *("--set", "validation.finalists=2", "--set", "verdict_examples=16"),
)
IN_FLIGHT = 16
LATENCY = "uniform:0.01-0.03"
SETTLE_S = 0.1  # several times the server's longest latency
_LONGEST_S = 120.0


@dataclass(frozen=True)
class Progress:
    """How far a run has come on disk: events by kind, rows of the journal."""

    events: Mapping[str, int]
    journal: int
    began: bool

    @property
    def number(self) -> int:
        return sum(self.events.values())


@dataclass(frozen=True)
class Kill:
    """One kill -9: when, where the run stood, and what the server had answered for nothing.

    `again` counts the requests that were answered a second time in the session after it.
    """

    seconds: float
    progress: Progress
    pending: int
    repeated_before: int
    again: int = 0


When = Callable[[float, Progress], bool]
"""Whether to kill now, given the seconds since the process began and the run's progress."""


def after(seconds: float) -> When:
    return lambda now, _: now >= seconds


def progress_of(folder: Path) -> Progress:
    """Read from outside, while another process writes."""
    files = list((folder / "runs").glob(f"*/{FILE}"))
    if not files:
        return Progress({}, 0, False)
    try:
        with closing(sqlite3.connect(f"file:{files[0]}?mode=ro", uri=True)) as db:
            events = dict(db.execute("SELECT kind, COUNT(*) FROM events GROUP BY kind"))
            (journal,) = db.execute("SELECT COUNT(*) FROM journal").fetchone()
            (headers,) = db.execute("SELECT COUNT(*) FROM header").fetchone()
    except sqlite3.Error:  # its tables are just being made
        return Progress({}, 0, False)
    return Progress(events, journal, headers > 0)


SAID = "stderr.txt"


def typed(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """A process of `pco` at home in the folder, where stderr is kept in a file."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PCO_RUNS": str(folder / "runs")}
    command = [sys.executable, "-m", "promptcodebook.cli", *words]
    with (folder / SAID).open("a") as said:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=said)


class Training:
    """One process of `pco train`, fresh or resumed; stderr is kept in a file."""

    def __init__(self, folder: Path, lm: str, *more: str, flags: Sequence[str] = FLAGS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        resumes = progress_of(folder).began
        given = ["--resume", "last", "--plain"] if resumes else [*flags, "--lm", lm]
        self.began = time.monotonic()
        self.process = typed(folder, "train", *given, *more)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def said(self) -> str:
        """All sessions' stderr so far."""
        return (self.folder / SAID).read_text("utf-8")

    def wait(self) -> int:
        """The exit code, once it has ended by itself."""
        try:
            return self.process.wait(_LONGEST_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def until(self, when: When) -> bool:
        """Waits for the moment; False if the process ended before it came."""
        while self.process.poll() is None:
            if when(self.seconds, progress_of(self.folder)):
                return True
            if self.seconds > _LONGEST_S:
                self.process.kill()
            time.sleep(0.002)
        return False

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def killed_and_resumed(server: Served, folder: Path, moments: Sequence[When]) -> list[Kill]:
    """A run that is killed at each moment in turn, resumed after each, and at last left alone.

    A moment that lies behind the end of the run kills nothing.
    """
    server.reset()
    kills: list[Kill] = []
    for when in moments:
        training = Training(folder, server.lm)
        if not training.until(when):
            assert training.wait() == 0, training.said
            return _told_again(kills, server)
        seconds = training.seconds
        training.kill()
        kills = _told_again(kills, server)
        kills.append(_after_kill(server, folder, seconds))
        if kills[-1].progress.events.get("ended"):  # killed on its way out: nothing is left to do
            return kills
    last = Training(folder, server.lm)
    assert last.wait() == 0, last.said
    return _told_again(kills, server)


def _after_kill(server: Served, folder: Path, seconds: float) -> Kill:
    time.sleep(SETTLE_S)
    stats, progress = server.stats(), progress_of(folder)
    pending = stats["replies"] - stats["repeated"] - progress.journal
    return Kill(seconds, progress, pending, stats["repeated"])


def _told_again(kills: Sequence[Kill], server: Served) -> list[Kill]:
    if not kills:
        return []
    *earlier, last = kills
    again = server.stats()["repeated"] - last.repeated_before
    return [*earlier, Kill(last.seconds, last.progress, last.pending, last.repeated_before, again)]


def uninterrupted(server: Served, folder: Path) -> tuple[Finished, float]:
    """The run to compare with, and the seconds it took."""
    server.reset()
    training = Training(folder, server.lm)
    assert training.wait() == 0, training.said
    return left_by(folder), training.seconds


def left_by(folder: Path) -> Finished:
    """The run in this folder: the last, if it was killed before its first event."""
    return Finished(max((folder / "runs").iterdir()))


def booked(folder: Path) -> int:
    """Attempts that the run has booked, as paid or as lost."""
    store = RunStore.open(left_by(folder).path)
    try:
        return sum(u.calls for u in (*store.usage().values(), *store.lost().values()))
    finally:
        store.close()


def misbooked(server: Served, folder: Path, kills: Sequence[Kill]) -> str:
    """How what is booked differs from what the server was asked; '' = not beyond what a kill can
    meet between the booking of an attempt and its request's arrival."""
    asked, found = server.stats()["requests"], booked(folder)
    if not asked <= found <= asked + IN_FLIGHT * len(kills):
        return f"{asked} requests at the server, {found} attempts booked"
    return ""


def paid_twice(server: Served, folder: Path, kills: Sequence[Kill]) -> str:
    """What was paid for twice although its reply was on disk; '' = nothing.

    Counts at the end: every different request answered is a row of the journal, and after each kill
    no more were answered again than had been in flight.
    """
    stats, rows = server.stats(), progress_of(folder).journal
    if stats["replies"] - stats["repeated"] != rows:
        return f"{stats['replies'] - stats['repeated']} requests answered, {rows} journaled"
    for kill in kills:
        if not 0 <= kill.again <= kill.pending <= 2 * IN_FLIGHT:
            return f"{kill.again} answered again, {kill.pending} were in flight"
    return ""
