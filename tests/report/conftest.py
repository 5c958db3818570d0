from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from promptcodebook.store import RunStore
from tests.report.story import Story, write_story


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Callable[[Story], RunStore]]:
    """Writes a story as a run; closed at the end of the test."""
    stores: list[RunStore] = []

    def tell(story: Story) -> RunStore:
        stores.append(write_story(tmp_path / "runs", story))
        return stores[-1]

    yield tell
    for store in stores:
        store.close()
