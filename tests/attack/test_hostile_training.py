"""A whole run against a server that says back what it was sent, or turns bad on the way."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promptcodebook.base.sqlite import unpack
from promptcodebook.errors import StoreError
from promptcodebook.store.runs import list_runs
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
