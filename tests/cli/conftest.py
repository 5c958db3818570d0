import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from promptcodebook.store.run import RunStore
from tests.build.cli import pco
from tests.build.project import PROJECT, QUICK
from tests.build.project import folder as folder
from tests.build.store import edit_header


@pytest.fixture(scope="session")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(PROJECT, tmp_path_factory.mktemp("trained") / "mytask"))
    result = pco("train", *QUICK, cwd=folder)
    assert result.code == 0, result.err
    return folder


@pytest.fixture
def trained(_trained: Path, tmp_path: Path) -> Path:
    """The project after a short simulated `pco train`, the test's own copy."""
    copy = Path(shutil.copytree(_trained, tmp_path / "trained"))
    [file] = copy.glob("runs/*/run.sqlite")
    # A run remembers the folder that its paths start from.
    edit_header(file, lambda text: text.replace(str(_trained), str(copy)))
    return copy


@pytest.fixture
def run_id(trained: Path) -> str:
    [run] = (trained / "runs").iterdir()
    return run.name


@pytest.fixture
def store(trained: Path, run_id: str) -> Iterator[RunStore]:
    opened = RunStore.open(trained / "runs" / run_id)
    yield opened
    opened.close()
