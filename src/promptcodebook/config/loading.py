"""Layers of settings -> one checked Config, and a description of every key.

Errors name the key, the place and the next step. `describe` reads each key's line from the source
when somebody asks: pydantic's `use_attribute_docstrings` would do so at each import, for 40 ms.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from promptcodebook.config.schema import (
    TRAINING,
    Budget,
    Config,
    OptimizerSettings,
    Price,
    RoleSettings,
    default_roles,
    preset,
)
from promptcodebook.config.secrets import without_secrets
from promptcodebook.errors import ConfigError, did_you_mean

_MANY: Mapping[str, tuple[str, type[BaseModel]]] = {
    "roles": ("ROLE", RoleSettings),
    "prices": ("MODEL", Price),
}
"""Groups of which there is one for each name, and what replaces the name."""
_TYPES: Mapping[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    dict: "table",
    type(None): "none",
}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@dataclass(frozen=True, slots=True)
class Key:
    """One key. ROLE or MODEL in it is any name, such as roles.critic.temperature.

    `default` is written as it would be in pco.toml ('none' = not set, '' = must be given; where
    roles differ, each value with its roles); `kind` is its type with its choices or its range.
    """

    key: str
    default: str
    kind: str
    text: str

    @property
    def group(self) -> str:
        """What comes before the last dot; '' at the top."""
        return self.key.rpartition(".")[0]


def optimizer_settings() -> Mapping[str, type[OptimizerSettings]]:
    """The settings models of the installed optimizers, by the optimizer's name. One that cannot be
    imported has none: `make_optimizer` says why."""
    entries = sorted(entry_points(group="promptcodebook.optimizers"), key=lambda e: e.name)
    return _settings_of(tuple(entries))


@cache
def _settings_of(entries: tuple[EntryPoint, ...]) -> Mapping[str, type[OptimizerSettings]]:
    found: dict[str, type[OptimizerSettings]] = {}
    for entry in entries:
        with suppress(Exception):
            model = getattr(entry.load(), "settings", None)
            if isinstance(model, type) and issubclass(model, OptimizerSettings):
                found[entry.name] = model
    return found


def training_keys() -> tuple[str, ...]:
    """Keys and groups that decide nothing of what a trained policy answers."""
    return (*TRAINING, *dict.fromkeys(m.table for m in optimizer_settings().values()))


def full_config() -> type[Config]:
    """`Config` with a field for each table of the installed optimizers."""
    return _full_config(tuple(dict.fromkeys(optimizer_settings().values())))


@cache
def _full_config(tables: tuple[type[OptimizerSettings], ...]) -> type[Config]:
    fields: dict[str, Any] = {model.table: (model, model()) for model in tables}
    return create_model("Config", __base__=Config, __doc__=Config.__doc__, **fields)


def describe() -> tuple[Key, ...]:
    """Every key, those at the top first, then group by group as `Config` names them."""
    top: list[Key] = []
    below: list[Key] = []
    lines = _lines(Config)
    for name, field in full_config().model_fields.items():
        group = _group_of(name, field)
        if group is None:
            top.append(_key(Config, "", name, lines))
        else:
            prefix = f"{name}.{_MANY[name][0]}" if name in _MANY else name
            told = _lines(group)
            below += [_key(group, prefix, member, told) for member in group.model_fields]
    return (*top, *below)


def describe_group(group: str) -> str:
    """The line of a group named as in `Key.group`. Raises KeyError for what is no group."""
    name = group.partition(".")[0]
    model = _group_of(name, full_config().model_fields[name])
    if model is None:
        raise KeyError(group)
    return _one_line(model.__doc__ or "")


def _group_of(name: str, field: FieldInfo) -> type[BaseModel] | None:
    if name in _MANY:
        return _MANY[name][1]
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _key(model: type[BaseModel], prefix: str, name: str, lines: Mapping[str, str]) -> Key:
    field = model.model_fields[name]
    default = _defaults_by_role(name) if model is RoleSettings else _default(field)
    return Key(
        f"{prefix}.{name}" if prefix else name,
        default,
        _kind(field.annotation, field.metadata),
        lines.get(name, ""),
    )


def _lines(model: type[BaseModel]) -> Mapping[str, str]:
    """The docstrings below a model's fields, by field."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(body, ast.ClassDef)
    return dict(_read_docs(body.body))


