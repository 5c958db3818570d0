"""What was typed: options that several commands share, and the settings they add up to.

Precedence: command line > PCO_* > pco.toml > preset. pydantic is imported where it is needed, so
that a command's help does not wait for it.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from promptcodebook.cli.console import note
from promptcodebook.errors import ConfigError
from promptcodebook.paths import runs_dir

if TYPE_CHECKING:
    from promptcodebook.config import Config
    from promptcodebook.policy.references import Reference
    from promptcodebook.run.subject import Given


ConfigPath = Annotated[Path | None, typer.Argument(help="pco.toml or its folder.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="pco.toml or its folder.")]
TaskName = Annotated[str | None, typer.Option("--task", help="A ready-made task.")]
DataDir = Annotated[str | None, typer.Option("--data", help="Folder of the task's data.")]
Model = Annotated[str | None, typer.Option("--lm", help="Model of all roles, e.g. URL#MODEL.")]
Preset = Annotated[str | None, typer.Option("--preset", help="default, paper, quick or small.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="Any key: a.b=value.")]
Json = Annotated[bool, typer.Option("--json", help="The result as JSON.")]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of the live view.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Use code, models and body fields of what is not yours.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Budget = Annotated[str | None, typer.Option("--budget", help="E.g. 5usd, 2Mtok, 500calls.")]
Count = Annotated[int | None, typer.Option("--n", help="Use this many examples, chosen by id.")]
Runs = Annotated[int, typer.Option("--samples", help="Sampled runs per example; 1 = greedy.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of every random draw.")]
SplitName = Annotated[str, typer.Option("--split", help="train, val or test.")]
RunRef = Annotated[str, typer.Argument(help="A run: its id or name, a path, or 'last'.")]
Who = Annotated[
    str, typer.Option("--who", help="Who does it, for the log; default: the user's login name.")
]
REF_HELP = (
    "A run (its id or name, a path, 'last'), a policy file, or a version in the registry "
    "(NAME@REF, sha256:DIGITS)."
)
Ref = Annotated[str, typer.Argument(help=REF_HELP)]

_STRINGS = {"PCO_LM": "lm", "PCO_TASK": "task", "PCO_DATA": "data_dir", "PCO_PRESET": "preset",
            "PCO_BUDGET": "budget"}  # fmt: skip
_INTEGERS = {"PCO_SEED": "seed", "PCO_SIZE": "size", "PCO_SELECT": "select"}

_UNCUT = 1000
"""Letters of a summary, more than any has."""

_NONE_IS_A_CHOICE = ("encoder.mode", "explore.policy")
"""Keys for which 'none' is a value like any other; everywhere else it means: not set."""
_TEXTS = ("base_prompt", "init.prompt", "output_format")
"""Keys whose value is a prompt, word for word, also where it looks like JSON."""


class CommandGroup(TyperGroup):
    """Its help lists each command with its whole first sentence, wrapped and not cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        named = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, command.get_short_help_str(limit=_UNCUT))
            for name, command in named
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def command_group(help_text: str = "", kind: type[CommandGroup] = CommandGroup) -> typer.Typer:
    """An empty group of commands; without help it only holds a file's commands together."""
    return typer.Typer(
        cls=kind,
        rich_markup_mode=None,
        add_completion=False,
        no_args_is_help=True,
        help=help_text,
    )


def flag_layer(
    task: str | None = None,
    data: str | None = None,
    lm: str | None = None,
    preset: str | None = None,
    seed: int | None = None,
    budget: str | None = None,
) -> dict[str, Any]:
    """Options as a layer of the configuration, those left out that were not given."""
    flags = {
        "task": task,
        "data_dir": str(Path(data).resolve()) if data else None,
        "lm": lm,
        "preset": preset,
        "seed": seed,
        "budget": budget or None,
    }
    return {key: value for key, value in flags.items() if value is not None}


