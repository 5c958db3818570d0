"""The commands of README.md and of pages that it links to, run as printed, in an empty home."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def blocks(page: str, heading: str) -> list[str]:
    """The command blocks of a page below a heading, in order."""
    section = (ROOT / page).read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^```\n(.*?)^```$", section, flags=re.M | re.S)


def commands(text: str) -> str:
    """A block without what sets the package up, which the test's own environment has done."""
    return "".join(line for line in text.splitlines(True) if not line.startswith("pip install"))


class Shell:
    """bash in a folder of its own, with an empty home and `pco` on its path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        home = folder / "home"
        home.mkdir()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PCO_", "XDG_"))}
        self.environment = {**kept, "HOME": str(home), "PATH": path, "COLUMNS": "80"}

    def run(self, script: str, cwd: str = ".") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=self.folder / cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr and "internal error" not in done.stderr
        return done

    @contextlib.contextmanager
    def serving(self, script: str) -> Iterator[str]:
        """A command that serves until it is stopped; yields the first line that it prints."""
        process = subprocess.Popen(
            ["bash", "-ec", script.replace("&& pco", "&& exec pco")],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait(30)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_the_three_minutes_run_as_printed(shell: Shell) -> None:
    heading = "Three minutes on your own data and endpoint"
    begin, serve, use = map(commands, blocks("README.md", heading))
    shell.run(begin)
    with socket.socket() as free:  # 8000 may be taken on this machine
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    assert "localhost:8000/v1#simulated" in use and "--port" not in serve
    with shell.serving(
        serve.replace("pco lm serve simulated", f"pco lm serve simulated --port {port}")
    ) as spec:
        assert spec.endswith(f":{port}/v1#simulated")
        done = shell.run(use.replace("localhost:8000", f"localhost:{port}"), "mytask")
    for part in ("all is well", "low / expected / high", "test split, n = 6", "route ", "K = 16"):
        assert part in done.stdout, part
    [run] = (shell.folder / "mytask" / "runs").iterdir()
    assert (run / "policy.json").is_file() and (run / "report.html").is_file()
    mine = {path.name for path in shell.folder.iterdir()}
    assert mine == {"home", "mytask"}


def test_the_quick_suite_runs_as_printed(shell: Shell) -> None:
    [block] = blocks("docs/experiments.md", "The benchmarks by themselves")
    [line] = [line for line in block.splitlines() if line.startswith("pco bench")]
    assert "suite quick: 6 finished, 0 failed" in shell.run(line).stdout
    assert "6 finished" in shell.run(line).stdout.replace("skipped", "")


def test_templates_and_a_prompt_of_ones_own_are_used_as_the_page_says(shell: Shell) -> None:
    page = (ROOT / "docs" / "how-to" / "start-from-a-prompt.md").read_text("utf-8")
    flowing = " ".join(page.split())
    assert "pco templates copy my-prompts" in flowing
    assert 'templates = "./my-prompts"' in flowing
    shell.run("pco init mytask")
    small = "--preset quick --set update.epochs=1 --set validation.every=0"
    shell.run("pco templates copy my-prompts", "mytask")
    shell.run(f"pco train {small} --set templates=./my-prompts", "mytask")
    [options] = re.findall(r"`(--set init\.kind=from_prompt [^`]*)`", flowing)
    (shell.folder / "mytask" / "prompt.txt").write_text(
        "Answer in one word. Read the question twice. Name the category as it is spelt.\n"
        "Mind exceptions. Check the total. Give no reasons.\n"
    )
    done = shell.run(f"pco train {small} {options} --set size=6 --set select=2", "mytask")
    assert "test split, n = 6" in done.stdout


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
