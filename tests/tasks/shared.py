"""Public scorers' verdicts and benchmarks' rows, which lie outside the repository."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(os.environ.get("PCO_SHARED") or Path(__file__).parents[3] / "shared")


def shared(*parts: str) -> Path:
    """A file or folder among them; the test is skipped without it."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no {path}; set PCO_SHARED to the folder that holds {parts[0]}/")
    return path


def vectors(name: str) -> list[dict[str, Any]]:
    """What a public scorer said of given answers."""
    lines = shared("vectors", f"{name}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]
