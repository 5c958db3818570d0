import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.build import tiny_model as tiny
from tests.build.local_server import Served, offline, served


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's folder."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    made = subprocess.run(
        [sys.executable, str(Path(tiny.__file__)), str(folder)],
        env=offline(folder.parent),
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr[-4000:]
    return folder


@pytest.fixture(scope="session")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The tiny model, served."""
    with served(model, tmp_path_factory.mktemp("server")) as running:
        yield running
