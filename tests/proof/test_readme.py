"""The commands of README.md and of pages that it links to, run as printed, in an empty home."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import tarfile
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
            ["bash", "-ec", f"exec {script}"],
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


def python_of(page: str) -> str:
    return "".join(
        re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.M | re.S)
    )


def test_the_first_verdict_comes_as_printed(shell: Shell) -> None:
    """On the simulated model, whose verdict the page tells; with weights: tests/models/local."""
    [block] = blocks("README.md", "A first verdict in three minutes")
    begin, train, use = re.split(r"^(pco train .*)\n", commands(block), flags=re.M)
    shell.run(begin)
    assert train.split("#")[0].split() == ["pco", "train", "--lm", "smollm2"]
    done = shell.run("pco train --lm simulated", "shop")
    assert "\nDo not deploy: the learned policy (simulated)\n" in f"\n{done.stdout}"
    assert "test split, n = 44" in done.stdout
    assert "route " in shell.run(use, "shop").stdout
    (shell.folder / "shop" / "page.py").write_text(
        python_of("README.md").replace('"smollm2"', '"simulated"'), "utf-8"
    )
    printed = shell.run("python page.py", "shop").stdout
    assert printed.startswith("On the simulated model: Not worth deploying yet: ")
    runs = list((shell.folder / "shop" / "runs").iterdir())
    assert len(runs) == 2 and any((run / "report.html").is_file() for run in runs)
    assert {path.name for path in shell.folder.iterdir()} == {".venv", "home", "shop"}


def test_data_of_one_s_own_come_to_a_verdict_as_printed(shell: Shell) -> None:
    [block] = map(commands, blocks("README.md", "On your own data and endpoint"))
    rows = (ROOT / "docs" / "tutorial" / "messages.csv").read_text("utf-8")
    (shell.folder / "tickets.csv").write_text(rows, "utf-8")
    with socket.socket() as free:  # 8000 may be taken on this machine
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    assert "localhost:8000/v1#MODEL" in block and block.count("tickets.csv") == 1
    block = block.replace("localhost:8000/v1#MODEL", f"localhost:{port}/v1#simulated")
    first, rest = block.replace("--from tickets.csv", "--from tickets.csv --yes").split("\n", 1)
    shell.run(first)
    shorter = "export PCO_PRESET=quick PCO_SIZE=8\n"
    with shell.serving(f"pco lm serve simulated --port {port}") as spec:
        assert spec.endswith(f":{port}/v1#simulated")
        done = shell.run(shorter + rest)
    for part in (
        "nothing fails, but read the warnings",
        "low / expected / high",
        "test split, n = 35",
    ):
        assert part in done.stdout, part
    assert re.search(r"^(Deploy|Do not deploy|Undecided): ", done.stdout, re.M)


def archive(form: str, folder: Path) -> Path:
    """The package as a "wheel" or an "sdist"."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", form, "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [path] = folder.iterdir()
    return path


def test_every_file_of_the_package_is_in_the_wheel(tmp_path: Path) -> None:
    wheel = archive("wheel", tmp_path)
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


def test_the_source_archive_has_the_files_of_the_repository_and_no_others(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("this is no clone")
    with tarfile.open(archive("sdist", tmp_path)) as packed:
        inside = {member.name.split("/", 1)[1] for member in packed if member.isfile()}
    assert inside == {*listed.stdout.splitlines(), "PKG-INFO"} - {".ci/run"}
