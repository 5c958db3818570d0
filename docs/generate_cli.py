"""Writes docs/cli.md from every command's own --help: python docs/generate_cli.py"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from promptcodebook.cli import app as tree

_WIDTH = "90"
_HEAD = """# Commands

Written by `python docs/generate_cli.py` from each command's `--help`.

Results go to stdout, progress and errors to stderr. `--json` prints results and errors as JSON.
Output to pipes and files is plain text; `NO_COLOR` removes the colours. Exit codes: 0 done, 1
failed, 2 usage, 3 budget reached (resumable), 130 interrupted (resumable).

`pco --install-completion` sets up completion in bash, zsh, fish or PowerShell. `pco
--show-completion` prints the script for your shell; `_PCO_COMPLETE=source_zsh pco` prints the zsh
script.

Variables:

- `PCO_LM`, `PCO_LM_ROLE`: the model for all roles, or for one (`PCO_LM_CRITIC`)
- `PCO_TASK`, `PCO_DATA`, `PCO_PRESET`, `PCO_BUDGET`: the options of the same name
- `PCO_SEED`, `PCO_SIZE`, `PCO_SELECT`: the settings of the same name
- `PCO_API_KEY`, `OPENAI_API_KEY`: endpoint keys; don't put them anywhere else
- `PCO_RUNS`, `PCO_CACHE`, `PCO_REGISTRY`: where runs, the reply cache and the registry are stored
- `PCO_SERVE_KEY`: keys that callers of `pco serve` may send
- `PCO_REQUESTS`: where `pco serve` records requests
- `HF_ENDPOINT`, `PCO_GITHUB_RAW`: mirrors for `pco data fetch`
- `PCO_TRACEBACK`: 1 = show the traceback of an internal error
"""
_SHARED = """## Shared options

Every command takes `--help` and `--json`. Several commands share the options below. *training*
and *policy* stand for:

{groups}

Defaults are in brackets. `pco COMMAND --help` explains the *advanced* options.

"""
_GROUPS = {
    "training": (
        "config",
        "--task",
        "--data",
        "--lm",
        "--preset",
        "--set",
        "--agent",
        "--prompt",
        "--question",
    ),
    "policy": ("--config", "--task", "--data", "--lm", "--set", "--trust"),
}
"""Options that commands take together, and so are named by one word."""
_LISTS = ("Arguments:", "Options:", "Advanced:")
"""What the help lists below these headings is listed here too."""
_OFTEN = 2
"""An option that this many commands explain in the same words is explained once."""
_IN_HEAD = {
    ("--help", "Show this message and exit."),
    ("--json", "Print the result as JSON."),
}
"""What every command has, in the same words, so that none names it."""


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


def _entries(lines: list[str]) -> dict[str, str]:
    """What each argument or option is, by how it is typed; lines further in continue one."""
    found: dict[str, str] = {}
    for line in lines:
        if line.startswith("   "):
            last = [*found][-1]
            found[last] += line.strip() if found[last].endswith("-") else f" {line.strip()}"
        elif line.strip():
            typed, _, text = line.strip().partition("  ")
            found[typed] = text.strip()
    # How wide the other options are decides where the help breaks a line, and no word of it.
    texts = {
        typed: " ".join(text.replace("[required]", "").split()) for typed, text in found.items()
    }
    return {typed: text for typed, text in texts.items() if (typed, text) not in _IN_HEAD}


def _sections(path: tuple[str, ...]) -> dict[str, list[str]]:
    """The lines of a command's help, by the heading above them; '' = what it does."""
    found: dict[str, list[str]] = {"": []}
    for line in _help(path).splitlines()[1:]:
        if line in (*_LISTS, "Commands:"):
            found[line] = []
        else:
            found[[*found][-1]].append(line)
    return found


def _listed(entries: dict[str, str]) -> list[str]:
    """A line for each: options as --name=<kind>, defaults in brackets."""
    lines: list[str] = []
    for typed, text in entries.items():
        name = (
            re.sub(r" (?=[<A-Za-z])", "=", typed.replace(" range>", ">"))
            if "--" in typed
            else typed
        )
        text = re.sub(r"^A run \(.*sha256:DIGITS\)\. Or ", "A `ref`, or ", text)
        for pattern, short in ((r"\[default: ", "["), (r" +", " ")):
            text = re.sub(pattern, short, text)
        lines.append(f"- `{name}`: {text}".rstrip(": "))
    return lines


def _named(entries: Iterable[str]) -> str:
    """The names of a command's options, those of a whole group by the group's name."""
    names = [re.split(" [<A-Z]", entry)[0] for entry in entries]
    parts: list[str] = []
    for group, options in _GROUPS.items():
        if set(options) <= set(names):
            parts.append(f"*{group}*")
            names = [name for name in names if name not in options]
    return ", ".join([*parts, *(f"`{name}`" for name in names)])


def page() -> str:
    """The whole of docs/cli.md."""
    sections = {path: _sections(path) for path in _commands()}
    takes = {
        path: {title: _entries(each.get(title, [])) for title in _LISTS}
        for path, each in sections.items()
    }
    counted = Counter(e for each in takes.values() for kind in each.values() for e in kind.items())
    shared = {entry for entry, n in counted.items() if n >= _OFTEN}
    groups = [f"- *{name}*: `{'`, `'.join(options)}`" for name, options in _GROUPS.items()]
    head = _SHARED.format(groups="\n".join(groups))
    parts = [_HEAD, head + "\n".join(_listed(dict(sorted(shared))))]
    headings = {next(iter(group)): title for title, group in tree.command_groups().items()}
    for path, each in sections.items():
        if len(path) < 2 and path[0] in headings:
            parts.append(f"## {headings[path[0]]}")
        own = {
            title: {typed: text for typed, text in entries.items() if (typed, text) not in shared}
            for title, entries in takes[path].items()
        }
        often = _named(e for k, entries in takes[path].items() for e in entries if e not in own[k])
        rare = _named(own["Advanced:"])
        lines = [*_listed(own["Arguments:"] | own["Options:"])]
        named = [f"Advanced: {rare}"] * bool(rare) + [f"Shared: {often}"] * bool(often)
        lines += [f"- {'. '.join(named)}"] * bool(named)
        parts.append(f"{'#' * (2 + len(path))} pco {' '.join(path)}\n")
        parts += ["\n".join(line.strip() for line in each[""]), "\n".join(lines)]
    parts = [part.strip() for part in parts]
    return "\n\n".join(part for part in parts if part) + "\n"


if __name__ == "__main__":
    target = Path(__file__).parent / "cli.md"
    target.write_text(page(), "utf-8")
    sys.stderr.write(f"{target}\n")
