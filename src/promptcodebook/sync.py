"""The one sync façade: it runs a coroutine to its end from ordinary code, in a notebook too, in a
thread with its own event loop. Ctrl-C asks it to stop in order; a second one cancels it."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

from promptcodebook.signals import stop_signals

_T = TypeVar("_T")
_PATIENCE_S = 5.0
"""How long what was cancelled may take to end."""
_LOOK_UP_S = 0.2
"""How often the waiting thread looks up. The system may deliver a signal to another thread, which
wakes no one, and Python handles it in the main thread alone."""


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


def run_sync(
    coroutine: Coroutine[Any, Any, _T],
    interrupt: Callable[[], None] | None = None,
    relay: Relay | None = None,
) -> _T:
    """The coroutine's result. The first Ctrl-C calls `interrupt`, if given; then SIGTERM and SIGHUP
    count as one too. Outside the main thread `relay` says what is a Ctrl-C. A second Ctrl-C cancels
    it and raises KeyboardInterrupt, after `_PATIENCE_S` at the latest."""
    outcome: Future[_T] = Future()
    loop = asyncio.new_event_loop()
    task: asyncio.Task[_T] = loop.create_task(coroutine)

    def work() -> None:
        asyncio.set_event_loop(loop)
        try:
            outcome.set_result(_run_to_end(loop, task))
        except BaseException as error:
            outcome.set_exception(error)
        finally:
            _end_loop(loop)

    thread = threading.Thread(target=work, name="promptcodebook", daemon=True)
    thread.start()
    try:
        with nullcontext() if interrupt is None else stop_signals():
            result = _wait(outcome, loop, task, interrupt, (relay or Relay()).listen())
    except BaseException:
        if not outcome.done():  # interrupted before, or while, it was waited for
            with suppress(RuntimeError):  # it has ended just now
                loop.call_soon_threadsafe(task.cancel)
        thread.join(_PATIENCE_S if outcome.done() else 0.0)
        raise
    thread.join()
    return result


class LoopThread:
    """One loop in a thread of its own for many coroutines, so that what they open outlives each."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._end: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._work, name="promptcodebook", daemon=True)
        self._thread.start()

    def begin(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

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
        self._loop.call_soon_threadsafe(self._end.set_result, None)
        self._thread.join(_PATIENCE_S)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        _run_to_end(self._loop, self._end)
        _end_loop(self._loop)


def _end_loop(loop: asyncio.AbstractEventLoop) -> None:
    # The user's own agent or reward may have left tasks behind.
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        _, deaf = loop.run_until_complete(asyncio.wait(left, timeout=_PATIENCE_S))
        if deaf:
            # Collecting such a task runs its code once more, and one that catches everything then
            # never ends, at the interpreter's end too. A waiting daemon thread keeps them.
            threading.Thread(target=_hold, args=(deaf,), name="deaf", daemon=True).start()
    loop.run_until_complete(loop.shutdown_asyncgens())
    asyncio.set_event_loop(None)
    loop.close()


def _hold(tasks: set[asyncio.Task[Any]]) -> None:
    threading.Event().wait()


def _run_to_end(loop: asyncio.AbstractEventLoop, task: asyncio.Future[_T]) -> _T:
    """The task's result. An exit that user code raises in another task leaves the loop; the caller
    that waits for that task gets it, and the loop continues."""
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt):
            if task.done():
                raise


def _wait(
    outcome: Future[_T],
    loop: asyncio.AbstractEventLoop,
    task: asyncio.Task[_T],
    interrupt: Callable[[], None] | None,
    called: Callable[[], bool],
) -> _T:
    ask, patience = interrupt, math.inf
    while True:
        try:
            return _result(outcome, patience, called)
        except KeyboardInterrupt:
            if outcome.done() or patience < math.inf:
                raise
            if ask is not None:
                loop.call_soon_threadsafe(ask)
                ask = None
            else:
                loop.call_soon_threadsafe(task.cancel)
                patience = _PATIENCE_S
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def _result(
    outcome: Future[_T], patience: float = math.inf, called: Callable[[], bool] = lambda: False
) -> _T:
    """The outcome's; KeyboardInterrupt after `patience` seconds without one, or when `called`."""
    until = time.monotonic() + patience
    while not outcome.done():
        if called() or (left := until - time.monotonic()) <= 0.0:
            raise KeyboardInterrupt
        wait((outcome,), min(_LOOK_UP_S, left))
    return outcome.result()
