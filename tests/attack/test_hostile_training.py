"""A whole run against a hostile server, and runs that are born at once."""

import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promptcodebook.base.sqlite import unpack
from promptcodebook.errors import StoreError
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.store.runs import find_run, list_runs
from tests.build.cli import pco, served
from tests.build.project import QUICK, folder  # noqa: F401
from tests.build.server import Server, Step, fails, pours, raw, says

KEY = "sk-hostile-0123456789"


def echo(status: int) -> Step:
    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        heard = json.dumps(dict(request.headers))
        reply = says(heard) if status == 200 else fails(status, heard)
        return await reply(request, body)

    return step


def everything_in(run: Path) -> Iterator[str]:
    """All text of a run's folder, what is packed unpacked."""
    for file in run.iterdir():
        yield file.read_bytes().decode("latin-1")
    with closing(sqlite3.connect(run / "run.sqlite")) as db:
        for (table,) in db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall():
            for row in db.execute(f"SELECT * FROM {table}"):
                for cell in row:
                    try:
                        yield str(unpack(cell)) if isinstance(cell, bytes) else str(cell)
                    except StoreError:  # a key, not a value
                        continue


HOSTILE = {
    "echo": echo(200),
    "echo in refusals": echo(400),
    "echo in errors": echo(500),
    "HTML": raw(b"<html>sign in</html>"),
    "endless": pours(b" " * 65536, 10**9),
    "thoughts": says("<think></think>" * 100_000),
    "noise": says('{"score": {' + "[1,{" * 24_000),
}


@pytest.mark.parametrize("step", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_run_against_a_hostile_server_ends_in_words_and_without_the_key(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    step: Step,
) -> None:
    monkeypatch.setenv("PCO_API_KEY", KEY)
    server = Server()
    server.default = step
    with served(server):
        args = ("train", "--lm", server.spec, "--set", "retries=0", *QUICK)
        result = pco(*args, cwd=folder)
    printed = result.out + result.err
    assert result.code in (0, 1) and "Traceback" not in printed and "internal error" not in printed
    assert "pco: error" in result.err or "test split" in result.out
    assert KEY not in printed
    (run,) = list_runs(folder / "runs")
    assert not any(KEY in text for text in everything_in(run.path))


# kill -9 while runs are being made: what is left blocks no later run.

HEADER = Header(id="", created="2026-01-31T15:45:02+00:00", version="0", task="attack")
MAKE = """
import pathlib, sys
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
header = Header(id="", created=sys.argv[2], version="0", task="attack")
print("ready", flush=True)
while True:
    RunStore.create(pathlib.Path(sys.argv[1]), header).close()
"""
KILLS = 12


def test_runs_killed_at_any_moment_of_their_making(tmp_path: Path) -> None:
    draw = random.Random(7)
    left, seen = 0, set[str]()
    for _ in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-c", MAKE, str(tmp_path), HEADER.created],
            stdout=subprocess.PIPE,
            text=True,
        )
        with child:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            time.sleep(draw.uniform(0.0, 0.03))
            child.kill()
        listed = list_runs(tmp_path)
        half_made = {f.name for f in tmp_path.iterdir()} - {run.id for run in listed}
        left += bool(half_made - seen)
        seen |= half_made
        if listed:
            assert find_run(tmp_path, "last").name in {run.id for run in listed}
        assert {run.id for run in list_runs(tmp_path)} >= {run.id for run in listed}
        RunStore.create(tmp_path, HEADER).close()
    assert left, "no kill hit a run that was being made"