def environment_layer(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """PCO_LM, PCO_TASK, PCO_DATA, PCO_PRESET, PCO_SEED, PCO_SIZE, PCO_SELECT, PCO_BUDGET and
    PCO_LM_<ROLE>."""
    from promptcodebook.calls import ROLES

    layer: dict[str, Any] = {}
    for name, key in _STRINGS.items():
        if environment.get(name):
            layer[key] = environment[name]
    for name, key in _INTEGERS.items():
        if environment.get(name):
            layer[key] = _integer(name, environment[name])
    for role in ROLES:
        spec = environment.get(f"PCO_LM_{role.upper()}")
        if spec:
            layer.setdefault("roles", {})[role] = {"model": spec}
    return layer


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} is not a whole number: {text!r}", hint=f"unset {name}") from None


def set_layer(pairs: Sequence[str]) -> dict[str, Any]:
    """--set a.b=value: TOML-like values, anything else is text."""
    from promptcodebook.config import merge

    layer: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"cannot read --set {pair!r}", hint="write --set key.sub=value")
        tree: Any = _parse_value(key.strip(), text.strip())
        for part in reversed(key.strip().split(".")):
            tree = {part: tree}
        layer = merge(layer, tree)
    return layer


def _parse_value(key: str, text: str) -> Any:
    if key in _TEXTS:
        return text
    if text in ("none", "null", "None") and key not in _NONE_IS_A_CHOICE:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return _parse_toml(text) if text.startswith(("{", "[")) else text


def _parse_toml(text: str) -> Any:
    """A list or table as it would be written in pco.toml: {kind = "exact"}."""
    try:
        tree = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return tree["value"] if tree.keys() == {"value"} else text


def config_layers(
    config: Path | None, flags: Mapping[str, Any], sets: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """The settings of a pco.toml, those of the command line and the environment, and the folder
    that the file's paths start from. Without a path, ./pco.toml is read if it is there."""
    from promptcodebook.config import merge

    file, base = _toml_layer(config)
    return file, merge(environment_layer(), flags, set_layer(sets)), base


def _toml_layer(config: Path | None) -> tuple[dict[str, Any], Path]:
    from promptcodebook.config import read_toml

    path = toml_path(config)
    if path is None:
        return {}, Path()
    return read_toml(path), path.parent


def toml_path(config: Path | None) -> Path | None:
    """The pco.toml that is read: the one named, or in the folder named, else ./pco.toml if any."""
    path = config or (Path("pco.toml") if Path("pco.toml").is_file() else None)
    return path / "pco.toml" if path is not None and path.is_dir() else path


def gather_settings(
    config: Path | None, flags: Mapping[str, Any], sets: Sequence[str] | None = None
) -> tuple[Config, Path]:
    """The configuration and the folder its paths start from."""
    from promptcodebook.config import load_typed

    file, typed, base = config_layers(config, flags, sets or ())
    return load_typed(file, typed=typed, where=str(toml_path(config))), base


_AS_FILES = {
    "data": "--set data.path=data.jsonl",
    "reward": "--set reward=reward.py:reward",
    "executor": "--set executor=agent.py:run",
    "lm": "--lm SPEC",
}


@dataclass(frozen=True, slots=True)
class Typed:
    """What was typed beside the REF; None = not given."""

    config: Path | None = None
    task: str | None = None
    data: str | None = None
    lm: str | None = None
    budget: str | None = None
    sets: Sequence[str] = ()
    trust: bool = False

    def given(self, verb: str = "") -> Given:
        """The same for `Subject.resolve`; `verb` is the command."""
        from promptcodebook.config import merge
        from promptcodebook.run.subject import Given

        return Given(
            verb=verb,
            above=merge(flag_layer(self.task, self.data, self.lm), set_layer(self.sets)),
            below=lambda: _toml_layer(self.config),
            named=self.config is not None,
            environment=environment_layer(),
            budget=self.budget,
            runs_dir=runs_dir(),
            trust=self.trust,
            again=_AS_FILES,
            tell=note,
        )


def settings_for(reference: Reference, typed: Typed) -> tuple[Config, Path]:
    """The configuration that a REF is used under, and the folder that its paths start from."""
    return typed.given().settings(reference)
