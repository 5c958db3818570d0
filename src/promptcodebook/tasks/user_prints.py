"""What user code prints goes to stderr: stdout is for results."""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

__all__ = ["print_aside"]

_aside: contextvars.ContextVar[bool] = contextvars.ContextVar("prints aside", default=False)


class _Stdout:
    """Stands in for `sys.stdout`: stderr to those who print aside, the stream itself to others."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        aside = _aside.get() and sys.stderr is not None
        return getattr(sys.stderr if aside else self.stream, name)


class _Lent:
    """How many have lent `sys.stdout` away at the moment; the last one puts it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def lend(self) -> None:
        with self._lock:
            self._count += 1
            if not isinstance(sys.stdout, _Stdout):
                sys.stdout = cast("Any", _Stdout(sys.stdout))

    def give_back(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0 and isinstance(sys.stdout, _Stdout):
                sys.stdout = sys.stdout.stream


_stdout = _Lent()


@contextmanager
def print_aside() -> Generator[None]:
    """Within it, what this thread or task writes to stdout goes to stderr; what others write, and
    what programs that it starts write, does not."""
    _stdout.lend()
    before = _aside.get()
    _aside.set(True)
    try:
        yield
    finally:
        _aside.set(before)
        _stdout.give_back()