def _read_docs(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield field.target.id, _one_line(str(below.value.value))


def _one_line(docstring: str) -> str:
    """Its first paragraph."""
    return " ".join(docstring.strip().split("\n\n")[0].split())


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return "" if value is PydanticUndefined else _show(value)


def _defaults_by_role(name: str) -> str:
    roles: dict[str, list[str]] = {}
    for role, settings in default_roles().items():
        roles.setdefault(_show(getattr(settings, name)), []).append(role)
    if len(roles) == 1:
        return next(iter(roles))
    return "; ".join(f"{value} ({', '.join(names)})" for value, names in roles.items())


def _show(value: object) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _kind(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(inner[0], (*inner[1:], *metadata))
    if origin in (Union, types.UnionType):
        # A bound belongs to the number of 'number or none'.
        return _choice(_kind(each, () if each is type(None) else metadata) for each in inner)
    if origin is Literal:
        return _choice(json.dumps(each) for each in inner)
    if origin is tuple:
        plural = f"{_kind(inner[0])}s"
        return f"list of {plural}" if inner[-1] is ... else f"list of {len(inner)} {plural}"
    return _TYPES[origin or annotation] + _range(metadata)


def _choice(kinds: Iterable[str]) -> str:
    *first, last = kinds
    return f"{', '.join(first)} or {last}" if first else last


def _range(metadata: Iterable[Any]) -> str:
    """The bounds of a number in words; '' for none."""
    bounds: dict[str, float] = {}
    for each in metadata:
        marks = [each, *getattr(each, "metadata", ())]
        bounds |= {name: getattr(m, name) for m in marks for name in _BOUNDS if hasattr(m, name)}
    words = ", ".join(f"{_BOUNDS[name]} {bound:g}" for name, bound in bounds.items())
    return f" ({words})" if words else ""


REWRITING = ("critic", "attribution", "updater")
"""Roles that a rewrite of a text takes."""


def text_updates_layer(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What follows for `update.text_updates` from the models that are named, as a layer below what
    was given: on where each of the rewriting roles has another model than the executor. {} in other
    presets, and where one of them has not."""
    if tree.get("preset") != "small":
        return {}
    executor = _spec(tree, "executor")
    stronger = all(_spec(tree, role) not in ("", executor) for role in REWRITING)
    return {"update": {"text_updates": True}} if stronger else {}


def text_updates_remark(config: Config) -> str:
    """In a sentence, whether texts are rewritten and why; '' in other presets."""
    if config.preset != "small":
        return ""
    named = ", ".join(f"roles.{role}.model" for role in REWRITING)
    if config.update.text_updates:
        models = " and ".join(dict.fromkeys(config.model_of(role) for role in REWRITING))  # type: ignore[arg-type]
        return f"preset small: texts are rewritten by {models}"
    return f"preset small: texts stay as they are; a stronger model in {named} would rewrite them"


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
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = merge(_without_moved_headers(merged, layer), layer)
    defaults = {"roles": {r: s.model_dump() for r, s in default_roles().items()}}
    chosen = preset(str(merged.get("preset", "default")))
    tree = merge(defaults, chosen, text_updates_layer(merged), merged)
    try:
        return full_config().model_validate(tree)
    except ValidationError as error:
        raise _readable(error, where) from None


def load_typed(
    *layers: Mapping[str, Any], typed: Mapping[str, Any], where: str, typed_where: str = TYPED
) -> Config:
    """`load_config` of what was `typed` over the layers, which are those of `where`: an error names
    the one of the two that is at fault."""
    try:
        return load_config(*layers, typed, where=typed_where)
    except ConfigError:
        load_config(*layers, where=where)
        raise


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
    model: type[BaseModel] = full_config()
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
