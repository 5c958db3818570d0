from __future__ import annotations

from pathlib import Path

import pytest

from tests.policy.test_policy import file_of


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a policy that puts an instinct in as it is, so that a row takes one call for
    its route and one for its answer."""
    file_of(column="question", compose="verbatim").save(tmp_path / "p.json")
    return tmp_path
