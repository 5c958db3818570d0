from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from tests.build.scripted_run import ScriptedRun, write_run


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Callable[..., RunStore]]:
    """Writes a scripted run to disk, or one without events that has these fields of a header;
    closed at the end of the test."""
    stores: list[RunStore] = []

    def write_one(run: ScriptedRun | None = None, **header: Any) -> RunStore:
        if run is None:
            empty = Header("", "2026-01-31T15:45:02+00:00", "0.2.0", **header)
            stores.append(RunStore.create(tmp_path, empty))
        else:
            stores.append(write_run(tmp_path / "runs", run, **header))
        return stores[-1]

    yield write_one
    for store in stores:
        store.close()
