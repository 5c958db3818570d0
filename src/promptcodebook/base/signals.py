"""Signals that end a process count as Ctrl-C. Apart from `base/sync.py`: it imports no asyncio."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_signals() -> Generator[None]:
    """Within it SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, and SIGINT too where a
    shell started us in the background and had it ignored. What somebody else handles, or chose to
    ignore (nohup: SIGHUP), stays as it is. Outside the main thread it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken_from = {"SIGTERM": signal.SIG_DFL, "SIGHUP": signal.SIG_DFL, "SIGINT": signal.SIG_IGN}
    numbers = {
        getattr(signal, name): before
        for name, before in taken_from.items()
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) is before
    }
    for number in numbers:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, before in numbers.items():
            signal.signal(number, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if signal.Signals(number).name == "SIGHUP":
        # A closing terminal says it more than once: that is no second Ctrl-C.
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
