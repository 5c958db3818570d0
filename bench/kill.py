"""Kill -9 at random moments of a simulated run over HTTP, and what resuming each comes to.

A `pco train` process in minibatch mode, against the simulated server in another process with
latency. The table shows for each kill: when, how much of the run was on disk, the step it resumed
from, how many requests were in flight (answered, and not yet on disk), how many were answered a
second time, and whether policy file and events equal the uninterrupted run's.

    python -m bench.kill

How the proof works: the server counts the requests it has answered (`replies`) and how many of
these had been answered before (`repeated`), so `replies - repeated` is the number of different
requests answered. Each row of the run's journal is one of them. At a kill, the answered ones
without a row are those that were in flight: `pending`. Only they may be answered again; a row that
is there must never be asked for again.
"""

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figures import Figure, shown
from promptcodebook.base.randomness import keyed_random
from promptcodebook.store.lock import FILE
from promptcodebook.store.run import RunStore
from tests.build.proof_server import ROOT, Served, served
from tests.build.runs import Finished

FLAGS = (
    *("--task", "constraints", "--plain", "--preset", "full"),
    *("--set", "cache=false", "--set", "concurrency=16"),
    *("--set", "update.epochs=4", "--set", "update.batch_size=8"),
    *("--set", "validation.every=2", "--set", "validation.subset=8"),
    *("--set", "validation.finalists=2", "--set", "verdict_examples=16"),
)
# A run whose routes are learned from outcomes.
ROUTED = (
    *("--task", "constraints", "--plain", "--preset", "small", "--set", "select=2"),
    *("--set", "cache=false", "--set", "concurrency=16"),
    *("--set", "update.epochs=8", "--set", "update.batch_size=8"),
    *("--set", "validation.subset=8", "--set", "verdict_examples=16"),
)
IN_FLIGHT = 16
LATENCY = "uniform:0.01-0.03"
_SETTLE_S = 0.1  # several times the server's longest latency
_LONGEST_S = 600.0


@dataclass(frozen=True)
class Progress:
    """How far a run has come on disk: events by kind, rows of the journal."""

    events: Mapping[str, int]
    journal: int
    began: bool


@dataclass
class Kill:
    """One kill -9: where the run stood, and what the server had answered for nothing.

    `again` counts the requests that were answered a second time in the session after it.
    """

    progress: Progress
    pending: int
    repeated_before: int
    again: int = 0


# Whether to kill now, given the seconds since the process began and the run's progress.
When = Callable[[float, Progress], bool]


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


STDERR = "stderr.txt"


