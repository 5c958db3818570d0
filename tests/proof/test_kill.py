"""Kill -9 at any moment, resume: the same policy file, and nothing on disk is paid for again.

How the proof works: the server counts the requests it has answered (`replies`) and how many of
these had been answered before (`repeated`), so `replies - repeated` is the number of different
requests answered. Each row of the run's journal is one of them. At a kill, the answered ones
without a row are those that were in flight: `pending`. Only they may be answered again; a row that
is there must never be asked for again."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from promptcodebook.experiments.experiment import read_run
from promptcodebook.randomness import keyed_random
from promptcodebook.store.lock import FILE
from promptcodebook.store.run import RunStore
from tests.proof.runs import Finished
from tests.proof.served import ROOT, Served, served

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


@dataclass
class Kill:
    """One kill -9: where the run stood, and what the server had answered for nothing.

    `again` counts the requests that were answered a second time in the session after it.
    """

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
            assert training.wait() == 0, training.said
        else:
            training.kill()
            time.sleep(SETTLE_S)
        stats, progress = server.stats(), progress_of(folder)
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
    assert training.wait() == 0, training.said
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
    with contextlib.closing(RunStore.open(left_by(folder).path)) as store:
        booked = sum(u.calls for u in (*store.usage().values(), *store.lost().values()))
    assert stats["requests"] <= booked <= stats["requests"] + IN_FLIGHT * len(kills)


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(f"simulated?latency={LATENCY}") as up:
        yield up


@pytest.fixture(scope="module")
def whole(server: Served, tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, float]:
    return uninterrupted(server, tmp_path_factory.mktemp("whole"))


def assert_as_if_nothing_had_happened(folder: Path, whole: Finished) -> None:
    left = left_by(folder)
    assert left.policy == whole.policy
    assert left.rewards() == whole.rewards()
    assert left.events() == whole.events()
    assert read_run(left.path)["training"] == read_run(whole.path)["training"]


def test_killed_again_and_again(
    server: Served, whole: tuple[Finished, float], tmp_path: Path
) -> None:
    draw = keyed_random("kill again")
    kills = killed_and_resumed(server, tmp_path, [after(draw.uniform(0.6, 1.4)) for _ in range(5)])
    assert len(kills) >= 3
    assert [k.progress.journal for k in kills] == sorted(k.progress.journal for k in kills)
    assert_nothing_was_paid_twice(server, tmp_path, kills)
    assert_as_if_nothing_had_happened(tmp_path, whole[0])


def stepped_and_not_validated(_: float, progress: Progress) -> bool:
    return progress.events.get("stepped") == 2 and progress.events.get("validated") == 1


def first_row(_: float, progress: Progress) -> bool:
    """In the middle of the first row of the verdict: its rollouts are no training."""
    return bool(progress.events.get("trained")) and not progress.events.get("judged")


def judging(_: float, progress: Progress) -> bool:
    return progress.events.get("judged") == 2


@pytest.mark.parametrize("moment", [stepped_and_not_validated, first_row, judging])
def test_killed_at_an_awkward_moment(
    moment: When, server: Served, whole: tuple[Finished, float], tmp_path: Path
) -> None:
    kills = killed_and_resumed(server, tmp_path, [moment])
    assert moment(0.0, kills[0].progress), "the moment was missed"
    assert_nothing_was_paid_twice(server, tmp_path, kills)
    assert_as_if_nothing_had_happened(tmp_path, whole[0])


def test_ctrl_c_keeps_what_is_in_flight_and_says_how_to_go_on(
    server: Served, whole: tuple[Finished, float], tmp_path: Path
) -> None:
    server.reset()
    training = Training(tmp_path, server.lm)
    assert training.until(lambda _, progress: progress.events.get("stepped") == 2)
    training.process.send_signal(signal.SIGINT)
    assert training.wait() == 130
    run = left_by(tmp_path).path.name
    assert f"pco train --resume {run}" in training.said
    # Stopping in order loses nothing: each reply that the server gave is on disk.
    assert server.stats()["replies"] == progress_of(tmp_path).journal

    again = Training(tmp_path, server.lm)
    assert again.wait() == 0
    assert server.stats()["repeated"] == 0
    assert_as_if_nothing_had_happened(tmp_path, whole[0])


ROUTED = (
    *("--task", "constraints", "--plain", "--preset", "small", "--set", "select=2"),
    *("--set", "cache=false", "--set", "concurrency=16"),
    *("--set", "update.epochs=8", "--set", "update.batch_size=8"),
    *("--set", "validation.subset=8", "--set", "verdict_examples=16"),
)
"""A run whose routes are learned from outcomes."""


def test_a_router_that_learned_from_outcomes_survives_two_kills(
    server: Served, tmp_path: Path
) -> None:
    """Early and late: what it learned is read back from the traces; the same policy bytes."""
    server.reset()
    whole = Training(tmp_path / "whole", server.lm, flags=ROUTED)
    assert whole.wait() == 0, whole.said
    for stepped in (1, 5):
        training = Training(tmp_path / "killed", server.lm, flags=ROUTED)
        assert training.until(lambda _, p, least=stepped: p.events.get("stepped", 0) >= least)
        training.kill()
        assert stepped <= progress_of(tmp_path / "killed").events.get("stepped", 0) < 8
    rest = Training(tmp_path / "killed", server.lm)
    assert rest.wait() == 0, rest.said
    left = left_by(tmp_path / "killed")
    assert b'"router"' in left.policy
    assert_as_if_nothing_had_happened(tmp_path / "killed", left_by(tmp_path / "whole"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder whose `runs` is a disk of 24 MB of its own."""
    runs = tmp_path / "runs"
    runs.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(runs)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here: this test needs root")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(runs)], check=True)


