"""Layers of settings -> one checked Config, and every key of one in words."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import textwrap
import tomllib
import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from promptcodebook.base.paths import read_text
from promptcodebook.base.text import shell
from promptcodebook.config import schema
from promptcodebook.config.secrets import body_fault, without_secrets
from promptcodebook.errors import ConfigError, did_you_mean, plug_in, registered

TYPED = "your options or PCO_*"  # where settings come from that were typed for this use
# Faults of numbers and choices: their value may be shown, it is no secret.
_QUOTABLE = ("int_", "float_", "bool_", "greater_", "less_", "literal_")


def optimizer_settings(name: str | None = None) -> Mapping[str, type[schema.OptimizerSettings]]:
    """The settings models of the installed optimizers and commands, or of one optimizer, by name.
    One that cannot be imported has none: `make_optimizer` says why."""
    found = registered("promptcodebook.optimizers")
    every = (
        [*found, *registered("promptcodebook.tables")]
        if name is None
        else [*found.select(name=name)]
    )
    entries = sorted(every, key=lambda e: e.name)
    models = {entry.name: _settings_of(entry) for entry in entries}
    return {name: model for name, model in models.items() if model is not None}


@cache
def _settings_of(entry: EntryPoint) -> type[schema.OptimizerSettings] | None:
    with suppress(Exception):
        loaded = entry.load()
        model = getattr(loaded, "settings", loaded)
        if isinstance(model, type) and issubclass(model, schema.OptimizerSettings):
            return model
    return None


def training_keys() -> tuple[str, ...]:
    """Keys and groups that decide nothing of what a trained policy answers."""
    return (*schema.TRAINING, *dict.fromkeys(m.table for m in optimizer_settings().values()))


def full_config() -> type[schema.Config]:
    """`Config` with a field for each table of the installed optimizers."""
    return _config_with(tuple(dict.fromkeys(optimizer_settings().values())))


@cache
def _config_with(tables: tuple[type[schema.OptimizerSettings], ...]) -> type[schema.Config]:
    fields: dict[str, Any] = {model.table: (model, model()) for model in tables}
    return create_model("Config", __base__=schema.Config, __doc__=schema.Config.__doc__, **fields)


def comparable(*trees: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Stored settings, each with every key that another has or that is newer than it."""
    own, where = {*schema.Config.model_fields, *schema.Config.gone}, "the stored configuration"
    tables = {key: dict[str, Any]() for tree in trees for key in tree.keys() - own}
    return tuple(load_config(tables, tree, where=where).model_dump(mode="json") for tree in trees)


