"""A batch in a process that a test kills: `python -m tests.build.killed_batch FOLDER`."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from promptcodebook.assemble import Sources
from promptcodebook.calls import Reply, Request, Usage
from promptcodebook.deploy.batch.checkpoint import checkpoint_of
from promptcodebook.deploy.batch.session import BatchJob, BatchSession
from promptcodebook.policy.file import read_policy_file
from tests.build.policy import file_of

AT_ONCE = 64


class Instant:
    """Answers at once, and writes down what it was asked: one line a call."""

    def __init__(self, log: Path) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def __call__(self, request: Request) -> Reply:
        question = request.messages[-1].content
        os.write(self._log, f"{json.dumps(question)}\n".encode())
        return Reply(f"An answer to {question}", usage=Usage(1, 400, 120, 0, 0.001, 0.2))


def prepare(folder: Path, rows: int) -> None:
    """A folder with a policy and IN."""
    folder.mkdir()
    policy = file_of(column="question", compose="verbatim")
    # Without an encoder every input has the instincts of highest success: one call a row.
    policy.model_copy(update={"encoder": ""}).save(folder / "p.json")
    asked = (json.dumps({"n": n, "question": f"question {n}"}) for n in range(rows))
    (folder / "in.jsonl").write_text("\n".join(asked), "utf-8")


def work(folder: Path) -> None:
    """What the process does: the batch, from wherever it stands."""
    file = read_policy_file(folder / "p.json")
    config = file.settings(above={"lm": "own", "cache": False, "concurrency": AT_ONCE})
    batch = BatchSession(BatchJob(folder / "in.jsonl", folder / "out.jsonl", "again"), file, config)
    try:
        sources = Sources(lm=Instant(folder / "asked"))
        asyncio.run(batch.run(file, config, sources, lambda: None))
    finally:
        batch.close()


def session(folder: Path, kill_after: int = sys.maxsize) -> int:
    """The exit code of such a process; SIGKILL ends it once that number of results is on disk."""
    rows = checkpoint_of(folder / "out.jsonl") / "rows.jsonl"
    child = subprocess.Popen([sys.executable, "-m", __name__, str(folder)])
    while child.poll() is None:
        if rows.is_file() and rows.read_bytes().count(b"\n") >= kill_after:
            child.kill()
        time.sleep(0.02)
    return child.returncode


def paid_again(folder: Path) -> int:
    """Calls for what had been asked before, in all sessions."""
    with (folder / "asked").open() as file:
        return sum(count - 1 for count in Counter(file).values())


if __name__ == "__main__":
    work(Path(sys.argv[1]))
