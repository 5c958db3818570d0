"""What was typed wrong, in our words: the same mistake reads the same in commands and in groups."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from promptcodebook.errors import ConfigError, did_you_mean

# What a value must be, by how the parser says so.
_KINDS = {
    r"valid integer": "a whole number",
    r"valid number": "a number",
    r"greater than or equal to (.+)": r"\1 or more",
    r"less than or equal to (.+)": r"\1 or less",
}


@cache
def effects() -> dict[str, Any]:
    """When an option takes effect: options.toml."""
    text = (resources.files("promptcodebook.cli") / "options.toml").read_text("utf-8")
    return tomllib.loads(text)


def require_effects(root: Any, words: Sequence[str]) -> None:
    """Raises ConfigError for an option of a command below `root` that was typed for nothing."""
    command, path = root, list[str]()
    for word in words:
        if not hasattr(command, "list_commands") or word not in command.list_commands(None):
            break
        command, path = command.get_command(None, word), [*path, word]
    typed = {word.partition("=")[0] for word in words[len(path) :]}
    given = dict[str, str]()
    for param in command.params:
        for name in typed.intersection((*param.opts, *param.secondary_opts)):
            given[name if name[:2] == "--" else max(param.opts, key=len)] = name
    for option, name in given.items():
        for kind, word, mend in (("needs", "without", "add"), ("beside", "beside", "remove")):
            other = _effects(kind, path).get(option)
            if other and (other in given) == (kind == "beside"):
                what, hint = f"{name} has no effect {word} {other}", f"{mend} {other}"
                raise ConfigError(what, hint=f"{hint}, or leave {name} out")
        special = " ".join((*path, *words[len(path) :][:1]))
        if option not in effects()["only"].get(special, given):
            raise ConfigError(f"{name} has no effect on pco {special}", hint=f"leave {name} out")


def _effects(kind: str, path: Sequence[str]) -> dict[str, str]:
    """What the options of a command need, or have no effect beside, by their names."""
    known, name = effects()[kind], " ".join(path)
    return {**known["*"], **known.get(name, known.get(name.rpartition(" ")[2], {}))}


def usage_error(error: Any) -> ConfigError:
    """The parser's error as one of ours. `error` is an exception of the parser's, with a message
    and mostly the context of the command that it found."""
    message, kind = error.format_message().rstrip("."), type(error).__name__
    command: Any = error.ctx and error.ctx.command
    place = error.ctx.command_path if error.ctx else "pco"
    hint = f"{place} --help"
    if kind == "NoSuchOption":
        options = [p for p in command.params if not getattr(p, "hidden", False)]
        known = [name for p in options for name in p.opts if name.startswith("--")]
        near = did_you_mean(error.option_name, known)
        return ConfigError(f"{place} has no option {error.option_name}{near}", hint=hint)
    if found := re.search(r"no such command '(.*?)'", message, re.IGNORECASE):
        known = command.list_commands(error.ctx)
        near = did_you_mean(found[1], known)
        return ConfigError(f"{place} has no command {found[1]!r}{near}", hint=hint)
    if kind == "MissingParameter":
        name = _argument(error.param)
        words = [_argument(p) for p in command.params if p.required]
        return ConfigError(f"missing argument {name}", hint=f"{place} {' '.join(words)}; {hint}")
    if found := re.search(r"Option '(.*?)' requires an argument", message):
        return ConfigError(f"{found[1]} needs a value", hint=f"type it behind {found[1]}")
    if found := re.search(r"unexpected extra arguments? ?(?:\(s\) )?\((.*)\)", message):
        return ConfigError(f"{place} has no place for the argument {found[1]!r}", hint=hint)
    name = error.param.opts[0] if getattr(error, "param", None) else ""
    for said, wanted in _KINDS.items():
        if name and (found := re.search(said, message)):
            return ConfigError(f"{name} takes {found.expand(wanted)}", hint=hint)
    return ConfigError(message[:1].lower() + message[1:], hint=hint)


def _argument(param: Any) -> str:
    """An argument as usage shows it, an option with its dashes."""
    option = param.opts[0].startswith("-")
    return param.opts[0] if option else (param.metavar or param.name.upper()).strip("[]")
