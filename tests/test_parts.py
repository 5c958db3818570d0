"""Core without each outer folder: a copy of the package in which that folder is deleted.

Once for each: every module of core is imported, and a training from `pco.toml` to the policy's
prompt passes through config, data, models, method, store, verdict, policy and CLI. The tests of
core's inner rooms run in a copy without any of them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bench.house import outer_parts
from tests.build.cli import served
from tests.build.server import Server

ROOT = Path(__file__).parents[1]
# By outer folder, commands that need it, and the extra that each says to install.
COMMANDS = tomllib.loads((ROOT / "tests" / "parts.toml").read_text("utf-8"))
OUTER = [f"promptcodebook.{part}" for part in COMMANDS]
# Rooms of core's tests that are fast enough to run in a copy.
ROOMS = ("config", "data", "method", "routing", "store")
IMPORTS = """
import importlib, pkgutil, sys
import promptcodebook
outer = tuple(sys.argv[1:])
for found in pkgutil.walk_packages(promptcodebook.__path__, "promptcodebook."):
    core = not any(found.name == each or found.name.startswith(each + ".") for each in outer)
    if core and not found.name.endswith("__main__"):
        importlib.import_module(found.name)
"""
SETTINGS = """
preset = "small"
reward = { kind = "exact" }
base_prompt = "Answer."
init = { kind = "from_prompt", prompt = "Say yes. Say no. Say maybe." }
size = 3
update = { epochs = 1, batch_size = 8 }
cache = false
[data]
path = "data.jsonl"
input = "question"
target = "answer"
"""


@pytest.mark.slow
@pytest.mark.parametrize("part", COMMANDS)
def test_core_does_not_notice_that_a_part_is_deleted(part: str, tmp_path: Path) -> None:
    assert sorted(outer_parts(ROOT)) == sorted(OUTER)
    copy_without(tmp_path, part)
    python(tmp_path, "-c", IMPORTS, *OUTER)
    listed = pco(tmp_path, "--help")
    assert re.search(r"^  serve +Serve a policy behind", listed.stdout, re.M), listed.stderr
    assert "  audit " in pco(tmp_path, "registry", "--help").stdout

    rows = [{"question": f"Is {n} a number?", "answer": "yes"} for n in range(40)]
    tmp_path.joinpath("data.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    tmp_path.joinpath("pco.toml").write_text(SETTINGS, "utf-8")
    with served(Server()) as server:
        trained = pco(tmp_path, "train", "--lm", server.spec, "--json", "--plain")
        assert trained.returncode == 0, trained.stderr
        if part == "paper":  # the viewer does without its screen Paper
            python(tmp_path, "-c", "import promptcodebook.deploy.viewer.server")
        explained = pco(tmp_path, "explain", "last", "Is 7 a number?", "--lm", server.spec)
        for command, extra in COMMANDS[part].items():
            stderr = pco(tmp_path, *command.split()).stderr
            assert f"  next: pip install 'promptcodebook[{extra}]'\n" in stderr, (command, stderr)
    assert json.loads(trained.stdout)["ended"] == "finished"
    assert "Answer." in explained.stdout, explained.stderr


@pytest.mark.slow
def test_core_s_own_tests_pass_where_every_part_is_deleted(tmp_path: Path) -> None:
    copy_without(tmp_path, *COMMANDS)
    words = [*OUTER, '"simulated', '"constraints']
    files = [file for room in ROOMS for file in sorted((ROOT / "tests" / room).glob("test_*.py"))]
    free = [
        str(file) for file in files if not any(word in file.read_text("utf-8") for word in words)
    ]
    assert len(free) >= 10
    done = python(tmp_path, "-m", "pytest", "-p", "no:cacheprovider", *free, cwd=ROOT)
    passed = re.search(r"^(\d+) passed", done.stdout, re.M)
    assert passed and int(passed[1]) > 500, done.stdout


def copy_without(folder: Path, *gone: str) -> None:
    """The package in `folder`, without the modules of these parts."""
    shutil.copytree(ROOT / "src" / "promptcodebook", folder / "promptcodebook")
    for part in gone:
        shutil.rmtree(folder / "promptcodebook" / part)


def pco(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "promptcodebook.cli", *args, check=False)


def python(
    folder: Path, *args: str, check: bool = True, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A process that finds the copy before the installed package."""
    here = {"PYTHONPATH": str(folder), "PCO_RUNS": str(folder / "runs"), "HOME": str(folder)}
    ours = {k: v for k, v in os.environ.items() if not k.startswith("PCO_")}
    done = subprocess.run(
        [sys.executable, *args], cwd=cwd or folder, env={**ours, **here},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stdout[-4000:] + done.stderr
    return done
