""""""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from promptcodebook.cli import app as tree
from promptcodebook.lm.cache import ReplyCache
from tests.build.cli import Terminal, pco
from tests.build.teachable import install_package

DOCS = Path(__file__).parents[2] / "docs"


def test_a_group_lists_its_commands_with_whole_sentences(tmp_path: Path) -> None:
    for group in ("codebook", "runs", "data", "templates"):
        listed = pco(group, "--help", cwd=tmp_path).out.partition("Commands:")[2]
        assert listed.strip() and "..." not in listed, group


def test_every_command_has_json_and_every_option_is_explained() -> None:
    page = (DOCS / "cli.md").read_text("utf-8")
    for section in re.split(r"^##+ ", page, flags=re.M)[1:]:
        name = section.splitlines()[0]
        if "COMMAND [ARGS]" in section:
            continue
        assert "--json" in section, name
        assert "--install-completion" not in section, name
        for line in re.findall(r"^  --[a-z-]+(?: <\w+>)?$", section, flags=re.M):
            pytest.fail(f"{name}: {line.strip()} is not explained")


def test_every_command_is_listed_with_its_help(tmp_path: Path) -> None:
    out = pco("--help", cwd=tmp_path).out
    for name, (_, help_line) in tree.commands().items():
        assert re.search(rf"^  {name}\s+{re.escape(help_line)}$", out, flags=re.M), name


def test_a_group_without_a_command_shows_its_help(tmp_path: Path) -> None:
    result = pco("runs", cwd=tmp_path)
    assert result.code == 2 and "Usage: pco runs" in result.out + result.err


@pytest.mark.parametrize(("args", "parts"), [
    (("eval",), ("missing argument", "next: pco eval --help")),
    (("eval", "last", "--bogus"), ("no such option: --bogus", "next: pco eval --help")),
    (("train", "--seed", "x"), ("--seed", "next: pco train --help")),
    (("runs", "lst"), ("next: pco runs --help",)),
])  # fmt: skip
def test_what_cannot_be_read_points_to_the_help(
    tmp_path: Path, args: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    pco(*args, cwd=tmp_path).error(2, *parts)


def test_what_is_interrupted_at_a_question_ends_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PCO_CACHE", str(tmp_path / "c.sqlite"))
    ReplyCache(tmp_path / "c.sqlite").close()
    result = pco("cache", "clear", cwd=tmp_path, stdin=Terminal(""))  # the input ends
    assert result.code == 130 and "pco: interrupted" in result.err


def test_a_plug_in_brings_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = "[promptcodebook.commands]\ngreet = greeting_command:greet\n"
    install_package(tmp_path, "theirs", entry)
    code = 'def greet(name: str = "you") -> None:\n    print(f"hello {name[0]}{name[1:]}")\n'
    tmp_path.joinpath("greeting_command.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert pco("greet", "--name", "Ada", cwd=tmp_path).out == "hello Ada\n"
    broken = pco("greet", "--name", "", cwd=tmp_path)
    assert broken.code == 1 and "pco: internal error: IndexError" in broken.err
    pco("greeet", cwd=tmp_path).error(2, "no command 'greeet'")


def test_no_package_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of ours nor of a third one's, whichever the search path has first."""
    theirs = "[promptcodebook.commands]\ncodebook.audit = loud:run\ngreet = loud:run\n"
    theirs += "[promptcodebook.optimizers]\npco = loud:run\n"
    install_package(tmp_path, "theirs", theirs)
    install_package(tmp_path, "others", "[promptcodebook.commands]\ngreet = os:getcwd\n")
    tmp_path.joinpath("loud.py").write_text("raise SystemExit('was run')")
    monkeypatch.syspath_prepend(tmp_path)
    train = ("train", "--task", "houserules", "--lm", "simulated")
    for typed, name in (
        (("codebook", "audit", "x"), "codebook.audit"),
        (("greet",), "greet"),
        (train, "pco"),
    ):
        result = pco(*typed, cwd=tmp_path)
        result.error(2, f"several packages offer {name!r}", "loud:run", "uninstall all but one")


HELP = """
import sys
sys.argv = ["pco", "--help"]
from promptcodebook.cli import main
try:
    main()
except SystemExit as end:
    assert end.code == 0
heavy = {"pydantic", "aiohttp", "rich", "sqlite3", "asyncio", "zstandard"} & set(sys.modules)
sys.exit(f"imported for --help: {heavy}" if heavy else 0)
"""


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Start with `pco demo`" in done.stdout


# --- Shells complete commands and options once they are told how ---


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


def test_the_shell_at_hand_is_recognised(tmp_path: Path) -> None:
    assert MARKS["bash"] in shell(tmp_path, "--show-completion")
    shell(tmp_path, "--install-completion")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_PCO_COMPLETE" in path.read_text() for path in files)


@pytest.mark.parametrize(("typed", "completed"), [
    ("pco co", ["config", "compare", "codebook"]),
    ("pco train --bud", ["--budget"]),
])  # fmt: skip
def test_commands_and_options_are_completed(
    typed: str, completed: list[str], tmp_path: Path
) -> None:
    words = str(len(typed.split()) - 1)
    asked = {"_PCO_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": words}
    assert sorted(shell(tmp_path, **asked).split()) == sorted(completed)
