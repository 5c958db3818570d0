"""The wheel holds everything the installed package reads: prompts, data, styles, scaffold."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_file_of_the_package_is_in_the_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tree = ROOT / "src"
    wanted = {
        str(path.relative_to(tree))
        for path in (tree / "promptcodebook").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == wanted
    assert "promptcodebook/method/prompts/default/encoder.md" in inside
    assert "promptcodebook/py.typed" in inside
