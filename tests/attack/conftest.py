"""Attacks take their time: all of them are `slow`, and run by `make check`."""

from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked = config.option.markexpr
    return True if "not slow" in asked and collection_path.name.startswith("test_") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
