"""What user code prints goes to stderr, and what a library prints on the way nowhere: stdout is for
results, and stderr for what we say."""

from __future__ import annotations

import contextvars
import io
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Literal

_Place = Literal["", "stderr", "nowhere"]
_place: contextvars.ContextVar[_Place] = contextvars.ContextVar("where prints go", default="")


class _Nowhere(io.TextIOBase):
    """Takes everything and keeps nothing."""

    def write(self, s: str, /) -> int:
        return len(s)


class _Stream:
    """Stands in for a standard stream; where its writes go is decided by who writes."""

    def __init__(self, stream: Any, *, out: bool) -> None:
        self.stream = stream
        self._out = out
        self._nowhere = _Nowhere()

    def __getattr__(self, name: str) -> Any:
        place = _place.get()
        if place == "nowhere":
            return getattr(self._nowhere, name)
        aside = place == "stderr" and self._out and sys.stderr is not None
        return getattr(sys.stderr if aside else self.stream, name)


class _Lent:
    """How many have lent a standard stream away at the moment; the last one puts it back."""

    def __init__(self, name: Literal["stdout", "stderr"]) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._count = 0

    @contextmanager
    def lend(self) -> Generator[None]:
        with self._lock:
            self._count += 1
            stream = getattr(sys, self._name)
            if stream is not None and not isinstance(stream, _Stream):
                setattr(sys, self._name, _Stream(stream, out=self._name == "stdout"))
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                stream = getattr(sys, self._name)
                if self._count == 0 and isinstance(stream, _Stream):
                    setattr(sys, self._name, stream.stream)


_stdout, _stderr = _Lent("stdout"), _Lent("stderr")


@contextmanager
def print_aside() -> Generator[None]:
    """Within it, what this thread or task writes to stdout goes to stderr; what others write, and
    what programs that it starts write, does not."""
    with _stdout.lend(), _printing_to("stderr"):
        yield


@contextmanager
def hush() -> Generator[None]:
    """Within it, what this thread or task writes to stdout or stderr goes nowhere."""
    with _stdout.lend(), _stderr.lend(), _printing_to("nowhere"):
        yield


@contextmanager
def _printing_to(place: _Place) -> Generator[None]:
    before = _place.get()
    _place.set(place)
    try:
        yield
    finally:
        _place.set(before)
