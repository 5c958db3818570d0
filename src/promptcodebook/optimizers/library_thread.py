"""A thread of a library that is not async, and how it has things done in the run's loop.

A stop comes out of `run` as that stop, whatever the library does with errors: in its threads it is
no Exception, and nothing is asked any more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from promptcodebook.errors import LMError, RequestRefused
from promptcodebook.tasks.user_prints import hush

_T = TypeVar("_T")


class Ended(BaseException):
    """Raised in the library's threads once the run has stopped.

    No Exception: a library that goes on after every error must not go on after this.
    """


class LibraryThread:
    """One thread of a library beside the run's loop, which it and threads of its own may ask for
    things to be done. Made in the loop."""

    def __init__(self, name: str) -> None:
        self._name = f"promptcodebook {name}"
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._ended: BaseException | None = None
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Callable[[], _T]) -> _T:
        """What `work` returns in a thread of its own. Raises Stop, or what ended the run, and what
        the library raised."""
        done: asyncio.Future[tuple[_T | None, BaseException | None]] = self._loop.create_future()

        def hand_over(value: _T | None, error: BaseException | None) -> None:
            if not done.done():
                done.set_result((value, error))

        def thread() -> None:
            value: _T | None = None
            error: BaseException | None = None
            try:
                with hush():
                    value = work()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(hand_over, value, error)

        threading.Thread(target=thread, name=self._name, daemon=True).start()
        try:
            value, error = await done
        except BaseException:
            self._end(Ended())
            for task in list(self._running):
                task.cancel()
            raise
        ended = self._ended
        self._end(Ended())
        # What other threads of the library have in flight comes home before the budget goes on.
        while self._running:
            await asyncio.wait(self._running)
        if ended is not None:
            raise ended
        if error is not None:
            raise error
        return value  # pyright: ignore[reportReturnType]

    def _end(self, reason: BaseException) -> None:
        with self._lock:
            if self._ended is None:
                self._ended = reason

    def wait_for(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """The coroutine's result, from a thread. Ended, once the run has stopped."""
        if self._ended is not None:
            coroutine.close()
            raise Ended
        try:
            return asyncio.run_coroutine_threadsafe(self._tracked(coroutine), self._loop).result()
        except CancelledError:
            raise Ended from None
        except RequestRefused:
            raise
        except Exception as error:
            if isinstance(error, LMError) and error.answered:
                raise
            self._end(error)
            raise Ended from error

    async def _tracked(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._running.add(task)
        try:
            if self._ended is not None:
                coroutine.close()
                raise asyncio.CancelledError
            return await coroutine
        finally:
            self._running.discard(task)
