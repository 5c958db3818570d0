from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.invoked import served
from tests.deploy.batch.rows import answering
from tests.lm.server import Server
from tests.policy.test_policy import file_of


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
