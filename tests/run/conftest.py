"""A trained run that the tests of runs share."""

import pytest

import promptcodebook as pco
from tests.build.optimize import train


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pco.Run:
    """Of the simulated model, from the first call to the verdict, and never interrupted."""
    return train(tmp_path_factory.mktemp("whole"))
