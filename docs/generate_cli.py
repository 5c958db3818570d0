"""Writes docs/cli.md from every command's own --help: python docs/generate_cli.py"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from promptcodebook.cli import app as tree

_WIDTH = "90"
_HEAD = """# Commands

Written by `python docs/generate_cli.py` from each command's `--help`; a test keeps it up to date.

Results go to stdout, progress and errors to stderr. `--json` gives the result as JSON, errors too.
Pipes and files get plain lines; `NO_COLOR` removes the colours. Exit codes: 0 done, 1 failed,
2 usage, 3 budget reached (resumable), 130 interrupted (resumable). Precedence: command line >
`PCO_*` variables > `pco.toml` > preset.

`pco --install-completion` completes commands and options in bash, zsh, fish or PowerShell;
`pco --show-completion` prints the script (`_PCO_COMPLETE=source_zsh pco` prints another shell's:
bash, zsh, fish or powershell).

| variable | is |
|---|---|
| `PCO_LM`, `PCO_LM_ROLE` | the model of all roles, or of one (`PCO_LM_CRITIC`) |
| `PCO_TASK`, `PCO_DATA`, `PCO_PRESET`, `PCO_BUDGET` | same as the options of those names |
| `PCO_SEED`, `PCO_SIZE`, `PCO_SELECT` | same as the settings of those names |
| `PCO_API_KEY`, `OPENAI_API_KEY` | endpoint keys; put them nowhere else |
| `PCO_RUNS`, `PCO_CACHE` | where runs and the reply cache are kept |
| `PCO_REGISTRY` | the registry: a SQLite file, or the URL of an MLflow server |
| `PCO_SERVE_KEY`, `PCO_REQUESTS` | the keys of `pco serve`'s callers; where it records requests |
| `HF_ENDPOINT`, `PCO_GITHUB_RAW` | other hosts (mirrors) for `pco data fetch` |
| `PCO_TRACEBACK` | 1 = show the traceback of an internal error |
"""


def _commands() -> Iterator[tuple[str, ...]]:
    """Every path of words that names a command, in the order of use."""
    root: Any = typer.main.get_command(tree.app)
    for name in tree.commands():
        yield (name,)
        command: Any = root.get_command(None, name)
        for below in command.list_commands(None) if hasattr(command, "list_commands") else ():
            yield (name, below)


def _help(path: tuple[str, ...]) -> str:
    """What `pco PATH --help` prints, at one width whatever the terminal."""
    out = io.StringIO()
    before = sys.argv, os.environ.get("COLUMNS")
    sys.argv = ["pco", *path, "--help"]
    os.environ["COLUMNS"] = _WIDTH
    try:
        with contextlib.redirect_stdout(out):
            tree.guard()
    finally:
        sys.argv = before[0]
        if before[1] is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before[1]
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())


def page() -> str:
    """The whole of docs/cli.md."""
    parts = [_HEAD]
    for path in ((), *_commands()):
        mark = "##" if len(path) < 2 else "###"
        parts.append(f"{mark} {' '.join(('pco', *path))}\n\n```\n{_help(path)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    target = Path(__file__).parent / "cli.md"
    target.write_text(page(), "utf-8")
    sys.stderr.write(f"{target}\n")
