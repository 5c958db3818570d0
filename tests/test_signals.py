"""What asks a process to end, within `stop_signals` and around it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from promptcodebook.signals import stop_signals

NUMBERS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def sent(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_each_of_them_is_a_ctrl_c_and_all_is_as_before_afterwards(number: int) -> None:
    if number == signal.SIGINT:
        signal.signal(number, signal.SIG_IGN)  # as in the background of a script
    before = [signal.getsignal(each) for each in NUMBERS]
    with pytest.raises(KeyboardInterrupt), stop_signals():
        sent(number)
    assert [signal.getsignal(each) for each in NUMBERS] == before


def test_a_terminal_that_closes_twice_is_one_ctrl_c() -> None:
    with stop_signals():
        with pytest.raises(KeyboardInterrupt):
            sent(signal.SIGHUP)
        sent(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_what_is_handled_or_ignored_on_purpose_stays_so() -> None:
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with stop_signals():
        sent(signal.SIGTERM)
        sent(signal.SIGHUP)
        with stop_signals():
            sent(signal.SIGTERM)
    assert heard == [signal.SIGTERM] * 2


def test_another_thread_leaves_the_signals_alone() -> None:
    seen: list[object] = []

    def work() -> None:
        with stop_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]
