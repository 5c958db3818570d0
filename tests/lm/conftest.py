import pytest

from tests.build.method import Counts
from tests.build.server import server as server


@pytest.fixture
def tally() -> Counts:
    return Counts()
