"""A terminal that closes, and a run that nohup shields from it."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from promptcodebook.store.runs import list_runs
from tests.cli.conftest import QUICK
from tests.cli.invoked import pco
from tests.cli.test_process import PCO, interrupted

pytestmark = pytest.mark.slow
TRAIN = ("train", "--lm", "simulated?latency=0.02", *QUICK)


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """A child of a test run under nohup would ignore hanging up, as it inherits that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def ended(folder: Path) -> str:
    (run,) = pco("runs", "list", "--json", cwd=folder).json
    return run["ended"]


def test_a_terminal_that_closes_stops_the_run_in_order(folder: Path) -> None:
    for view in ((), ("--plain",)):
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.environ["TERM"] = "xterm"
            os.execv(PCO[0], [*PCO, *TRAIN, *view])
        until = time.monotonic() + 30
        while not any(run.step >= 0 for run in list_runs(folder / "runs")):
            assert time.monotonic() < until, "it did not start"
            while select.select([terminal], [], [], 0.05)[0]:
                os.read(terminal, 65536)
        os.close(terminal)  # whoever writes to it from now on gets an error
        until = time.monotonic() + 20
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            assert time.monotonic() < until, "it did not end"
            time.sleep(0.05)
        assert ended(folder) == "interrupted"
        assert pco("train", "--resume", "last", cwd=folder).code == 0
        assert pco("runs", "rm", "last", "--yes", cwd=folder).code == 0


def test_a_hang_up_stops_in_order_and_nohup_shields_from_it(folder: Path) -> None:
    code, stderr = interrupted(folder, *TRAIN, until="step 1 of ", by=signal.SIGHUP)
    assert code == 130, stderr
    assert ended(folder) == "interrupted"
    pco("runs", "rm", "last", "--yes", cwd=folder)

    shell = 'nohup "$@" & echo $!; wait $!; echo "code $?"'
    process = subprocess.Popen(
        ["/bin/sh", "-c", shell, "sh", *PCO, *TRAIN],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    pid = int(process.stdout.readline())
    for line in process.stderr:
        if "step 1 of " in line:
            break
    os.kill(pid, signal.SIGHUP)
    time.sleep(0.3)
    os.kill(pid, 0)  # it is still there
    os.kill(pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert "code 130" in out and "interrupted by the user" in err
    assert ended(folder) == "interrupted"
