"""Functions for the tests to run in a worker process."""

import os
import re
import sys
import time


def add(a: int, b: int) -> int:
    return a + b


def process_id() -> int:
    return os.getpid()


def search(pattern: str, text: str) -> bool:
    return re.search(pattern, text) is not None


def nap(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def die(code: int) -> None:
    os._exit(code)


def chatter() -> str:
    sys.stdout.write('{"value": "not the answer"}\n')
    sys.stdout.flush()
    return "the answer"


def deep() -> None:
    deep()


def environment() -> list[str]:
    return sorted(os.environ)
