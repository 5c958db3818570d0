"""The command tree. A command's code is imported when it is typed, so that `--help` stays fast."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from promptcodebook.cli.boundary import guarded
from promptcodebook.errors import did_you_mean

__all__ = ["COMMANDS", "app", "run"]

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Offline tour on the simulated model: train, evaluate, report."),
    "init": ("init", "Scaffold pco.toml, data.jsonl and reward.py."),
    "doctor": ("doctor", "Check the endpoint: what works, and what to type next."),
    "data": ("data", "Look at a data file, or fetch a benchmark's data."),
    "estimate": ("estimate", "Calls, tokens and money by role, before anything is spent."),
    "train": ("train", "Learn a codebook; ends with a verdict."),
    "eval": ("evaluate", "Score a run or a policy file on a split."),
    "bench": ("bench", "Train, evaluate and report on every benchmark; skips what is done."),
    "compare": ("compare", "Two runs or policies on the same examples."),
    "explain": ("explain", "Route, composed prompt and reasons for one input."),
    "codebook": ("codebook", "Show a codebook, its history, or a difference."),
    "report": ("report", "One self-contained HTML file about a run."),
    "runs": ("runs", "List, show or remove runs."),
    "cache": ("cache", "The reply cache: stats, clear."),
    "lm": ("lm", "Serve the simulated model over HTTP."),
}
"""Name -> (file in this folder, one line of help). The order is the order of use."""


class _Lazy(TyperGroup):
    """Lists commands from the table and imports one only when it is run or asked for help."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            close = did_you_mean(cmd_name, COMMANDS)
            ctx.fail(f"no command {cmd_name!r}{close}")
        module = importlib.import_module(f"promptcodebook.cli.{COMMANDS[cmd_name][0]}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, said) for name, (_, said) in COMMANDS.items()])


app = typer.Typer(
    cls=_Lazy,
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Prompt Codebook Optimization: learn a codebook of short instincts, and compose a prompt "
    "for every input. Results go to stdout, progress to stderr; --json gives machines what they "
    "want. Start with `pco demo`.",
)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and leave."),
) -> None:
    if version:
        from promptcodebook.version import version as installed

        print(installed())
        raise typer.Exit


def run() -> None:
    """Runs the command line; the exit code says how it went (0, 1, 2, 3 or 130)."""
    sys.exit(guarded(typer.main.get_command(app)))
