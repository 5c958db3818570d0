"""Functions that Python cannot interrupt, run in processes that are killed at a time limit.

A regular expression can take exponential time and a SymPy simplification may never end; a thread
can stop neither. Where the system counts processor time, that is the limit, so that a score does
not depend on the machine's other work.

A process runs this module. Both sides write one JSON object a line. Request: {"function":
"module:function", "args": [...], "limit": seconds of processor time, "wait": seconds in all}.
Answers: {"value": true} once the function is imported, then {"value": ...} or {"error": "..."}."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from queue import LifoQueue
from typing import IO, Any, cast

# Limit for starting a process and importing the function's module; not part of a call's limit.
_START_S = 30.0
# How many times its limit a call may take in all, waiting included.
_PATIENCE = 5.0 if hasattr(signal, "setitimer") else 1.0
_ORPHAN_GRACE_S = 2.0
_MEMORY_BYTES = 4 << 30
# The environment of a worker process: no API key is in it.
_PASSED = ("HOME", "LANG", "LC_ALL", "NLTK_DATA", "PATH", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR")


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a call came to: `value`, or `timed_out`, or why it failed (`error`, else empty)."""

    value: object = None
    timed_out: bool = False
    error: str = ""


class Worker:
    """`size` processes, started when needed, for any number of callers from threads or a loop."""

    def __init__(self, size: int = 2) -> None:
        self._free = LifoQueue[_Process]()
        for process in [_Process() for _ in range(size)]:
            self._free.put(process)
            weakref.finalize(self, process.end)

    def call(self, function: str, args: Sequence[object], limit_s: float) -> CallResult:
        """`function` ("module:function") of JSON-able `args`, its return value JSON-able too.
        `limit_s` is processor time where the system counts it (else time), from when the function
        begins; in all it may take five times as long. The wait for a turn is not counted. An
        exception in the function or the death of its process is the result's `error`."""
        process = self._free.get()
        try:
            return process.call(function, args, limit_s)
        except BaseException:
            process.end()  # interrupted half-way: an answer may still be on its way
            raise
        finally:
            self._free.put(process)


@cache
def shared_worker() -> Worker:
    """The one of this process, for pure functions that have no place to be handed a worker."""
    return Worker()


class _Process:
    child: subprocess.Popen[bytes] | None = None

    def call(self, function: str, args: Sequence[object], limit_s: float) -> CallResult:
        if self.child is None or self.child.poll() is not None:
            self.end()
            path = os.pathsep.join(p for p in sys.path if p)
            passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
            self.child = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the caller: a call in progress continues
                env={**passed, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            )
        wait_s = _PATIENCE * limit_s
        asked = {"function": function, "args": list(args), "limit": limit_s, "wait": wait_s}
        ready = self._read(self.child, _START_S, json.dumps(asked).encode("ascii") + b"\n")
        return self._read(self.child, wait_s) if ready.value is True else ready

    def _read(
        self, child: subprocess.Popen[bytes], limit_s: float, request: bytes = b""
    ) -> CallResult:
        """One answer, after sending `request`; the process is killed when it takes longer."""
        assert child.stdin is not None and child.stdout is not None
        late = threading.Event()

        def expire() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(limit_s, expire)
        timer.daemon = True
        timer.start()
        line = b""
        try:
            with suppress(BrokenPipeError):  # it died
                child.stdin.write(request)
                child.stdin.flush()
                line = child.stdout.readline()
        finally:
            timer.cancel()
            timer.join()  # one that has just expired must not kill the next call's process
        if late.is_set() or not line.endswith(b"\n"):
            self.end()
        if line.endswith(b"\n"):
            answer = cast("dict[str, Any]", json.loads(line))
            return CallResult(answer.get("value"), error=answer.get("error", ""))
        # The system ends a process at the limit of its processor time.
        spent = getattr(signal, "SIGPROF", None)
        if late.is_set() or (spent and child.returncode == -spent):
            return CallResult(timed_out=True)
        return CallResult(error=f"the worker process exited with code {child.returncode}")

    def end(self) -> None:
        """Kill and reap the child and close its pipes; for the caller that holds it."""
        if self.child is None:
            return
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            with suppress(BrokenPipeError):  # unsent bytes of a request it did not live to read
                if pipe is not None:
                    pipe.close()
        self.child = None


def _serve() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="ascii")
    # What a called function prints must not mix with the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with suppress(ImportError):  # not a POSIX system
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MEMORY_BYTES)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    with answers:
        for line in sys.stdin.buffer:
            _answer(cast("dict[str, Any]", json.loads(line)), answers)


def _answer(request: dict[str, Any], answers: IO[str]) -> None:
    try:
        module, _, name = str(request["function"]).partition(":")
        function = getattr(importlib.import_module(module), name)
        answers.write('{"value": true}\n')
        answers.flush()
        _die_after(float(request["limit"]), float(request["wait"]) + _ORPHAN_GRACE_S)
        line = json.dumps({"value": function(*request["args"])})
    except Exception as error:  # RecursionError and MemoryError too: the caller gets them
        line = json.dumps({"error": f"{type(error).__name__}: {error}"[:500]})
    _die_after(0.0, 0.0)
    answers.write(line + "\n")
    answers.flush()


def _die_after(busy_s: float, wait_s: float) -> None:
    """Ends this process after so much processor time, or time (0 = never), if no parent does."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, busy_s)
        signal.setitimer(signal.ITIMER_REAL, wait_s)


if __name__ == "__main__":
    _serve()
