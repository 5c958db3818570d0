"""What was typed wrong, in our words: the same mistake reads the same in commands and in groups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from promptcodebook.base.text import shipped_table
from promptcodebook.config.loading import near_key
from promptcodebook.errors import ConfigError, did_you_mean


def typed_words() -> dict[str, Any]:
    """What people type, and the messages about it: options.toml."""
    return shipped_table(__file__, "options.toml")


def read_options(root: Any, words: Sequence[str]) -> list[str]:
    """The words that were typed for a command below `root`, earlier spellings replaced. Raises
    ConfigError for an option that has no effect."""
    for old, new in typed_words()["earlier"].items():
        words = [re.sub(rf"^{old}(?=$|=)", new, word) for word in words]
    command, path = root, list[str]()
    for word in words:
        if not hasattr(command, "list_commands") or word not in command.list_commands(None):
            break
        command, path = command.get_command(None, word), [*path, word]
    typed = [word.partition("=")[0] for word in words[len(path) :]]
    given = dict[str, str]()
    params = [each for each in command.params if each.param_type_name == "option"]
    options = {name: each for each in params for name in (*each.opts, *each.secondary_opts)}
    _require_once(params, typed)
    for name in sorted({*typed}.intersection(options)):
        given[name if name[:2] == "--" else max(options[name].opts, key=len)] = name
    for word, after in pairwise(words):
        if word in options and not options[word].is_flag and after.partition("=")[0] in options:
            raise ConfigError(f"{word} needs a value", hint=f"type it before {after}")
    for option, name in given.items():
        for kind, word, mend in (("needs", "without", "add"), ("beside", "with", "remove")):
            other = _conditions(kind, path).get(option)
            if other and (other in given) == (kind == "beside"):
                what, hint = f"{name} has no effect {word} {other}", f"{mend} {other}"
                raise ConfigError(what, hint=f"{hint}, or leave {name} out")
        special = " ".join((*path, *words[len(path) :][:1]))
        if option not in typed_words()["only"].get(special, given):
            raise ConfigError(f"{name} has no effect on pco {special}", hint=f"leave {name} out")
    return [*words]


def _require_once(options: Sequence[Any], typed: Sequence[str]) -> None:
    """Raises ConfigError where all values but the last would be lost."""
    for each in options:
        if not (each.is_flag or each.multiple) and sum(name in each.opts for name in typed) > 1:
            hint = "give it once; limits of a budget are joined: 60calls+5usd"
            raise ConfigError(f"{each.opts[0]} was given more than once", hint=hint)


def _conditions(kind: str, path: Sequence[str]) -> dict[str, str]:
    """What a command's options need, or have no effect with, by their names."""
    known, name = typed_words()[kind], " ".join(path)
    return {**known["*"], **known.get(name, known.get(name.rpartition(" ")[2], {}))}


def usage_error(error: Any) -> ConfigError:
    """The parser's error as one of ours. `error` is the parser's exception, with a message and
    usually the context of the command that it found."""
    message: str = error.format_message().rstrip(".")
    command: Any = error.ctx and error.ctx.command
    place = error.ctx.command_path if error.ctx else "pco"
    if type(error).__name__ == "MissingParameter":
        words = [_argument(p) for p in command.params if p.required]
        hint = f"{place} {' '.join(words)}; {place} --help"
        what = f"missing {error.param.param_type_name} {_argument(error.param)}"
        return ConfigError(what, hint=hint)
    names = [name for param in command.params for name in param.opts] if command else []
    known = [name for name in names if name.startswith("-")]
    known = command.list_commands(error.ctx) if hasattr(command, "list_commands") else known
    for said, ours in typed_words()["said"].items():
        if found := re.search(said, message, re.IGNORECASE):
            near = did_you_mean(found[1], known) if "has no " in ours else ""
            if found[1].lstrip("-") in names:
                near = f" (its value is an argument: type it without {found[1]})"
            elif not (near and found[1].startswith("--")):
                near = _elsewhere(found[1], error.ctx) or near
            message = found.expand(ours).replace("PLACE", place) + near
    hint = f"{place} --help" if error.ctx else "type it after the option"
    return ConfigError(message[:1].lower() + message[1:], hint=hint)


def _elsewhere(word: str, context: Any) -> str:
    """Of an option that is a setting, or a command that a group has: how to type it."""
    if word.startswith("--"):
        key = near_key(word)
        return f" (did you mean '--set {key}=...'?)" if key else ""
    root: Any = context and context.command
    for name in root.list_commands(context) if hasattr(root, "list_commands") else ():
        group = root.get_command(context, name)
        if hasattr(group, "list_commands") and word in group.list_commands(context):
            return f" (did you mean 'pco {name} {word}'?)"
    return ""


def _argument(param: Any) -> str:
    """An argument as usage shows it, an option with its dashes."""
    option = param.opts[0].startswith("-")
    return param.opts[0] if option else (param.metavar or param.name.upper()).strip("[]")
