"""A small project of the command line, and the settings of a quick run of it."""

import shutil
from pathlib import Path

import pytest

# A small task of two dozen rows, as one would make of what `pco init` writes.
PROJECT = Path(__file__).parents[1] / "cli" / "project"


QUICK = ("--preset", "quick", "--set", "update.epochs=4", "--set", "validation.every=2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the project."""
    return Path(shutil.copytree(PROJECT, tmp_path / "mytask"))
