"""The worker process's own side: reads requests from stdin, calls the function, answers on stdout.

One JSON object a line. Request: {"function": "module:function", "args": [...], "limit": seconds of
processor time, "wait": seconds in all}. Answers: {"ready": true} once the function is imported,
then {"value": ...} or {"error": "..."}.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import IO, Any, cast

_MEMORY_BYTES = 4 << 30
_ORPHAN_GRACE_S = 2.0


def serve() -> None:
    """Answer requests until stdin ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="ascii")
    # What a called function prints must not mix with the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _limit_memory()
    with answers:
        for line in sys.stdin.buffer:
            request = cast("dict[str, Any]", json.loads(line))
            _answer(request, answers)


def _answer(request: dict[str, Any], answers: IO[str]) -> None:
    try:
        module, _, name = str(request["function"]).partition(":")
        function = getattr(importlib.import_module(module), name)
        _tell(answers, '{"ready": true}')
        _die_after(float(request["limit"]), float(request["wait"]) + _ORPHAN_GRACE_S)
        line = json.dumps({"value": function(*request["args"])})
    except Exception as error:  # RecursionError and MemoryError too: the caller gets them
        line = json.dumps({"error": f"{type(error).__name__}: {error}"[:500]})
    _die_after(0.0, 0.0)
    _tell(answers, line)


def _tell(answers: IO[str], line: str) -> None:
    answers.write(line + "\n")
    answers.flush()


def _die_after(busy_s: float, wait_s: float) -> None:
    """Ask the system to end this process after so much of processor time, or of any: should the
    parent be gone, nothing else would. 0 = never."""
    import signal

    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, busy_s)
        signal.setitimer(signal.ITIMER_REAL, wait_s)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    serve()
