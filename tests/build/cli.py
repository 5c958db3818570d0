"""`pco` run within the test's own process, and a chat server in a thread beside it."""

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from promptcodebook import types
from promptcodebook.calls import Usage
from promptcodebook.cli import app
from promptcodebook.progress import Began, Phase, ProgressEvent, Spent, StepDone, ValidationDone
from tests.build.server import Server

_Server = TypeVar("_Server", bound=Server)


@dataclass(frozen=True)
class Result:
    """What a command returned and printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def error(self, code: int, *parts: str) -> str:
        """Holds the result to be one clear error: the code, one message with a hint, no traceback.

        `parts` must all stand in it.
        """
        assert self.code == code, (self.code, self.err, self.out)
        assert self.err.count("pco: ") == 1, self.err
        assert "\n  next: " in self.err, self.err
        assert "Traceback" not in self.err and "internal error" not in self.err
        for part in parts:
            assert part in self.err, (part, self.err)
        return self.err


class Terminal(io.StringIO):
    """A text that a person types, or a screen."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def pco(
    *args: str,
    cwd: Path,
    stdin: str | io.StringIO = "",
    codepage: str = "",
    out: io.StringIO | None = None,
) -> Result:
    """The command line as the console script runs it, on a terminal of that code page; what it
    prints goes to `out`."""
    out, err = out or io.StringIO(), io.StringIO()
    if codepage:
        out = io.TextIOWrapper(io.BytesIO(), codepage)
    before = sys.argv, sys.stdin
    typed = io.StringIO(stdin) if isinstance(stdin, str) else stdin
    sys.argv, sys.stdin = ["pco", *args], typed
    try:
        with (
            contextlib.chdir(cwd),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = app.guard()
    finally:
        sys.argv, sys.stdin = before
    out.seek(0)
    return Result(code, out.read(), err.getvalue())


@contextlib.contextmanager
def running(
    *words: str, module: str = "promptcodebook.cli", **more: Any
) -> Iterator[subprocess.Popen[str]]:
    """`pco` as a process of its own, which is gone at the end whatever happens."""
    pipe, command = subprocess.PIPE, [sys.executable, "-m", module, *words]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **more) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def serving(folder: Path, *args: str, **env: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The process of `pco serve` with these words, and what it says of itself."""
    words = ("serve", *args, "--port", "0", "--json")
    with running(*words, cwd=folder, env={**os.environ, **env}) as process:
        assert process.stdout is not None
        yield process, json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")


@contextlib.contextmanager
def served(server: _Server) -> Iterator[_Server]:
    """The server on a loop of its own, so that a command that blocks can call it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(5)
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


ESC = "\x1b"


def began(size: int, simulated: bool = True) -> Began:
    spec = "simulated" if simulated else "http://localhost:8000/v1#m"
    return Began("20260131-x", "runs/20260131-x", 20, 0, size, {"executor": spec}, simulated)


def step(index: int, size: int) -> types.Step:
    rollouts = [
        types.Rollout("a", route=types.Route((0, 1)), reward=index / 20),
        types.Rollout("b", failure=types.Failure("execute", "CallTimeout", "slow")),
    ]
    instincts = tuple(types.Instinct(f"Instinct {k} says {ESC}[31mred\x07.") for k in range(size))
    return types.Step(
        index=index,
        epoch=index,
        epsilon=0.5,
        traces=tuple(types.Trace(r) for r in rollouts),
        rewrites=(),
        parameters=types.Parameters("e", "g", types.Codebook(instincts), "c"),
        ema=(0.0,) * size,
        success=(0.25,) * size,
        selected=tuple((index + 1) * (k < 2) for k in range(size)),
    )


def script(size: int = 16, steps: int = 12) -> Iterator[ProgressEvent]:
    """The events of a run that is validated at last."""
    yield began(size)
    yield ValidationDone(
        -1, types.Evaluation("step 0", "val", (types.Rollout("v", reward=0.25),)), best=True
    )
    for index in range(steps):
        yield StepDone(step(index, size), 3.0)
        spent = {"executor": Usage(10, 900, 100, 0, None), "encoder": Usage(5, 90, 10, 0, 0.2)}
        yield Spent(spent, {"rate_limited": 3, "cache_misses": 0})
    yield Phase("validating step 12", 0, 8)
    yield Phase("validating step 12", 4, 8)
