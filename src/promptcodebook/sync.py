"""The one sync façade: a coroutine run to its end from ordinary code, in a notebook too.

It runs in a thread with an event loop of its own, so a loop that already runs here is no obstacle.
Ctrl-C asks the coroutine to stop in order; a second one cancels it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = [
    "run_sync",
]

_T = TypeVar("_T")


def run_sync(coroutine: Coroutine[Any, Any, _T], interrupt: Callable[[], None] | None = None) -> _T:
    """The coroutine's result. `interrupt` is called on the first Ctrl-C, if given."""
    outcome: Future[_T] = Future()
    loop = asyncio.new_event_loop()
    task: asyncio.Task[_T] = loop.create_task(coroutine)

    def work() -> None:
        asyncio.set_event_loop(loop)
        try:
            outcome.set_result(loop.run_until_complete(task))
        except BaseException as error:
            outcome.set_exception(error)
        finally:
            _cancel_what_is_left(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
            asyncio.set_event_loop(None)
            loop.close()

    thread = threading.Thread(target=work, name="promptcodebook", daemon=True)
    thread.start()
    try:
        return _wait(outcome, loop, task, interrupt)
    finally:
        thread.join()


def _cancel_what_is_left(loop: asyncio.AbstractEventLoop) -> None:
    """Tasks that the user's own agent or reward began and did not wait for."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


def _wait(
    outcome: Future[_T],
    loop: asyncio.AbstractEventLoop,
    task: asyncio.Task[_T],
    interrupt: Callable[[], None] | None,
) -> _T:
    ask = interrupt
    while True:
        try:
            return outcome.result()
        except KeyboardInterrupt:
            if outcome.done():
                raise
            if ask is not None:
                loop.call_soon_threadsafe(ask)
                ask = None
            else:
                loop.call_soon_threadsafe(task.cancel)
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
