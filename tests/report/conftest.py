from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from promptcodebook.store.run import RunStore
from tests.report.scripted_run import ScriptedRun, write_run


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Callable[[ScriptedRun], RunStore]]:
    """Writes a scripted run to disk; closed at the end of the test."""
    stores: list[RunStore] = []

    def write_one(run: ScriptedRun) -> RunStore:
        stores.append(write_run(tmp_path / "runs", run))
        return stores[-1]

    yield write_one
    for store in stores:
        store.close()
