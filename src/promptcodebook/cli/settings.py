"""Command line > PCO_* > pco.toml > defaults -> one checked Config."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from promptcodebook.config import Config, load_config, merge, parse_budget, read_toml
from promptcodebook.errors import ConfigError
from promptcodebook.types import ROLES

__all__ = ["environment_layer", "gathered", "runs_dir", "set_layer"]

_PLAIN = {"PCO_LM": "lm", "PCO_TASK": "task", "PCO_DATA": "data_dir", "PCO_PRESET": "preset"}
_WHOLE = {"PCO_SEED": "seed", "PCO_SIZE": "size", "PCO_SELECT": "select"}

_NONE_IS_A_CHOICE = ("encoder.mode", "explore.policy")
"""Keys for which 'none' is a value like any other; everywhere else it means: not set."""


def environment_layer(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """PCO_LM, PCO_TASK, PCO_DATA, PCO_PRESET, PCO_SEED, PCO_SIZE, PCO_SELECT, PCO_BUDGET and
    PCO_LM_<ROLE>."""
    layer: dict[str, Any] = {}
    for name, key in _PLAIN.items():
        if environment.get(name):
            layer[key] = environment[name]
    for name, key in _WHOLE.items():
        if environment.get(name):
            layer[key] = _whole(name, environment[name])
    if environment.get("PCO_BUDGET"):
        layer["budget"] = parse_budget(environment["PCO_BUDGET"]).model_dump()
    for role in ROLES:
        spec = environment.get(f"PCO_LM_{role.upper()}")
        if spec:
            layer.setdefault("roles", {})[role] = {"model": spec}
    return layer


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} is not a whole number: {text!r}", hint=f"unset {name}") from None


def set_layer(pairs: Sequence[str]) -> dict[str, Any]:
    """--set a.b=value: TOML-like values, anything else is text."""
    layer: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"cannot read --set {pair!r}", hint="write --set key.sub=value")
        tree: Any = _value(key.strip(), text.strip())
        for part in reversed(key.strip().split(".")):
            tree = {part: tree}
        layer = merge(layer, tree)
    return layer


_TEXTS = ("base_prompt", "init.prompt", "output_format")
"""Keys whose value is a prompt, word for word, also where it looks like JSON."""


def _value(key: str, text: str) -> Any:
    if key in _TEXTS:
        return text
    if text in ("none", "null", "None") and key not in _NONE_IS_A_CHOICE:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return _toml(text) if text.startswith(("{", "[")) else text


def _toml(text: str) -> Any:
    """A list or table as it stands in pco.toml: {kind = "exact"}."""
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["value"] if read.keys() == {"value"} else text


def gathered(
    config: Path | None, flags: Mapping[str, Any], sets: Sequence[str] = ()
) -> tuple[Config, Path]:
    """The configuration and the folder its paths start from.

    Without a path, ./pco.toml is read if it is there. `flags` that are None were not given.
    """
    path = config or (Path("pco.toml") if Path("pco.toml").is_file() else None)
    if path is not None and path.is_dir():
        path = path / "pco.toml"
    file = read_toml(path) if path is not None else {}
    if isinstance(file.get("budget"), str):
        file["budget"] = parse_budget(file["budget"]).model_dump()
    given = {key: value for key, value in flags.items() if value is not None}
    typed = merge(environment_layer(), given, set_layer(sets))
    base = path.parent if path is not None else Path()
    try:
        return load_config(file, typed, where="the command line or PCO_*"), base
    except ConfigError:
        # If the file alone is at fault already, that is where to look.
        load_config(file, where=str(path))
        raise


def runs_dir() -> Path:
    """Where runs live: $PCO_RUNS, else ./runs."""
    return Path(os.environ.get("PCO_RUNS") or "runs")
