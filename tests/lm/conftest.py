from __future__ import annotations

import pytest

from tests.build.server import Counts
from tests.build.server import server as server


@pytest.fixture
def tally() -> Counts:
    return Counts()
