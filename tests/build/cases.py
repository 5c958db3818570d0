"""Cases that a test takes from the TOML file beside it, which has the test's name."""

import tomllib
from pathlib import Path
from typing import Any


def table(test: str, name: str) -> Any:
    """The cases under `name`; `test` is the file that asks."""
    file = Path(test)
    return tomllib.loads(file.with_name(file.stem[5:] + ".toml").read_text("utf-8"))[name]
