"""Layers of settings -> one checked Config, with errors a person can act on."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from promptcodebook.config.groups import RoleSettings
from promptcodebook.config.presets import default_roles, preset
from promptcodebook.config.schema import Config
from promptcodebook.errors import ConfigError, did_you_mean

__all__ = ["load_config", "merge", "read_toml"]

_QUOTABLE = ("int_", "float_", "bool_", "greater_", "less_", "literal_")
"""Faults of numbers and choices: their value may be said, it is no secret."""


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Trees laid over each other, later ones winning key by key."""
    out: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            old = out.get(key)
            if isinstance(old, dict) and isinstance(value, Mapping):
                out[key] = merge(old, value)  # type: ignore[arg-type]
            else:
                out[key] = merge(value) if isinstance(value, Mapping) else value  # type: ignore[arg-type]
    return out


def load_config(*layers: Mapping[str, Any], where: str = "the configuration") -> Config:
    """Defaults < preset < layers, checked. Raises ConfigError naming key, place and next step."""
    merged = merge(*layers)
    defaults = {"roles": {r: s.model_dump() for r, s in default_roles().items()}}
    tree = merge(defaults, preset(str(merged.get("preset", "default"))), merged)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise _readable(error, where) from None


def read_toml(path: Path) -> dict[str, Any]:
    """A pco.toml as a plain tree."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no configuration at {path}", hint="pco init") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", hint=f"edit {path}") from None


def _readable(error: ValidationError, where: str) -> ConfigError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _known_keys(first["loc"][:-1])
        word = str(first["loc"][-1])
        return ConfigError(
            f"unknown key {key!r} in {where}{did_you_mean(word, known)}",
            hint=f"known here: {', '.join(sorted(known))}",
        )
    said = first["msg"].removeprefix("Value error, ")
    if first["type"].startswith(_QUOTABLE):
        said = f"{said.partition(', unable')[0]}, not {first['input']!r}"
    return ConfigError(f"{where}: {key + ': ' if key else ''}{said}", hint="correct that key")


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Config
    for part in loc:
        if part == "roles":
            model = RoleSettings
            continue
        found = model.model_fields.get(str(part))
        kind = found.annotation if found is not None else None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            model = kind
    return list(model.model_fields)
