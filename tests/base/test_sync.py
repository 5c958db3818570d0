"""The sync façade: results, errors, a running loop, and Ctrl-C."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from promptcodebook.base.signals import stop_signals
from promptcodebook.base.sync import LoopThread, Relay, run_sync

T = TypeVar("T")


def in_thread(coroutine: Coroutine[Any, Any, T]) -> T:
    thread = LoopThread()
    try:
        return thread.run(coroutine)
    finally:
        thread.close()


both = pytest.mark.parametrize("run", [run_sync, in_thread])


async def twice(x: int) -> int:
    await asyncio.sleep(0)
    return 2 * x


@both
def test_it_returns_what_the_coroutine_returns_and_raises_what_it_raises(run: Any) -> None:
    async def raising(error: BaseException) -> None:
        raise error

    assert run(twice(4)) == 8
    for error in (KeyError("this one"), TimeoutError("its own"), SystemExit(3)):
        with pytest.raises(type(error), match=str(error)):
            run(raising(error))


class Waiting(Relay):
    """Sends a signal once the main thread waits for the outcome: its own looks tell."""

    def __init__(self, press: Callable[[], None]) -> None:
        super().__init__()
        self._press = press

    def listen(self) -> Callable[[], bool]:
        called, pressed = super().listen(), list[threading.Thread]()

        def looks() -> bool:
            if not pressed:
                pressed.append(threading.Thread(target=self._press))
                pressed[0].start()
            return called()

        return looks


def sends(key: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), key)


def to_itself() -> None:
    """The system may give it to any thread; Python then acts on it once the main one runs."""
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


@pytest.mark.parametrize("press", [sends(signal.SIGINT), to_itself])
def test_the_first_ctrl_c_asks_and_the_coroutine_ends_in_order(press: Callable[[], None]) -> None:
    asked = asyncio.Event()

    async def work() -> str:
        await asked.wait()
        return "in order"

    assert run_sync(work(), asked.set, Waiting(press)) == "in order"


def test_sigterm_asks_too_where_somebody_can_be_asked() -> None:
    """Elsewhere, in a script or a server of the user's, it stays what it was."""
    asked = asyncio.Event()

    async def work() -> object:
        await asked.wait()
        return signal.getsignal(signal.SIGTERM)

    async def handler() -> object:
        return signal.getsignal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    assert run_sync(handler()) == before
    assert run_sync(work(), asked.set, Waiting(sends(signal.SIGTERM))) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_ctrl_c_cancels() -> None:
    asked: list[int] = []

    async def stubborn() -> None:
        await asyncio.sleep(300)

    def interrupt() -> None:
        asked.append(1)
        sends(signal.SIGINT)()

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_sync(stubborn(), interrupt, Waiting(sends(signal.SIGINT)))
    assert asked == [1]
    assert time.monotonic() - began < 60


@both
def test_tasks_that_nobody_waited_for_end_with_it(run: Any) -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cleaned up")

    async def careless() -> asyncio.Task[None]:
        task = asyncio.create_task(endless())
        await asyncio.sleep(0)
        return task

    task = run(careless())
    assert ended == ["cleaned up"] and task.cancelled()


@both
def test_an_exit_in_a_task_that_somebody_waits_for_is_heard_there(run: Any) -> None:
    async def exits() -> None:
        await asyncio.sleep(0)
        raise SystemExit(3)

    async def waits() -> int:
        with pytest.raises(SystemExit):
            await asyncio.create_task(exits())
        return await twice(2)

    assert run(waits()) == 4


DEAF = """
import asyncio
from promptcodebook.base import sync

sync._PATIENCE_S = 0.1
kept = []

async def deaf():
    while True:
        try:
            await asyncio.sleep(3600)
        except BaseException:
            pass

async def main():
    kept.append(asyncio.create_task(deaf()))
    await asyncio.sleep(0)

sync.run_sync(main())
"""


def test_a_task_that_no_cancelling_ends_does_not_hold_the_process_at_its_end() -> None:
    """Collected with the modules already gone, such a task would go round in its loop for good."""
    done = subprocess.run([sys.executable, "-c", DEAF], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


# What asks a process to end, within `stop_signals` and around it.


NUMBERS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_each_of_them_is_a_ctrl_c_and_all_is_as_before_afterwards(number: int) -> None:
    if number == signal.SIGINT:
        signal.signal(number, signal.SIG_IGN)  # as in the background of a script
    before = [signal.getsignal(each) for each in NUMBERS]
    with pytest.raises(KeyboardInterrupt), stop_signals():
        signal.raise_signal(number)
    assert [signal.getsignal(each) for each in NUMBERS] == before


def test_a_terminal_that_closes_twice_is_one_ctrl_c() -> None:
    with stop_signals():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_what_is_handled_or_ignored_on_purpose_stays_so() -> None:
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with stop_signals():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        with stop_signals():
            signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM] * 2


def test_another_thread_leaves_the_signals_alone() -> None:
    async def handler() -> object:
        with stop_signals():
            return signal.getsignal(signal.SIGTERM)

    assert in_thread(handler()) is signal.SIG_DFL