def default_tree(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The default of every key, and of the keys that `settings` have of installed optimizers."""
    foreign = settings.keys() - schema.Config.model_fields.keys()
    every = optimizer_settings().values() if foreign else ()
    return load_config({m.table: {} for m in every if m.table in foreign}).model_dump(mode="json")


def select_remark(config: schema.Config) -> str:
    """In a sentence, that S is as large as it can be; '' where the codebook has more."""
    if config.select < config.size:
        return ""
    return f"select (S) is lowered to {config.select}, the size of the codebook"


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Trees of settings, later ones winning by key. A budget's text, "5usd", lifts other limits."""
    out: dict[str, Any] = {}
    for layer in layers:
        if isinstance(text := layer.get("budget"), str):
            limits = parse_budget(text).model_dump(exclude={"reserve_for_verdict"})
            layer = {**layer, "budget": limits}
        out = _merge(out, layer)
    return out


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(below)
    for key, value in above.items():
        out[key] = (
            _merge(_table(out, key), _table(above, key)) if isinstance(value, Mapping) else value
        )
    return out


def _table(tree: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value: Any = tree.get(key)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def load_config(*layers: Mapping[str, Any], where: str = "the configuration") -> schema.Config:
    """Defaults < preset < layers, checked. Raises ConfigError naming key, place and next step. A
    layer that sends a role to another address takes away the headers, and the secrets in the body,
    that layers below gave for the old one. A layer with a smaller K takes S with it."""
    merged: dict[str, Any] = {}
    for layer in layers:
        with suppress(KeyError, TypeError, ValueError):
            if "select" not in layer and int(merged["select"]) > int(layer["size"]):
                merged = {**merged, "select": layer["size"]}
        below, merged = merged, merge(merged, layer)
        for role in _table(below, "roles"):
            old, new = (_address(_spec(each, role)) for each in (below, merged))
            settings: Any = _table(below, "roles")[role]
            if isinstance(settings, dict) and old not in ("", new):
                settings.pop("headers", None)  # type: ignore[union-attr]
                if isinstance(settings.get("extra"), dict):  # type: ignore[union-attr]
                    settings["extra"] = without_secrets(settings["extra"])  # type: ignore[index]
        merged = merge(below, layer)
    tree = merge(
        {
            "roles": {
                role: settings.model_dump() for role, settings in schema.default_roles().items()
            }
        },
        schema.preset(str(merged.get("preset", "default"))),
        merged,
    )
    # No optimizer is imported but its own, and those whose tables the tree has.
    name = str(tree.get("optimizer", "pco"))
    own = optimizer_settings(name).values() if name != "pco" else ()
    tables = {model.table: model for model in own}
    if tree.keys() - schema.Config.model_fields.keys() - tables.keys():
        tables |= {m.table: m for m in optimizer_settings().values() if m.table in tree}
    try:
        return _config_with(tuple(tables[name] for name in sorted(tables))).model_validate(tree)
    except ValidationError as error:
        if name != "pco" and not own:  # its keys are unknown where it cannot be loaded
            plug_in("promptcodebook.optimizers", name, "optimizer")
        raise _readable(error, where) from None


def load_typed(
    *layers: Mapping[str, Any], typed: Mapping[str, Any], where: str, typed_where: str = TYPED
) -> schema.Config:
    """`load_config` of what was `typed` over the layers of `where`; an error names the one."""
    try:
        return load_config(*layers, typed, where=typed_where)
    except ConfigError:
        load_config(*layers, where=where)
        raise


def require_effect(config: schema.Config, typed: Mapping[str, Any]) -> None:
    """Raises ConfigError for what was typed of a ready-made task, or in place of one, for
    nothing."""
    if (data := typed.get("data_dir")) and not config.task:
        what = "--data has no effect without --task: it names a ready-made task's folder"
        raise ConfigError(what, hint=f"for your own rows: pco init --from {os.path.relpath(data)}")
    if typed.get("executor") and config.task:
        what = f"--agent has no effect with the ready-made task {config.task}"
        raise ConfigError(what, hint="leave one of them out")


def _spec(tree: Mapping[str, Any], role: str) -> str:
    """The spec of the role's model as far as the tree says; '' = it does not."""
    own = _table(_table(tree, "roles"), role).get("model")
    return str(own or tree.get("lm") or "")


def _address(spec: str) -> str:
    if "://" in spec:
        return spec.partition("#")[0].rstrip("/").removesuffix("/chat/completions")
    return spec.rpartition("/")[0] or spec.partition("?")[0]


def read_toml(path: Path) -> dict[str, Any]:
    """A pco.toml as a plain tree."""
    try:
        return tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise ConfigError(f"no configuration at {path}", hint="pco init") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint=f"ls -l {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        what = f"{path} is not valid TOML: {error}"
        hint = f'edit {path}; a text needs quotes: lm = "smollm2"'
        if path.suffix != ".toml":
            what, hint = f"{path} is not a pco.toml", f"pco init FOLDER --from {shell(path)}"
        raise ConfigError(what, hint=hint) from None


_PROMPT_FILE = re.compile(r"\S+|[^\n]{1,60}\.(?:txt|md|prompt|j2|jinja2?|tmpl)")


def read_prompt(given: str | Path, name: str = "--prompt") -> str:
    """A prompt of the user's: the text of the file of that name, or else `given` itself. Raises
    ConfigError when the file cannot be read, or there is none and `given` is one word."""
    hint = 'name its file, or give the text itself in several words: "Answer in one word."'
    text, path = str(given).strip(), Path(given)
    is_path = bool(_PROMPT_FILE.fullmatch(text))
    with suppress(OSError, ValueError):  # a text may be too long for a path
        is_path = is_path or path.is_file()
    if is_path:
        try:
            text = read_text(path).strip()
        except (OSError, UnicodeDecodeError) as error:
            near = did_you_mean(path.name, [each.name for each in path.parent.glob("*")])
            what = f"{name}: cannot read {str(given)!r}: {getattr(error, 'strerror', error)}{near}"
            raise ConfigError(what, hint=hint) from None
    if not text:
        where = f" in {given}" if is_path else ""
        raise ConfigError(f"{name}: the prompt{where} is empty", hint=hint)
    return text


def start_from_prompt(below: Mapping[str, Any], typed: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was typed, with a prompt in it as what the first codebook is made from: unless the
    settings `below` bring instincts. An agent's prompts are not taken apart: they may be several,
    and tools need room."""
    own, init = _table(below, "init"), _table(typed, "init")
    brings = own.get("instincts") or own.get("path") or typed.get("executor")
    return merge({"init": {"kind": "from_prompt"}}, typed) if init and not brings else typed


def written(text: str, meant: Mapping[str, Any]) -> str:
    """The text of a pco.toml, which is read back before it is saved. Raises ConfigError unless it
    holds exactly the keys and values that were `meant`."""
    try:
        if tomllib.loads(text.encode().decode()) == meant:
            return text
        fault = "they would be read back as different settings"
    except ValueError as error:  # also a text that is no Unicode, such as half a sign
        fault = str(error)
    what = f"these settings cannot be written into a pco.toml: {fault}"
    raise ConfigError(what, hint="rename the file or its columns; use letters, digits and spaces")


def _readable(error: ValidationError, where: str) -> ConfigError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]).removesuffix(".constrained-int")
    if first["type"] == "extra_forbidden":
        model: type[BaseModel] = schema.RoleSettings if "roles" in first["loc"] else full_config()
        for part in first["loc"][:-1]:
            model = _group_of(model.model_fields.get(str(part))) or model
        near, last = near_key(key), str(first["loc"][-1])
        meant = f" (did you mean {near!r}?)" if near else did_you_mean(last, model.model_fields)
        what = f"unknown key {key!r} in {where}{meant}"
        hint = f"pco config {key.rpartition('.')[0]}".strip()
        if body_fault({last: "a text"}):
            hint = "remove it, and export PCO_API_KEY=..., or OPENAI_API_KEY and so on"
        return ConfigError(what, hint=hint)
    fault = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    fault = fault.replace("a valid integer", "a whole number").replace("a valid tuple", "a list")
    fault = fault.replace("a valid string", "text, in quotes")
    fault = re.sub("a valid dictionary.*", "a table", fault).replace("valid ", "")
    if first["type"].startswith(_QUOTABLE):
        fault = re.sub(", (unable|got) .*", "", fault) + f", not {first['input']!r}"
    fault, _, step = fault.partition("; ")
    hint = step or (f"pco config {key} shows which values it accepts" if key else "pco config")
    what = f"{where}: {key + ': ' if key else ''}{fault}"
    return ConfigError(what.replace(": must be", " must be"), hint=hint)


def _group_of(field: FieldInfo | None) -> type[BaseModel] | None:
    kind = None if field is None else field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


# What a budget's unit limits, and how much of it one is.
BUDGET_UNITS: Mapping[str, tuple[str, float]] = {
    **dict.fromkeys(("usd", "$"), ("usd", 1.0)),
    **dict.fromkeys(("call", "calls"), ("calls", 1)),
    **dict.fromkeys(("tok", "token", "tokens"), ("tokens", 1)),
    **{"ktok": ("tokens", 1_000), "mtok": ("tokens", 1_000_000)},
    **{"s": ("seconds", 1.0), "min": ("seconds", 60.0), "h": ("seconds", 3600.0)},
}
_AMOUNT = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]+|\$)\s*")
_MOST_DIGITS = 30  # of a number in a budget: with a few hundred it is no float any more


def parse_budget(text: str) -> schema.Budget:
    """'5usd', '2Mtok', '300ktok', '1000calls', '30min'; several joined by '+' or ','."""
    fields: dict[str, Any] = {}
    for part in re.split(r"[+,]", text):
        match = _AMOUNT.fullmatch(part.lower())
        if match is None or match[2] not in BUDGET_UNITS or len(match[1]) > _MOST_DIGITS:
            hint = "write e.g. 5usd, 2Mtok, 1000calls, 30min, or several joined by '+'"
            raise ConfigError(f"cannot read the budget {part.strip()[:40]!r}", hint=hint)
        what, one = BUDGET_UNITS[match[2]]
        amount = float(match[1]) * one
        fields[what] = int(amount) if isinstance(one, int) else amount
    return schema.Budget(**fields)


def role_layers(roles: Mapping[str, Any] | None) -> dict[str, Any]:
    """{'critic': 'openai/x'} and {'critic': {'model': ...}} mean the same."""
    layers: dict[str, Any] = {}
    for role, value in (roles or {}).items():
        if not isinstance(value, str | Mapping):
            what = f"roles[{role!r}] is of type {type(value).__name__}"
            raise ConfigError(what, hint="give a model's spec, or a mapping of settings")
        layers[role] = {"model": value} if isinstance(value, str) else {**value}
    return layers


# Every key in words


@dataclass(frozen=True, slots=True)
class Key:
    """One key. ROLE or MODEL in it is any name. `default` is written as in pco.toml ('none' = not
    set, '' = must be given; with its roles where they differ), `kind` with choices or range."""

    key: str
    default: str
    kind: str
    text: str

    @property
    def group(self) -> str:
        """What comes before the last dot; '' at the top."""
        return self.key.rpartition(".")[0]


def near_key(name: str) -> str:
    """The key of any group whose last part is that of `name`, such as batchsize; '' = none."""
    last = name.rpartition(".")[2].lstrip("-")
    known = {key.key.rpartition(".")[2].replace("_", ""): key.key for key in reversed(describe())}
    return known.get(re.sub("[-_]", "", last), "")


# Groups of which there is one for each name, and what replaces the name.
_MANY: Mapping[str, tuple[str, type[BaseModel]]] = {
    "roles": ("ROLE", schema.RoleSettings),
    "prices": ("MODEL", schema.Price),
}
_TYPES: Mapping[Any, str] = {
    **{str: "string", int: "whole number", float: "number", bool: "true or false"},
    **{dict: "table", type(None): "none"},
}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def describe() -> tuple[Key, ...]:
    """Every key, those at the top first, then group by group as `Config` names them."""
    top: list[Key] = []
    below: list[Key] = []
    lines = _lines(schema.Config)
    for name, field in full_config().model_fields.items():
        place, group = _MANY.get(name, ("", _group_of(field)))
        if group is None:
            top.append(_key(name, field, lines[name]))
        else:
            prefix = f"{name}.{place}" if place else name
            inner = _lines(group)
            below += [_key(f"{prefix}.{n}", f, inner[n]) for n, f in group.model_fields.items()]
    return (*top, *below)


def describe_group(group: str) -> str:
    """The line of a group named as in `Key.group`. Raises KeyError for what is no group."""
    name = group.partition(".")[0]
    _, model = _MANY.get(name, ("", _group_of(full_config().model_fields[name])))
    if model is None:
        raise KeyError(group)
    return _first_paragraph(model.__doc__ or "")


def _lines(model: type[BaseModel]) -> Mapping[str, str]:
    """The docstrings below a model's fields, read when somebody asks: pydantic's
    `use_attribute_docstrings` would do so at each import, for 40 ms."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(body, ast.ClassDef)
    lines = dict.fromkeys(model.model_fields, "")
    for field, below in pairwise(body.body):
        text = below.value if isinstance(below, ast.Expr) else None
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Constant):
            lines[ast.unparse(field.target)] = _first_paragraph(str(text.value))
    return lines


def _first_paragraph(docstring: str) -> str:
    return " ".join(docstring.strip().split("\n\n")[0].split())


def _key(key: str, field: FieldInfo, line: str) -> Key:
    roles: dict[str, list[str]] = {}
    if key.startswith("roles."):
        for role, settings in schema.default_roles().items():
            value = _show(getattr(settings, key.rpartition(".")[2]))
            roles.setdefault(value, []).append(role)
    else:
        default = field.get_default(call_default_factory=True, validated_data={})
        group, _, name = key.rpartition(".")
        usual = schema.preset("default")
        roles[_show((usual.get(group, {}) if group else usual).get(name, default))] = []
    default = "; ".join(f"{value} ({', '.join(names)})" for value, names in roles.items())
    if len(roles) == 1:
        default = next(iter(roles))
    return Key(key, default, _kind(field.annotation, field.metadata), line)


def _show(value: object) -> str:
    if value is PydanticUndefined:
        return ""
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _kind(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(inner[0], (*inner[1:], *metadata))
    if origin in (Union, types.UnionType, Literal):
        *first, last = (
            # A bound belongs to the number of 'number or none'.
            json.dumps(each)
            if origin is Literal
            else _kind(each, () if each is type(None) else metadata)
            for each in inner
        )
        return f"{', '.join(first)} or {last}" if first else last
    if origin is tuple:
        name, bound, rest = _kind(inner[0]).partition(" (")
        plural = name + "s" * (name[-1] != '"') + bound + rest
        return f"list of {plural}" if inner[-1] is ... else f"list of {len(inner)} {plural}"
    marks = [mark for each in metadata for mark in (each, *getattr(each, "metadata", ()))]
    bounds = {name: getattr(m, name) for m in marks for name in _BOUNDS if hasattr(m, name)}
    words = ", ".join(f"{_BOUNDS[name]} {bound:g}" for name, bound in bounds.items())
    return _TYPES[origin or annotation] + (f" ({words})" if words else "")
