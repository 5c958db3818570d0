"""What was typed wrong, in our words: the same mistake reads the same in commands and in groups."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from promptcodebook.errors import ConfigError, did_you_mean

# What a value must be, by how the parser says so.
_KINDS = {
    r"valid integer": "a whole number",
    r"valid number": "a number",
    r"greater than or equal to (.+)": r"\1 or more",
    r"less than or equal to (.+)": r"\1 or less",
}


def usage_error(error: Any) -> ConfigError:
    """The parser's error as one of ours. `error` is an exception of the parser's, with a message
    and mostly the context of the command that it found."""
    message, kind = error.format_message().rstrip("."), type(error).__name__
    place = "pco" if error.ctx is None else error.ctx.command_path
    hint = f"{place} --help"
    if kind == "NoSuchOption":
        options = [p for p in error.ctx.command.params if not getattr(p, "hidden", False)]
        known = [name for p in options for name in p.opts if name.startswith("--")]
        near = did_you_mean(error.option_name, known)
        return ConfigError(f"{place} has no option {error.option_name}{near}", hint=hint)
    if found := re.search(r"no such command '(.*?)'", message, re.IGNORECASE):
        known = error.ctx.command.list_commands(error.ctx)
        near = did_you_mean(found[1], known)
        return ConfigError(f"{place} has no command {found[1]!r}{near}", hint=hint)
    if kind == "MissingParameter":
        name = _argument(error.param)
        words = [_argument(p) for p in error.ctx.command.params if p.required]
        return ConfigError(f"missing argument {name}", hint=f"{place} {' '.join(words)}; {hint}")
    if found := re.search(r"Option '(.*?)' requires an argument", message):
        return ConfigError(f"{found[1]} needs a value", hint=f"{' '.join(_command())} --help")
    if found := re.search(r"unexpected extra arguments? ?(?:\(s\) )?\((.*)\)", message):
        return ConfigError(f"{place} has no place for the argument {found[1]!r}", hint=hint)
    name = error.param.opts[0] if getattr(error, "param", None) else ""
    for said, wanted in _KINDS.items():
        if name and (found := re.search(said, message)):
            typed = next(_values(error.param.opts), "")
            takes = f"{name} takes {found.expand(wanted)}"
            return ConfigError(f"{takes}, and {typed!r} is not" if typed else takes, hint=hint)
    return ConfigError(message[:1].lower() + message[1:], hint=hint)


def _argument(param: Any) -> str:
    """An argument as usage shows it, an option with its dashes."""
    option = param.opts[0].startswith("-")
    return param.opts[0] if option else (param.metavar or param.name.upper()).strip("[]")


def _command() -> Iterator[str]:
    """The words of the command that was typed, before its first option."""
    yield "pco"
    for word in sys.argv[1:]:
        if not re.fullmatch(r"[a-z]+", word):
            return
        yield word


def _values(names: list[str]) -> Iterator[str]:
    """What was typed behind an option."""
    for word, behind in zip(sys.argv, [*sys.argv[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            yield value if equals else behind
