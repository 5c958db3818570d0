"""The command tree, and the one place where an error becomes a message and an exit code. A
command's code is imported when it is typed, so that `--help` stays fast. Core knows the names of
the commands that outer parts register, and what to install for them."""

from __future__ import annotations

import codecs
import contextlib
import errno
import importlib
import io
import json
import os
import sys
import tomllib
from functools import cache
from importlib import resources
from typing import Any, cast

import typer
from typer.core import TyperGroup

from promptcodebook import errors
from promptcodebook.base.text import printable

COMMAND_GROUP = "promptcodebook.commands"

_NOBODY_THERE = (errno.EPIPE, errno.EIO)


@cache
def command_groups() -> dict[str, dict[str, tuple[str, str]]]:
    """Heading -> name -> (file in this folder, or in brackets the extra to install; one line of
    help)."""
    text = (resources.files("promptcodebook.cli") / "commands.toml").read_text("utf-8")
    return cast("Any", tomllib.loads(text))


@cache
def commands() -> dict[str, tuple[str, str]]:
    """The same without the headings."""
    return {name: entry for group in command_groups().values() for name, entry in group.items()}


class _Lazy(TyperGroup):
    """Lists commands from the table and imports one only when it is run or asked for help."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] == "codebook":  # an earlier name, which still works but is listed nowhere
            policy = args[1:2] == ["export"] and any(word.startswith("--to") for word in args)
            args = args[1:] if policy else ["registry", *args[1:]]
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in commands():
            if "." not in cmd_name and errors.registered(COMMAND_GROUP).select(name=cmd_name):
                return outer_command(cmd_name, "")  # of a plug-in
            ctx.fail(f"no such command {cmd_name!r}")
        home, _ = commands()[cmd_name]
        if home.startswith("["):
            return outer_command(cmd_name, home.strip("[]"))
        module = importlib.import_module(f"promptcodebook.cli.{home}")
        return typer.main.get_group(module.app).commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, commands()))
        for title, group in command_groups().items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), about) for name, (_, about) in group.items()]
                )


def outer_command(path: str, extra: str) -> Any:
    """The command that a part registered, such as "registry.audit", or one that names its extra."""
    from promptcodebook.cli.command import command_group

    typed = f"pco {path.replace('.', ' ')}"
    holder, name = command_group(), path.rpartition(".")[2]
    try:
        made = errors.import_part(COMMAND_GROUP, path, typed, extra)
    except errors.MissingExtra as missing:
        error = missing

        def absent(_: list[str] | None = typer.Argument(None, hidden=True)) -> None:
            raise error

        anything = {"ignore_unknown_options": True}
        holder.command(name, help=f"Not installed: {error.hint}", context_settings=anything)(absent)
    else:
        if isinstance(made, typer.Typer):
            holder.add_typer(made, name=name)
        else:
            holder.command(name)(made)
    return typer.main.get_group(holder).commands[name]


app = typer.Typer(
    cls=_Lazy,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Prompt Codebook Optimization: learn a codebook of short instincts, and compose a prompt "
    "for every input. Results go to stdout, progress to stderr; --json prints results as JSON. "
    "Start with `pco demo`.",
)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        import promptcodebook

        print(promptcodebook.__version__)
        raise typer.Exit


def guard() -> int:
    """Runs the command line: 0 done, 1 failed, 2 usage, 3 budget reached, 130 interrupted."""
    command: Any = typer.main.get_command(app)
    # A code page that lacks a letter must not end a command: the letter is escaped, which is
    # valid in JSON and TOML too.
    codecs.register_error("pco", _escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="pco")
    try:
        if any(word.startswith("-") for word in sys.argv[2:]):
            from promptcodebook.cli.usage import read_options

            sys.argv[1:] = read_options(command, sys.argv[1:])
        code = command(prog_name="pco", standalone_mode=False)
        sys.stdout.flush()  # a missing reader shows here, not at interpreter exit
        return code if isinstance(code, int) else 0
    except errors.PcoError as error:
        _print_error(error)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        with contextlib.suppress(OSError):
            print("pco: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NOBODY_THERE:
            # The reader (head, say) or the terminal is gone: say nothing, not even at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            return _print_usage(error)
        if os.environ.get("PCO_TRACEBACK"):
            raise
        print(
            f"pco: internal error: {type(error).__name__}: {errors.message_of(error)}\n"
            "  next: rerun it with PCO_TRACEBACK=1 and report what it shows",
            file=sys.stderr,
        )
        return 1


def _escape(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _print_usage(error: Any) -> int:
    message = error.format_message()
    if not message or message.startswith("Usage:"):  # a group without a command: show its help
        error.show()
    else:
        from promptcodebook.cli.usage import usage_error

        _print_error(usage_error(error))
    return int(error.exit_code)


def _print_error(error: errors.PcoError) -> None:
    if "--json" in sys.argv:
        body = {"error": type(error).__name__, "message": str(error), "hint": error.hint}
        if error.run is not None:
            from promptcodebook.cli.train import verdict_json

            body |= verdict_json(error.run)
        print(json.dumps(body, ensure_ascii=False, default=str))
    word = "stopped" if isinstance(error, errors.Stop) else "error"
    print(f"pco: {word}: {printable(str(error))}", file=sys.stderr)
    if error.hint:
        print(f"  next: {printable(error.hint)}", file=sys.stderr)
