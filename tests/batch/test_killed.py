"""A batch in a process of its own that dies in the middle: nothing is lost or paid for twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.batch import AT_ONCE, paid_again, prepare, session
from tests.batch.rows import answering, read_lines, write_rows
from tests.cli.invoked import served

pytestmark = pytest.mark.slow


def test_a_batch_that_was_killed_twice_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    prepare(whole, 2000)
    prepare(killed, 2000)
    assert not session(whole).killed
    assert session(killed, kill_after=500).killed
    assert session(killed, kill_after=1200).killed
    assert (killed / "out.jsonl.part").is_dir() and not (killed / "out.jsonl").exists()
    assert not session(killed).killed
    assert (killed / "out.jsonl").read_bytes() == (whole / "out.jsonl").read_bytes()
    assert paid_again(killed) <= 2 * AT_ONCE, "more than what was in flight"
    assert not list(killed.glob("*.part"))


def test_ctrl_c_keeps_what_is_answered_and_the_same_command_goes_on(work: Path) -> None:
    write_rows(work / "in.jsonl", 300)
    server, answers = answering(delay=0.05)
    with served(server):
        spec = ("--lm", server.spec, "--set", "concurrency=4", "--set", "cache=false")
        command = ["-m", "promptcodebook.cli", "batch", "p.json", "in.jsonl", "out.jsonl", *spec]
        environment = {**os.environ, "HOME": str(work)}
        first = subprocess.Popen(
            [sys.executable, *command], cwd=work, env=environment, stderr=subprocess.PIPE, text=True
        )
        until = time.monotonic() + 120
        while server.calls < 60:
            assert time.monotonic() < until and first.poll() is None
            time.sleep(0.02)
        first.send_signal(signal.SIGINT)
        _, err = first.communicate(timeout=120)
        assert first.returncode == 130 and "continues from here" in err, err
        answers.delay = 0.0
        done = subprocess.run([sys.executable, *command], cwd=work, env=environment, timeout=240)
    assert done.returncode == 0
    rows = read_lines(work / "out.jsonl")
    assert [row["n"] for row in rows] == list(range(300)) and not any(r["error"] for r in rows)
    assert server.calls == 600, "what was in flight came home and was kept"