@pytest.mark.parametrize("replies", [20, 120])
def test_a_disk_that_fills_up_costs_no_reply_that_was_paid_for(
    replies: int, server: Served, whole: tuple[Finished, float], small_disk: Path
) -> None:
    """Those in flight when it was full are kept as well, in room that was set aside."""
    server.reset()
    training = Training(small_disk, server.lm)
    assert training.until(lambda _, progress: progress.journal >= replies)
    ballast = small_disk / "runs" / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    assert training.wait() == 1, training.said
    assert "free space on the disk of" in training.said and "internal" not in training.said
    asked = server.stats()
    assert asked["replies"] == progress_of(small_disk).journal
    ballast.unlink()
    assert Training(small_disk, server.lm).wait() == 0
    assert server.stats()["repeated"] == 0
    assert_as_if_nothing_had_happened(small_disk, whole[0])
    assert not list((small_disk / "runs").rglob("*reserve*"))


NO_RUN = (
    ("eval", "last", "--split", "train", "--samples", "3"),
    ("distill", "last", "--fresh", "8"),
    ("compare", "last", "last", "--split", "train"),
)
"""Work that is no run, on a run whose settings say `cache = false`."""


@pytest.fixture(scope="module")
def trained(server: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert Training(folder, server.lm).wait() == 0
    return folder


@pytest.mark.parametrize("words", NO_RUN, ids=lambda words: words[0])
def test_work_that_is_no_run_goes_on_where_it_was_killed(
    words: tuple[str, ...], server: Served, trained: Path
) -> None:
    """Without a cache as well; what was finished is asked anew, and leaves nothing behind."""
    server.reset()
    whole = typed(trained, *words)
    assert whole.wait(60) == 0
    asked = server.stats()["replies"] - server.stats()["repeated"]
    assert server.stats()["repeated"] == 0 and asked > 60

    server.reset()
    killed = typed(trained, *words)
    while killed.poll() is None and server.stats()["replies"] < asked // 2:
        time.sleep(0.002)
    killed.kill()
    assert killed.wait() != 0, "it was too quick"
    time.sleep(SETTLE_S)
    [file] = trained.rglob("*.unfinished/*/journal.sqlite")
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        (kept,) = db.execute("SELECT COUNT(*) FROM journal").fetchone()
    pending = server.stats()["replies"] - kept
    assert typed(trained, *words).wait(60) == 0
    stats = server.stats()
    assert stats["replies"] - stats["repeated"] == asked
    assert stats["repeated"] <= pending <= 2 * IN_FLIGHT, "what was there was paid for once more"

    assert not list(trained.rglob("*.unfinished/*"))
    assert typed(trained, *words).wait(60) == 0
    assert server.stats()["repeated"] >= asked, "cache = false keeps nothing of what was finished"
