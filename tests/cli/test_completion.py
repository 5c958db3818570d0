"""Shells complete commands and options once they are told how."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MARKS = {"bash": "complete -o default -F", "zsh": "#compdef pco", "fish": "complete --command pco"}


PROGRAM = "import sys; sys.argv[0] = 'pco'; from promptcodebook.cli import main; main()"


def shell(tmp_path: Path, *typed: str, **variables: str) -> str:
    """What `pco` prints where bash runs it."""
    done = subprocess.run(
        ["bash", "-c", '"$@"; exit $?', "bash", sys.executable, "-c", PROGRAM, *typed],
        env={**os.environ, "HOME": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", MARKS)
def test_there_is_a_script_for_each_shell(name: str, tmp_path: Path) -> None:
    script = shell(tmp_path, _PCO_COMPLETE=f"source_{name}")
    assert MARKS[name] in script and "_PCO_COMPLETE" in script


def test_the_shell_at_hand_is_recognised(tmp_path: Path) -> None:
    assert MARKS["bash"] in shell(tmp_path, "--show-completion")
    shell(tmp_path, "--install-completion")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_PCO_COMPLETE" in path.read_text() for path in files)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("pco tra", ["train"]),
        ("pco co", ["config", "compare", "codebook"]),
        ("pco codebook d", ["diff"]),
        ("pco train --bud", ["--budget"]),
    ],
)
def test_commands_and_options_are_completed(
    typed: str, completed: list[str], tmp_path: Path
) -> None:
    words = str(len(typed.split()) - 1)
    asked = {"_PCO_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": words}
    assert sorted(shell(tmp_path, **asked).split()) == sorted(completed)
