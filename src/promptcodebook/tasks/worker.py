"""Functions that Python cannot interrupt, run in processes that are killed at a time limit.

A regular expression can take exponential time and a SymPy simplification may never end; a thread
can stop neither. A `Worker` keeps a few processes, gives each one call at a time over pipes (JSON
lines), and kills and replaces one that is late. Where the system counts processor time, that is the
limit, so that a score does not depend on the machine's other work.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

_START_S = 30.0
"""Limit for starting a process and importing the function's module; not part of a call's limit."""
_PATIENCE = 5.0 if hasattr(signal, "setitimer") else 1.0
"""How many times its limit a call may take in all, waiting included."""

_PASSED = ("HOME", "LANG", "LC_ALL", "NLTK_DATA", "PATH", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR")
"""The environment of a worker process: no API key is in it."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a call came to: `value`, or `timed_out`, or why it failed (`error`, else empty)."""

    value: object = None
    timed_out: bool = False
    error: str = ""

    @property
    def done(self) -> bool:
        return not self.timed_out and not self.error


class _Process:
    """One child process; its pipes belong to one caller at a time."""

    def __init__(self) -> None:
        path = os.pathsep.join(p for p in sys.path if p)
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        self.usable = True
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-m", "promptcodebook.tasks.worker_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the caller: a call in progress continues
            env={**passed, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def call(self, function: str, args: Sequence[object], limit_s: float) -> CallResult:
        wait_s = _PATIENCE * limit_s
        asked = {"function": function, "args": list(args), "limit": limit_s, "wait": wait_s}
        ready = self._read(_START_S, json.dumps(asked))
        return self._read(wait_s) if ready.value is True else ready

    def _read(self, limit_s: float, request: str = "") -> CallResult:
        """One answer, after sending `request` if there is one; killed when it takes longer."""
        late = threading.Event()

        def expire() -> None:
            late.set()
            self.child.kill()

        timer = threading.Timer(limit_s, expire)
        timer.daemon = True
        timer.start()
        try:
            line = self._exchange(request)
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            self.end()
            # The system ends a process at the limit of its processor time.
            spent = getattr(signal, "SIGPROF", None)
            if late.is_set() or (spent and self.child.returncode == -spent):
                return CallResult(timed_out=True)
            return CallResult(error=f"the worker process ended with code {self.child.returncode}")
        if late.is_set():
            self.end()
        answer = cast("dict[str, Any]", json.loads(line))
        return CallResult(answer.get("value", answer.get("ready")), error=answer.get("error", ""))

    def _exchange(self, request: str) -> bytes:
        assert self.child.stdin is not None and self.child.stdout is not None
        try:
            if request:
                self.child.stdin.write(request.encode("ascii") + b"\n")
                self.child.stdin.flush()
            return self.child.stdout.readline()
        except (BrokenPipeError, ValueError):  # it died, or was ended by `close`
            return b""

    @property
    def alive(self) -> bool:
        return self.usable and self.child.poll() is None

    def end(self) -> None:
        """Kill and reap the child and close its pipes; for the caller that holds it."""
        self.usable = False
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            with suppress(BrokenPipeError):  # unsent bytes of a request it did not live to read
                if pipe is not None:
                    pipe.close()


class Worker:
    """`size` processes, started when needed, for any number of callers from threads or a loop."""

    def __init__(self, size: int = 2) -> None:
        self._free = threading.BoundedSemaphore(size)
        self._size = size
        self._lock = threading.Lock()
        self._idle = list[_Process]()
        self._busy = set[_Process]()
        self._threads: ThreadPoolExecutor | None = None
        self._finalizer = weakref.finalize(self, _end_all, self._idle, self._busy)

    def call(self, function: str, args: Sequence[object], limit_s: float) -> CallResult:
        """`function` ("module:function") of JSON-able `args`, its return value JSON-able too.

        `limit_s` is processor time where the system counts it (else time), from when the function
        begins; in all it may take five times as long. The wait for a turn is not counted.
        An exception in the function or the death of its process is the result's `error`.
        """
        with self._free:
            process = self._take()
            try:
                return process.call(function, args, limit_s)
            except BaseException:
                process.end()  # interrupted half-way: an answer may still be on its way
                raise
            finally:
                with self._lock:
                    self._busy.discard(process)
                    if process.alive:
                        self._idle.append(process)
                    else:
                        process.end()

    async def acall(self, function: str, args: Sequence[object], limit_s: float) -> CallResult:
        """`call` without blocking the event loop."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._size, "worker")
            threads = self._threads
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(threads, self.call, function, args, limit_s)

    def close(self) -> None:
        """End all processes; a call in progress fails, and a later one starts afresh."""
        with self._lock:
            threads, self._threads = self._threads, None
            for process in self._busy:
                process.child.kill()
            while self._idle:
                self._idle.pop().end()
        if threads is not None:
            threads.shutdown(wait=True)

    def _take(self) -> _Process:
        with self._lock:
            while self._idle and not self._idle[-1].alive:
                self._idle.pop().end()
            process = self._idle.pop() if self._idle else _Process()
            self._busy.add(process)
            return process


def _end_all(idle: list[_Process], busy: set[_Process]) -> None:
    for process in [*idle, *busy]:
        process.end()


@cache
def shared_worker() -> Worker:
    """The one of this process, for pure functions that have no place to be handed a worker."""
    return Worker()
