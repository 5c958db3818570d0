"""Layers of settings -> one checked Config, with errors a person can act on."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from promptcodebook.config.groups import Budget
from promptcodebook.config.schema import Config, RoleSettings, default_roles, preset
from promptcodebook.config.secrets import without_secrets
from promptcodebook.config.small import text_updates_layer
from promptcodebook.errors import ConfigError, did_you_mean

TYPED = "the command line or PCO_*"
"""Where settings come from that were typed for this use."""
_QUOTABLE = ("int_", "float_", "bool_", "greater_", "less_", "literal_")
"""Faults of numbers and choices: their value may be shown, it is no secret."""


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
    """Defaults < preset < layers, checked. Raises ConfigError naming key, place and next step.

    A layer that sends a role to another address takes away the headers, and the secrets in
    the body, that layers below gave for the old one.
    """
    return _checked(layers, where)


def load_typed(
    *layers: Mapping[str, Any], typed: Mapping[str, Any], where: str, typed_where: str = TYPED
) -> Config:
    """`load_config` of what was `typed` over the layers, which are those of `where`: an error names
    the one of the two that is at fault."""
    try:
        return _checked((*layers, typed), typed_where)
    except ConfigError:
        _checked(layers, where)
        raise


def _checked(layers: Sequence[Mapping[str, Any]], where: str) -> Config:
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = merge(_without_moved_headers(merged, layer), layer)
    defaults = {"roles": {r: s.model_dump() for r, s in default_roles().items()}}
    chosen = preset(str(merged.get("preset", "default")))
    tree = merge(defaults, chosen, text_updates_layer(merged), merged)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise _readable(error, where) from None


def _without_moved_headers(below: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """`below` without the headers, and the secrets in the body, of those roles that `layer` sends
    to another address."""
    out = merge(below)
    after = merge(below, layer)
    for role, settings in _roles(out).items():
        old, new = (_address(_spec(tree, role)) for tree in (below, after))
        if isinstance(settings, dict) and old not in ("", new):
            settings.pop("headers", None)  # type: ignore[union-attr]
            if isinstance(settings.get("extra"), dict):  # type: ignore[union-attr]
                settings["extra"] = without_secrets(settings["extra"])  # type: ignore[index]
    return out


def _roles(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    roles: Any = tree.get("roles")
    return cast("Mapping[str, Any]", roles) if isinstance(roles, Mapping) else {}


def _spec(tree: Mapping[str, Any], role: str) -> str:
    """The spec of the role's model as far as the tree says; '' = it does not."""
    settings: Any = _roles(tree).get(role)
    own: Any = cast("Any", settings).get("model") if isinstance(settings, Mapping) else None
    return str(own or tree.get("lm") or "")


def _address(spec: str) -> str:
    """What of a spec says where calls go: all but the model's name."""
    if "://" in spec:
        return spec.partition("#")[0].rstrip("/").removesuffix("/chat/completions")
    return spec.rpartition("/")[0] or spec.partition("?")[0]


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
    fault = first["msg"].removeprefix("Value error, ")
    if first["type"].startswith(_QUOTABLE):
        fault = f"{fault.partition(', unable')[0]}, not {first['input']!r}"
    return ConfigError(f"{where}: {key + ': ' if key else ''}{fault}", hint="correct that key")


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Config
    for part in loc:
        if part == "roles":
            model = RoleSettings
            continue
        field = model.model_fields.get(str(part))
        kind = field.annotation if field is not None else None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            model = kind
    return list(model.model_fields)


_BUDGET = re.compile(
    r"^\s*([0-9]*\.?[0-9]+)\s*(usd|\$|calls?|k?tok|mtok|tokens?|s|min|h)\s*$", re.I
)

_MOST_DIGITS = 30
"""Of a number in a budget: with a few hundred it is no float any more."""


def parse_budget(text: str) -> Budget:
    """'5usd', '2Mtok', '300ktok', '1000calls', '30min'; several joined by '+' or ','."""
    fields: dict[str, Any] = {}
    for part in re.split(r"[+,]", text):
        match = _BUDGET.match(part)
        if match is None or len(match[1]) > _MOST_DIGITS:
            raise ConfigError(
                f"cannot read the budget {part.strip()[:40]!r}",
                hint="write e.g. 5usd, 2Mtok, 1000calls, 30min, or several joined by '+'",
            )
        number, unit = float(match[1]), match[2].lower()
        fields.update(_budget_field(number, unit))
    return Budget(**fields)


def budget_layer(text: str) -> dict[str, Any]:
    """The budget as settings to lay over others: a limit that it leaves out is lifted."""
    return parse_budget(text).model_dump(exclude={"reserve_for_verdict"})


def role_layers(roles: Mapping[str, Any] | None) -> dict[str, Any]:
    """{'critic': 'openai/x'} and {'critic': {'model': ...}} mean the same."""
    layers: dict[str, Any] = {}
    for role, value in (roles or {}).items():
        if isinstance(value, str):
            layers[role] = {"model": value}
        elif isinstance(value, Mapping):
            layers[role] = dict(cast("Mapping[str, Any]", value))
        else:
            raise ConfigError(
                f"roles[{role!r}] is of type {type(value).__name__}",
                hint="give a model's spec, or a mapping of settings",
            )
    return layers


def _budget_field(number: float, unit: str) -> dict[str, Any]:
    if unit in ("usd", "$"):
        return {"usd": number}
    if unit.startswith("call"):
        return {"calls": int(number)}
    if unit in ("s", "min", "h"):
        return {"seconds": number * {"s": 1, "min": 60, "h": 3600}[unit]}
    scale = {"mtok": 1_000_000, "ktok": 1_000}.get(unit, 1)
    return {"tokens": int(number * scale)}
