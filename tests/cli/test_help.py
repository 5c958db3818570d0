""""""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from promptcodebook.cli import app as tree
from promptcodebook.cli.command import first_options
from promptcodebook.lm.cache import ReplyCache
from tests.build.cases import table
from tests.build.cli import Terminal, pco
from tests.build.teachable import install_package


def test_a_group_lists_its_commands_with_whole_sentences(tmp_path: Path) -> None:
    for group in ("registry", "runs", "data", "templates"):
        listed = pco(group, "--help", cwd=tmp_path).out.partition("Commands:")[2]
        assert listed.strip() and "..." not in listed, group


def leaves(command: Any) -> Iterator[Any]:
    below = getattr(command, "commands", {}).values()
    yield from [leaf for each in below for leaf in leaves(each)] if below else [command]


def test_every_command_has_json_and_every_option_is_explained() -> None:
    root: Any = typer.main.get_command(tree.app)
    for name in tree.commands():
        for command in leaves(root.get_command(None, name)):
            options = [p for p in command.params if p.param_type_name == "option"]
            assert any("--json" in option.opts for option in options), command.name
            assert [option.name for option in options if not (option.help or option.hidden)] == []


@pytest.mark.parametrize("command", first_options())
def test_a_help_shows_first_what_people_type_first(command: str, tmp_path: Path) -> None:
    out = pco(*command.split(), "--help", cwd=tmp_path).out
    first, _, advanced = out.partition("\nOptions:\n")[2].partition("\nAdvanced:\n")
    shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)", first, flags=re.M)
    assert sorted(shown) == sorted(["--help", *first_options()[command]])
    assert re.search(r"^  --json", advanced, flags=re.M)


def test_every_command_is_listed_with_its_help(tmp_path: Path) -> None:
    out = pco("--help", cwd=tmp_path).out
    assert re.findall(r"^(\w+):$", out, re.M) == ["Options", *tree.command_groups()]
    for name, (_, help_line) in tree.commands().items():
        assert re.search(rf"^  {name}\s+{re.escape(help_line)}$", out, flags=re.M), name


def test_a_group_without_a_command_shows_its_help(tmp_path: Path) -> None:
    result = pco("runs", cwd=tmp_path)
    assert result.code == 2 and "Usage: pco runs" in result.out + result.err


@pytest.mark.parametrize(("args", "parts"), table(__file__, "unreadable"))
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
    theirs = "[promptcodebook.commands]\nregistry.audit = loud:run\ngreet = loud:run\n"
    theirs += "[promptcodebook.optimizers]\npco = loud:run\n"
    install_package(tmp_path, "theirs", theirs)
    install_package(tmp_path, "others", "[promptcodebook.commands]\ngreet = os:getcwd\n")
    tmp_path.joinpath("loud.py").write_text("raise SystemExit('was run')")
    monkeypatch.syspath_prepend(tmp_path)
    train = ("train", "--task", "houserules", "--lm", "simulated")
    for typed, name in (
        (("registry", "audit", "x"), "registry.audit"),
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
    ("pco co", ["config", "compare"]),
    ("pco train --bud", ["--budget"]),
])  # fmt: skip
def test_commands_and_options_are_completed(
    typed: str,
    completed: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_PCO_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    monkeypatch.setattr(sys, "argv", ["pco"])
    with pytest.raises(SystemExit):
        tree.guard()
    assert sorted(capsys.readouterr().out.split()) == sorted(completed)
