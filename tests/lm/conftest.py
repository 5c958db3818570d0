from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from tests.lm.server import Server


class Counts(Counter[str]):
    """A Tally that can be read."""

    def __call__(self, name: str, count: int = 1) -> None:
        self[name] += count


@pytest.fixture
def tally() -> Counts:
    return Counts()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    served = Server()
    await served.start()
    yield served
    await served.stop()
