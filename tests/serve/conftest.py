from __future__ import annotations

import pytest

from promptcodebook.simulated.world import World
from promptcodebook.types import Example
from tests.simulated import made


@pytest.fixture
def examples() -> list[Example]:
    return made.examples


@pytest.fixture
def world() -> World:
    return made.world
