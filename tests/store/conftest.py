from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.types import Parameters, Step
from tests.build.store import parameters, step

HEADER = Header(
    id="",
    created="2026-01-31T15:45:02+00:00",
    version="0.1.0",
    task="constraints",
    command="pco train",
    config={"seed": 0, "update": {"batch_size": 15}},
    fingerprints={"train": "aa", "val": "bb"},
)


@pytest.fixture
def make_step() -> Callable[[int], Step]:
    return step


@pytest.fixture
def make_parameters() -> Callable[[str], Parameters]:
    return parameters


@pytest.fixture
def header() -> Header:
    return HEADER


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunStore]:
    store = RunStore.create(tmp_path / "runs", HEADER)
    yield store
    store.close()
