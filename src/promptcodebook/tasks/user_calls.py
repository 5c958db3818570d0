"""Runs the user's own functions: in threads where they are synchronous, within a time limit.

An exit, an interrupt or a cancellation of theirs is a failure like any other, and what they print
goes to stderr. A call that hangs is given up; its daemon thread keeps no process from ending (the
threads of anyio and concurrent.futures would). Code that never releases the interpreter (one
regular expression that backtracks for hours) can be neither limited nor interrupted.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
import traceback
import weakref
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

from promptcodebook.calls import Chat, Message, Reply, Role, Schema
from promptcodebook.errors import ExecutorError, message_of
from promptcodebook.tasks.user_code import print_aside

_IDLE_S = 5.0
"""A thread ends after this long without work."""
_GRACE_S = 1.0
"""How long a coroutine that is out of time may take to clean up."""


class Escape(Exception):
    """User code raised `error`, which no coroutine may raise, or which would end more than that."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {message_of(error)}".removesuffix(": "))
        self.error = error


class Overdue(Exception):
    """User code did not return within its `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no return within {seconds:g} s")
        self.seconds = seconds


class UserCalls:
    """Calls user code: at most `threads` synchronous calls at once, each for `seconds` at most.

    Coroutine functions run in the loop that asks, as many as it likes. Time that an agent waits for
    a model, or that a call waits for a thread, does not count. Raises what the function raised,
    Escape for what is no Exception, and Overdue.
    """

    def __init__(self, threads: int = 32, seconds: float = 600.0) -> None:
        self._most = threads
        self._seconds = seconds
        self._threads = _Threads()
        self._lock = threading.Lock()
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )

    async def call(self, function: Callable[..., object], *arguments: object) -> object:
        """What the function returns, awaited where it is awaitable. What is ours is trusted: it
        runs here and now."""
        if is_ours(function):
            returned = function(*arguments)
            return await returned if inspect.isawaitable(returned) else returned
        return await self._run(function, arguments, _Allowance(self._seconds))

    async def run_agent(
        self, function: Callable[..., object], prompt: object, example: object, lm: Chat
    ) -> object:
        """What the agent returns. A synchronous one asks `lm` and gets the reply itself."""
        allowance = _Allowance(self._seconds)
        chat = _AgentChat(lm, allowance)
        try:
            return await self._run(function, (prompt, example, chat), allowance)
        finally:
            chat.closed = True

    def close(self) -> None:
        """Ends the threads that wait for work; it can be used again."""
        self._threads.close()

    async def _run(
        self, function: Callable[..., object], arguments: Sequence[object], allowance: _Allowance
    ) -> object:
        try:
            if is_async(function):
                allowance.start()
                called = cast("Callable[..., Awaitable[object]]", function)
                return await _within(allowance, _await_here(lambda: called(*arguments)))
            async with self._slot():
                allowance.start()
                returned = await _within(allowance, self._threads.run(function, arguments))
            if inspect.isawaitable(returned):
                return await _within(allowance, _await_here(lambda: returned))
            return returned
        finally:
            allowance.stop()

    def _slot(self) -> asyncio.Semaphore:
        """The running loop's share of threads: loops must not wait for each other."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._slots:
                self._slots[loop] = asyncio.Semaphore(self._most)
            return self._slots[loop]


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling it gives a coroutine; an object may have an async `__call__`."""
    call = getattr(type(function), "__call__", None)  # noqa: B004 - of the class, as a call looks
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def is_ours(function: Callable[..., object]) -> bool:
    """Whether it is part of this package, and not of the user's code."""
    return (getattr(function, "__module__", None) or "").split(".")[0] == __name__.split(".")[0]


def place_of(error: BaseException) -> str:
    """The file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown place"


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a call came to, as a value: an exit or an interrupt must not pass through the loop."""

    value: object = None
    error: BaseException | None = None

    def get(self) -> object:
        if self.error is None:
            return self.value
        if isinstance(self.error, Exception) and not isinstance(self.error, StopIteration):
            raise self.error
        raise Escape(self.error) from self.error


async def _await_here(start: Callable[[], Awaitable[object]]) -> _Outcome:
    with print_aside():
        try:
            return _Outcome(await start())
        except BaseException as error:
            # Signals reach the main thread alone: an interrupt there may be the user's.
            main = threading.current_thread() is threading.main_thread()
            if isinstance(error, KeyboardInterrupt) and main:
                raise
            return _Outcome(error=error)


