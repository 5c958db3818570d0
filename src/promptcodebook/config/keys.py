"""Every key of a configuration in words: its default, its kind, and the line below its field.

The lines are read from the source when somebody asks: pydantic's `use_attribute_docstrings` would
do so at each import, for 40 ms.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from promptcodebook.config.loading import full_config
from promptcodebook.config.schema import Config, Price, RoleSettings, default_roles

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


def describe() -> tuple[Key, ...]:
    """Every key, those at the top first, then group by group as `Config` names them."""
    top: list[Key] = []
    below: list[Key] = []
    lines = _lines(Config)
    for name, field in full_config().model_fields.items():
        group = _group_of(name, field)
        if group is None:
            top.append(_key(name, field, lines[name]))
        else:
            prefix = f"{name}.{_MANY[name][0]}" if name in _MANY else name
            inner = _lines(group)
            below += [_key(f"{prefix}.{n}", f, inner[n]) for n, f in group.model_fields.items()]
    return (*top, *below)


def describe_group(group: str) -> str:
    """The line of a group named as in `Key.group`. Raises KeyError for what is no group."""
    name = group.partition(".")[0]
    model = _group_of(name, full_config().model_fields[name])
    if model is None:
        raise KeyError(group)
    return _one_line(model.__doc__ or "")


def _group_of(name: str, field: FieldInfo) -> type[BaseModel] | None:
    kind = _MANY[name][1] if name in _MANY else field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _key(key: str, field: FieldInfo, line: str) -> Key:
    if key.startswith("roles."):
        default = _defaults_by_role(key.rpartition(".")[2])
    else:
        value = field.get_default(call_default_factory=True)
        default = "" if value is PydanticUndefined else _show(value)
    return Key(key, default, _kind(field.annotation, field.metadata), line)


def _lines(model: type[BaseModel]) -> Mapping[str, str]:
    """The docstrings below a model's fields, by field."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(body, ast.ClassDef)
    lines = dict.fromkeys(model.model_fields, "")
    for field, below in pairwise(body.body):
        text = below.value if isinstance(below, ast.Expr) else None
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Constant):
            lines[ast.unparse(field.target)] = _one_line(str(text.value))
    return lines


def _one_line(docstring: str) -> str:
    """Its first paragraph."""
    return " ".join(docstring.strip().split("\n\n")[0].split())


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
        return _choice([_kind(each, () if each is type(None) else metadata) for each in inner])
    if origin is Literal:
        return _choice([json.dumps(each) for each in inner])
    if origin is tuple:
        plural = f"{_kind(inner[0])}s"
        return f"list of {plural}" if inner[-1] is ... else f"list of {len(inner)} {plural}"
    marks = [mark for each in metadata for mark in (each, *getattr(each, "metadata", ()))]
    bounds = {name: getattr(m, name) for m in marks for name in _BOUNDS if hasattr(m, name)}
    words = ", ".join(f"{_BOUNDS[name]} {bound:g}" for name, bound in bounds.items())
    return _TYPES[origin or annotation] + (f" ({words})" if words else "")


def _choice(kinds: list[str]) -> str:
    *first, last = kinds
    return f"{', '.join(first)} or {last}" if first else last
