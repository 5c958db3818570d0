from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.build.batch import answering
from tests.build.cli import served
from tests.build.policy import file_of
from tests.build.server import Server


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a policy that puts an instinct in as it is, so that a row takes one call for
    its route and one for its answer."""
    file_of(column="question", compose="verbatim").save(tmp_path / "p.json")
    return tmp_path


@pytest.fixture
def server() -> Iterator[Server]:
    """It routes, and answers every question."""
    made, _ = answering()
    with served(made):
        yield made
