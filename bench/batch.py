"""A batch of 100,000 rows, killed twice and gone on with, beside one that nothing interrupts.

A policy without an encoder and with verbatim composition (one call a row) answers rows in a process
of its own; the model stands in that process and answers at once, so that what is measured is the
house. Peak memory is the process's own high-water mark, read while it runs. Goals: equal bytes, no
reply paid for again but those in flight at a kill, and memory that does not grow with the rows.

    python -m bench.batch          (PCO_ROWS=10000 for a shorter one)
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, shown
from promptcodebook.assemble import Sources
from promptcodebook.calls import Reply, Request, Usage
from promptcodebook.deploy.batch.checkpoint import checkpoint_of
from promptcodebook.deploy.batch.session import BatchJob, BatchSession
from promptcodebook.policy.file import read_policy_file
from tests.build.policy import file_of

ROWS = int(os.environ.get("PCO_ROWS", "100000"))
FEW = 0.1
"""Share of the rows that memory is compared with."""
AT_ONCE = 64
GOAL_MB = 200.0
GOAL_RATIO = 1.15
_LONGEST_S = 3600.0


@dataclass(frozen=True, slots=True)
class Session:
    """One process: how long, its peak resident MB, and whether it was killed."""

    seconds: float
    peak_mb: float
    killed: bool


class Instant:
    """Answers at once, always alike, and writes down what it was asked: one line a call."""

    def __init__(self, log: Path) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def __call__(self, request: Request) -> Reply:
        question = request.messages[-1].content
        os.write(self._log, f"{json.dumps(question)}\n".encode())
        text = " ".join([question, *[hashlib.sha256(question.encode()).hexdigest()] * 5])
        return Reply(text, usage=Usage(1, 400, 120, 0, 0.001, 0.2))


def asked(folder: Path) -> Counter[str]:
    """How often each question was asked, in all sessions."""
    with (folder / "asked").open() as file:
        return Counter(file)


def prepare(folder: Path, rows: int) -> None:
    """A folder with a policy and IN."""
    folder.mkdir()
    policy = file_of(column="question", compose="verbatim")
    # Without an encoder every input has the instincts of highest success: one call a row.
    policy.model_copy(update={"encoder": ""}).save(folder / "p.json")
    with (folder / "in.jsonl").open("w") as file:
        for n in range(rows):
            row = {"n": n, "question": f"question {n}", "more": "text of the row " * 12}
            file.write(json.dumps(row) + "\n")


def work(folder: Path) -> None:
    """What the child does: the batch, from wherever it stands."""
    file = read_policy_file(folder / "p.json")
    config = file.settings(above={"lm": "own", "cache": False, "concurrency": AT_ONCE})
    order = BatchJob(folder / "in.jsonl", folder / "out.jsonl", "the same again")
    batch = BatchSession(order, file, config)
    try:
        sources = Sources(lm=Instant(folder / "asked"))
        asyncio.run(batch.run(file, config, sources, lambda: None))
    finally:
        batch.close()


def session(folder: Path, kill_after: int | None = None) -> Session:
    """A child process; killed with SIGKILL once so many results are on disk."""
    begun, peak = time.monotonic(), 0.0
    child = subprocess.Popen([sys.executable, "-m", "bench.batch", str(folder)])
    rows = checkpoint_of(folder / "out.jsonl") / "rows.jsonl"
    # A line is of one length here, within a few bytes: no need to count them.
    while child.poll() is None:
        peak = max(peak, _peak_mb(child.pid))
        if kill_after is not None and _lines(rows) >= kill_after:
            child.send_signal(signal.SIGKILL)
            child.wait()
        if time.monotonic() - begun > _LONGEST_S:
            child.kill()
        time.sleep(0.05)
    return Session(time.monotonic() - begun, peak, child.returncode == -signal.SIGKILL)


def _lines(rows: Path) -> int:
    try:
        with rows.open("rb") as file:
            first = len(file.readline())
        return rows.stat().st_size // first if first else 0
    except OSError:
        return 0


def _peak_mb(process: int) -> float:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    peak = next((line for line in status.splitlines() if line.startswith("VmHWM")), "0 0")
    return int(peak.split()[1]) / 1024


def paid_again(folder: Path) -> int:
    """Calls for what had been asked before."""
    return sum(count - 1 for count in asked(folder).values())


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as temporary:
        few, whole, killed = (Path(temporary) / name for name in ("few", "whole", "killed"))
        prepare(few, int(FEW * ROWS))
        prepare(whole, ROWS)
        prepare(killed, ROWS)
        small, large = session(few), session(whole)
        kills = [session(killed, kill_after=at) for at in (ROWS // 3, 2 * ROWS // 3)]
        last = session(killed)
        equal = (whole / "out.jsonl").read_bytes() == (killed / "out.jsonl").read_bytes()
        again, parts = paid_again(killed), list(killed.glob("*.part"))
    peak = max(each.peak_mb for each in (large, *kills, last))
    return [
        Figure("kills that hit a batch under way", sum(k.killed for k in kills), "", 2.0, True),
        Figure("outputs that differ from the uninterrupted one", float(not equal), "", 0.0),
        Figure("calls for what was in flight at a kill", again, "", 2.0 * AT_ONCE),
        Figure("folders left behind", len(parts), "", 0.0),
        Figure(f"peak memory, {ROWS:,} rows", peak, "MB", GOAL_MB),
        Figure(
            f"the same over that of {FEW:.0%} of the rows", peak / small.peak_mb, "x", GOAL_RATIO
        ),
        Figure("rows a second, uninterrupted", ROWS / large.seconds, "/s"),
    ]


def main(arguments: Sequence[str]) -> int:
    """The child's work when told a folder, else all of it."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        return shown(measure, str(__doc__))
    work(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