class _Allowance:
    """The seconds of its own that one call may take; `over` is done when they are used up."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.seconds = seconds
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._left = seconds
        self._since = 0.0
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._since = self._loop.time()
        self._timer = self._loop.call_later(self._left, self._end)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Within it the clock is stopped."""
        if self._waiting == 0:
            self._left -= self._loop.time() - self._since
            self.stop()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0 and not self.over.done():
                self.start()

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


async def _within(allowance: _Allowance, awaited: Awaitable[_Outcome]) -> object:
    """The work's result, or Overdue: then it is given up, even if it ignores its cancellation."""
    work = asyncio.ensure_future(awaited)
    try:
        await asyncio.wait({work, allowance.over}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not work.done():
            work.cancel()
    if not work.cancelled() and work.done():
        return work.result().get()
    await asyncio.wait({work}, timeout=_GRACE_S)
    raise Overdue(allowance.seconds)


class _AgentChat:
    """The chat as an agent sees it, from the loop, from a thread, or from a loop in a thread.

    Where no loop runs it blocks and returns the reply. Once the rollout is over it refuses: a
    call that was given up must not keep spending.
    """

    def __init__(self, inner: Chat, allowance: _Allowance) -> None:
        self.closed = False
        self._inner = inner
        self._allowance = allowance
        self._home = asyncio.get_running_loop()

    def __call__(
        self,
        messages: str | Sequence[Message],
        *,
        system: str = "",
        role: Role = "executor",
        schema: Schema | None = None,
        purpose: str = "",
    ) -> Awaitable[Reply] | Reply:
        self._require_open()
        asked = self._ask(messages, system=system, role=role, schema=schema, purpose=purpose)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(asked, self._home).result()
        if loop is self._home:
            return asked
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._home))

    async def _ask(self, messages: str | Sequence[Message], **options: Any) -> Reply:
        self._require_open()
        with self._allowance.waiting():
            return await self._inner(messages, **options)

    def _require_open(self) -> None:
        if self.closed:
            raise ExecutorError(
                "the executor asked a model after its rollout was over",
                hint="wait for every call before returning; user_code.seconds limits a rollout",
            )


_Job = Callable[[], Callable[[], None]]
"""Does the work and returns how to hand over what came of it."""
_Idle = tuple["queue.SimpleQueue[_Job | None]", threading.Thread]


class _Threads:
    """Daemon threads, each reused while there is work; as many as there are calls at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []

    def run(
        self, function: Callable[..., object], arguments: Sequence[object]
    ) -> asyncio.Future[_Outcome]:
        """The outcome, once a thread has it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Outcome] = loop.create_future()
        context = contextvars.copy_context()

        def job() -> Callable[[], None]:
            outcome = context.run(_call, function, arguments)

            def resolve() -> None:
                if not future.done():
                    future.set_result(outcome)

            def hand_over() -> None:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(resolve)

            return hand_over

        with self._lock:
            known = self._idle.pop() if self._idle else None
        jobs = queue.SimpleQueue[_Job | None]() if known is None else known[0]
        if known is None:
            name = "promptcodebook user code"
            threading.Thread(target=self._serve, args=(jobs,), name=name, daemon=True).start()
        jobs.put(job)
        return future

    def _serve(self, jobs: queue.SimpleQueue[_Job | None]) -> None:
        own = (jobs, threading.current_thread())
        while True:
            try:
                job = jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if own in self._idle:  # else a job is on its way
                        self._idle.remove(own)
                        return
                continue
            if job is None:
                return
            hand_over = job()
            with self._lock:
                self._idle.append(own)  # first, so that the next call starts no new thread
            hand_over()
            del job, hand_over

    def close(self) -> None:
        """Ends the threads that wait for work; those at work follow when they are done."""
        with self._lock:
            idle, self._idle = self._idle, []
        for jobs, _ in idle:
            jobs.put(None)
        for _, thread in idle:
            thread.join(_GRACE_S)


def _call(function: Callable[..., object], arguments: Sequence[object]) -> _Outcome:
    with print_aside():
        try:
            return _Outcome(function(*arguments))
        except BaseException as error:
            return _Outcome(error=error)