def typed(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """A process of `pco` at home in the folder, where stderr is kept in a file."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PCO_RUNS": str(folder / "runs")}
    command = [sys.executable, "-m", "promptcodebook.cli", *words]
    with (folder / STDERR).open("a") as log:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=log)


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
    def stderr(self) -> str:
        """All sessions' stderr so far."""
        return (self.folder / STDERR).read_text("utf-8")

    def wait(self) -> int:
        """The exit code, once it has ended by itself."""
        try:
            return self.process.wait(_LONGEST_S)
        except subprocess.TimeoutExpired:
            self.kill()
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

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def settled(server: Served) -> dict[str, Any]:
    """What the server counted, once it has answered all that a killed process left there."""
    now = server.stats()
    while True:
        before = now
        time.sleep(_SETTLE_S)
        now = server.stats()
        if now == before:
            return now


def killed_and_resumed(server: Served, folder: Path, moments: Sequence[When]) -> list[Kill]:
    """A run that is killed at each moment in turn, resumed after each, and at last left alone.

    A moment that lies behind the end of the run kills nothing.
    """
    server.reset()
    kills: list[Kill] = []
    for when in (*moments, None):
        training = Training(folder, server.lm)
        ended = when is None or not training.until(when)
        if ended:
            assert training.wait() == 0, training.stderr
        else:
            training.kill()
        stats, progress = settled(server), progress_of(folder)
        if kills:
            kills[-1].again = stats["repeated"] - kills[-1].repeated_before
        if ended:
            break
        pending = stats["replies"] - stats["repeated"] - progress.journal
        kills.append(Kill(progress, pending, stats["repeated"]))
        if progress.events.get("ended"):  # killed on its way out: nothing is left to do
            break
    return kills


def uninterrupted(server: Served, folder: Path) -> tuple[Finished, float]:
    """The run to compare with, and its seconds."""
    server.reset()
    training = Training(folder, server.lm)
    assert training.wait() == 0, training.stderr
    return left_by(folder), training.seconds


def left_by(folder: Path) -> Finished:
    """The run in this folder: the last, if it was killed before its first event."""
    return Finished(max((folder / "runs").iterdir()))


def assert_nothing_was_paid_twice(server: Served, folder: Path, kills: Sequence[Kill]) -> None:
    """Counts at the end: every different request answered is a row of the journal, after each kill
    no more were answered again than had been in flight, and what is booked differs from what the
    server was asked at most by what a kill meets between a booking and its request's arrival."""
    stats = server.stats()
    assert stats["replies"] - stats["repeated"] == progress_of(folder).journal
    for kill in kills:
        assert 0 <= kill.again <= kill.pending <= 2 * IN_FLIGHT
    with closing(RunStore.open(left_by(folder).path)) as store:
        booked = sum(u.calls for u in (*store.usage().values(), *store.lost().values()))
    assert stats["requests"] <= booked <= stats["requests"] + IN_FLIGHT * len(kills)


# PCO_KILLS=100 for the long proof.
KILLS = int(os.environ.get("PCO_KILLS", "25"))
_HEAD = (
    f"  {'kill':>4} {'at, s':>7} {'events':>7} {'journal':>8} {'step':>5} {'in flight':>10} "
    f"{'asked again':>12} {'bytes equal':>12} {'events equal':>13}"
)


def measure() -> list[Figure]:
    with served(f"simulated?latency={LATENCY}") as server, tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        whole, seconds = uninterrupted(server, base / "whole")
        calls = progress_of(base / "whole").journal
        print(f"  uninterrupted: {seconds:.1f} s, {calls} calls (simulated)\n{_HEAD}", flush=True)
        draw = keyed_random("bench kill")
        moments = sorted(draw.uniform(0.1, seconds) for _ in range(KILLS))
        found = [
            _one(server, whole, base / f"{n}", moment, n) for n, moment in enumerate(moments, 1)
        ]
    return [
        Figure("kills", sum(f[0] for f in found), goal=float(KILLS), at_least=True),
        Figure("policy files or events that differ", sum(not f[1] for f in found), goal=0.0),
        Figure(
            "runs with a reply paid for again, or an attempt misbooked",
            sum(f[2] for f in found),
            goal=0,
        ),
    ]


def _one(
    server: Served, whole: Finished, folder: Path, moment: float, number: int
) -> tuple[int, bool, bool]:
    """How many kills happened, whether all is equal, whether something was paid for twice."""
    kills = killed_and_resumed(server, folder, [after(moment)])
    if not kills:  # this run was faster than the uninterrupted one, and over before the moment
        return _one(server, whole, folder.with_name(f"{folder.name}-again"), 0.9 * moment, number)
    left = left_by(folder)
    bytes_equal, events_equal = left.policy == whole.policy, left.events() == whole.events()
    for kill in kills:
        print(_row(kill, moment, number, bytes_equal, events_equal), flush=True)
    twice = False
    try:
        assert_nothing_was_paid_twice(server, folder, kills)
    except AssertionError as error:
        twice = True
        print(f"       {error}")
    return len(kills), bytes_equal and events_equal, twice


def _row(kill: Kill, moment: float, number: int, bytes_equal: bool, events_equal: bool) -> str:
    progress = kill.progress
    events, step = sum(progress.events.values()), progress.events.get("stepped", 0)
    return (
        f"  {number:>4} {moment:>7.2f} {events:>7} {progress.journal:>8} "
        f"{step:>5} {kill.pending:>10} {kill.again:>12} "
        f"{'yes' if bytes_equal else 'NO':>12} {'yes' if events_equal else 'NO':>13}"
    )


if __name__ == "__main__":
    raise SystemExit(shown(measure, str(__doc__)))
