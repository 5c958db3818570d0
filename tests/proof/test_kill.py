"""Kill -9 at any moment, resume: the same policy file, and nothing on disk is paid for again.
`bench/kill.py` says how the proof works."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.kill import (
    IN_FLIGHT,
    LATENCY,
    ROUTED,
    Progress,
    Training,
    When,
    after,
    assert_nothing_was_paid_twice,
    killed_and_resumed,
    left_by,
    progress_of,
    settled,
    typed,
    uninterrupted,
)
from promptcodebook.base.randomness import keyed_random
from promptcodebook.paper.experiments.experiment import read_run
from tests.build.proof_server import Served, served
from tests.build.runs import Finished

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
    """On a busy machine the run may be past the moment before the kill comes: it is tried again."""
    for number in range(5):
        folder = tmp_path / str(number)
        kills = killed_and_resumed(server, folder, [moment])
        assert_nothing_was_paid_twice(server, folder, kills)
        assert_as_if_nothing_had_happened(folder, whole[0])
        if kills and moment(0.0, kills[0].progress):
            return
    pytest.fail("the moment was missed five times")


def test_ctrl_c_keeps_what_is_in_flight_and_says_how_to_go_on(
    server: Served, whole: tuple[Finished, float], tmp_path: Path
) -> None:
    server.reset()
    training = Training(tmp_path, server.lm)
    assert training.until(lambda _, progress: progress.events.get("stepped", 0) >= 2)
    training.process.send_signal(signal.SIGINT)
    assert training.wait() == 130
    run = left_by(tmp_path).path.name
    assert f"pco train --resume {run}" in training.stderr
    # Stopping in order loses nothing: each reply that the server gave is on disk.
    assert server.stats()["replies"] == progress_of(tmp_path).journal

    again = Training(tmp_path, server.lm)
    assert again.wait() == 0
    assert server.stats()["repeated"] == 0
    assert_as_if_nothing_had_happened(tmp_path, whole[0])


def test_a_router_that_learned_from_outcomes_survives_two_kills(
    server: Served, tmp_path: Path
) -> None:
    """Early and late: what it learned is read back from the traces; the same policy bytes."""
    server.reset()
    whole = Training(tmp_path / "whole", server.lm, flags=ROUTED)
    assert whole.wait() == 0, whole.stderr
    for stepped in (1, 5):
        training = Training(tmp_path / "killed", server.lm, flags=ROUTED)
        assert training.until(lambda _, p, least=stepped: p.events.get("stepped", 0) >= least)
        training.kill()
        assert stepped <= progress_of(tmp_path / "killed").events.get("stepped", 0) < 8
    rest = Training(tmp_path / "killed", server.lm)
    assert rest.wait() == 0, rest.stderr
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


def test_a_disk_that_fills_up_costs_no_reply_that_was_paid_for(
    server: Served, whole: tuple[Finished, float], small_disk: Path
) -> None:
    """Those in flight when it was full are kept as well, in room that was set aside."""
    server.reset()
    training = Training(small_disk, server.lm)
    assert training.until(lambda _, progress: progress.journal >= 120)
    ballast = small_disk / "runs" / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    assert training.wait() == 1, training.stderr
    assert "free space on the disk of" in training.stderr and "internal" not in training.stderr
    asked = server.stats()
    assert asked["replies"] == progress_of(small_disk).journal
    ballast.unlink()
    assert Training(small_disk, server.lm).wait() == 0
    assert server.stats()["repeated"] == 0
    assert_as_if_nothing_had_happened(small_disk, whole[0])
    assert not list((small_disk / "runs").rglob("*reserve*"))


_EVAL = "eval last --split train --samples 3"
# Work that is no run, on a run whose settings say `cache = false`, and the share of its calls that
# are answered when it is killed.
NO_RUN = (
    *((_EVAL, share) for share in (0.1, 0.5, 0.9)),
    *((f"{_EVAL} --set cache=true", share) for share in (0.2, 0.7)),
    ("distill last --fresh 8", 0.5),
    ("compare last last --split train", 0.5),
)


@pytest.fixture(scope="module")
def trained(server: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert Training(folder, server.lm).wait() == 0
    return folder


@pytest.mark.parametrize(("asked_for", "share"), NO_RUN)
def test_work_that_is_no_run_goes_on_where_it_was_killed(
    asked_for: str, share: float, server: Served, trained: Path
) -> None:
    """What was finished leaves nothing behind but what the cache keeps."""
    words = asked_for.split()
    assert typed(trained, "cache", "clear", "--yes").wait(60) == 0
    server.reset()
    whole = typed(trained, *words)
    assert whole.wait(600) == 0
    asked = server.stats()["replies"] - server.stats()["repeated"]
    assert server.stats()["repeated"] == 0 and asked > 60

    assert typed(trained, "cache", "clear", "--yes").wait(60) == 0
    server.reset()
    killed = typed(trained, *words)
    while killed.poll() is None and server.stats()["replies"] < share * asked:
        time.sleep(0.002)
    killed.kill()
    assert killed.wait() != 0, "it was too quick"
    left = settled(server)
    [file] = trained.rglob("*.unfinished/*/journal.sqlite")
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
        (kept,) = db.execute("SELECT COUNT(*) FROM journal").fetchone()
    pending = left["replies"] - kept
    assert typed(trained, *words).wait(600) == 0
    stats = server.stats()
    assert stats["replies"] - stats["repeated"] == asked
    assert stats["repeated"] <= pending <= 2 * IN_FLIGHT, "what was there was paid for once more"

    assert not list(trained.rglob("*.unfinished/*"))
    assert typed(trained, *words).wait(600) == 0
    again = server.stats()["repeated"] - stats["repeated"]
    assert again == (0 if "cache=true" in words else asked), "only the cache keeps what is finished"
