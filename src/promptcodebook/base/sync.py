"""The one sync façade: it runs a coroutine to its end from ordinary code, in a notebook too, in a
thread with its own event loop. Ctrl-C asks it to stop in order; a second one cancels it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

from promptcodebook.base.signals import stop_signals

_T = TypeVar("_T")
_PATIENCE_S = 5.0  # how long what was cancelled may take to end
# How often the waiting thread looks up. The system may deliver a signal to another thread, which
# wakes no one, and Python handles it in the main thread alone.
_LOOK_UP_S = 0.1


class Relay:
    """Passes Ctrl-C to all who wait in other threads, now or later."""

    def __init__(self) -> None:
        self._count = 0

    def interrupt(self) -> None:
        self._count += 1

    def listen(self) -> Callable[[], bool]:
        """Says once for each Ctrl-C that there was one."""
        heard = 0

        def called() -> bool:
            nonlocal heard
            more = heard < self._count
            heard += more
            return more

        return called


class LoopThread:
    """One loop in a thread of its own for many coroutines, so that what they open outlives each."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._end: asyncio.Future[None] = self.loop.create_future()
        self._thread = threading.Thread(target=self._work, name="promptcodebook", daemon=True)
        self._thread.start()

    def begin(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """The coroutine's result, from any thread; Ctrl-C cancels it."""
        future = self.begin(coroutine)
        try:
            return _result(future)
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        """Ends the loop; what still runs in it is cancelled."""
        self.loop.call_soon_threadsafe(self._end.set_result, None)
        until = time.monotonic() + _PATIENCE_S + 1.0
        while self._thread.is_alive() and time.monotonic() < until:
            self._thread.join(_LOOK_UP_S)

    def _work(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        while not self._end.done():
            # An exit that a task raises leaves the loop; who waits for that task gets it.
            with suppress(SystemExit, KeyboardInterrupt):
                loop.run_until_complete(self._end)
        # The user's own agent or reward may have left tasks behind.
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            _, deaf = loop.run_until_complete(asyncio.wait(left, timeout=_PATIENCE_S))
            if deaf:
                # Collecting such a task runs its code once more, and one that catches everything
                # then never ends, at the interpreter's end too. A waiting daemon thread keeps them.
                threading.Thread(target=_hold, args=(deaf,), name="deaf", daemon=True).start()
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def _hold(tasks: set[asyncio.Task[Any]]) -> None:
    threading.Event().wait()


def run_sync(
    coroutine: Coroutine[Any, Any, _T],
    interrupt: Callable[[], None] | None = None,
    relay: Relay | None = None,
) -> _T:
    """The coroutine's result. The first Ctrl-C calls `interrupt`, if given; then SIGTERM and SIGHUP
    count as one too. Outside the main thread `relay` says what is a Ctrl-C. A second Ctrl-C cancels
    it and raises KeyboardInterrupt, after `_PATIENCE_S` at the latest."""
    thread, called = LoopThread(), (relay or Relay()).listen()
    outcome: Future[_T] = Future()
    try:
        with nullcontext() if interrupt is None else stop_signals():
            try:
                outcome = thread.begin(coroutine)
                return _result(outcome, called)
            except KeyboardInterrupt:
                if outcome.done() or interrupt is None:
                    raise
            thread.loop.call_soon_threadsafe(interrupt)
            return _result(outcome, called)
    except CancelledError:
        raise KeyboardInterrupt from None
    finally:
        outcome.cancel()
        thread.close()


def _result(outcome: Future[_T], called: Callable[[], bool] = lambda: False) -> _T:
    """The outcome's; KeyboardInterrupt when `called`."""
    while not outcome.done():
        if called():
            raise KeyboardInterrupt
        wait((outcome,), _LOOK_UP_S)
    return outcome.result()
