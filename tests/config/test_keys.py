"""Every key can be looked up: its default, its kind and one line about it."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.calls import ROLES
from promptcodebook.config import Config, load_config, schema
from promptcodebook.config.loading import (
    Key,
    comparable,
    describe,
    describe_group,
    optimizer_settings,
)
from promptcodebook.errors import ConfigError
from promptcodebook.store.header import digest

DOCS = Path(__file__).parents[2] / "docs"
KEYS = {key.key: key for key in describe()}


def _leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            out |= _leaves(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out


def test_every_key_of_a_configuration_is_described_and_no_other() -> None:
    tables = {m.table: {} for m in optimizer_settings().values()}
    priced = load_config({"prices": {"m": {"prompt": 1.0, "completion": 2.0}}}, tables)
    leaves = _leaves(priced.model_dump())
    one = {
        name.replace("roles.critic.", "roles.ROLE.").replace(".m.", ".MODEL.") for name in leaves
    }
    roles = [f"roles.{role}." for role in ROLES]
    assert set(KEYS) == {name for name in one if not name.startswith(tuple(roles))}
    assert len(KEYS) == len(describe())


@pytest.mark.parametrize("key", describe(), ids=lambda key: key.key)
def test_every_key_has_one_line(key: Key) -> None:
    assert len(key.text.split()) >= 3, key.key
    assert len(key.text) <= 140 and "\n" not in key.text
    assert key.text.endswith(".") and not key.text.endswith("..")
    assert key.kind


def test_every_group_has_a_line() -> None:
    for group in {key.group for key in describe()} - {""}:
        assert describe_group(group).endswith(".")
    with pytest.raises(KeyError):
        describe_group("seed")


def test_the_line_is_the_docstring_below_the_field() -> None:
    tree = ast.parse(Path(schema.__file__).read_text("utf-8"))
    (update,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Update")
    named = [n.target.id for n in update.body if isinstance(n, ast.AnnAssign)]  # type: ignore[union-attr]
    strings = [
        " ".join(str(n.value.value).split())
        for n in update.body[1:]
        if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
    ]
    assert [KEYS[f"update.{name}"].text for name in named] == strings


@pytest.mark.parametrize(
    ("key", "default", "kind"),
    [
        ("size", "16", "whole number (at least 1)"),
        ("explore.gamma", "none", "number (at least 0, at most 1) or none"),
        ("explore.policy", '"success"', '"success", "uniform" or "none"'),
        ("critic.stages", "2", "1 or 2"),
        ("update.steps_per_epoch", "1", 'whole number (at least 1) or "all"'),
        ("timeout", "120.0", "number (above 0)"),
        ("cache", "true", "true or false"),
        ("data.fractions", "[0.5, 0.25, 0.25]", "list of 3 numbers"),
        ("init.frozen", "[]", "list of whole numbers"),
        ("reward", '""', "text or table"),
        ("prices.MODEL.prompt", "", "number (at least 0)"),
        ("roles.ROLE.model", "none", "text or none"),
    ],
)
def test_defaults_and_kinds_are_in_words(key: str, default: str, kind: str) -> None:
    assert (KEYS[key].default, KEYS[key].kind) == (default, kind)


def test_defaults_that_differ_by_role_name_the_roles() -> None:
    shown = KEYS["roles.ROLE.temperature"].default
    for part in shown.split("; "):
        value, _, names = part.removesuffix(")").partition(" (")
        for role in names.split(", "):
            assert Config().roles[role].temperature == float(value)
    assert all(role in shown for role in ROLES)


def test_a_default_shown_is_a_value_that_the_key_takes() -> None:
    for key in describe():
        if key.default in ("", "none") or "ROLE" in key.key:
            continue
        value = json.loads(key.default)
        tree: Any = value
        for part in reversed(key.key.split(".")):
            tree = {part: tree}
        try:
            given, default = comparable(tree, {})
            assert given == default, key.key
        except ConfigError as error:
            raise AssertionError(key.key) from error


def test_the_page_of_settings_is_current() -> None:
    spec = importlib.util.spec_from_file_location("generate_config", DOCS / "generate_config.py")
    assert spec is not None and spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    written = (DOCS / "config.md").read_text("utf-8")
    assert written == generator.page(), "python docs/generate_config.py"


def test_a_stored_configuration_keeps_its_keys() -> None:
    """Runs compare what they hold with what is asked for: a renamed key would be a changed run."""
    tree = load_config({"preset": "paper"}).model_dump(mode="json")
    newer = ("max_reply_mb", "optimizer", "router", "user_code", "verdict_examples")  # since 0.2.0
    for key in newer:
        tree.pop(key)
    for newer in ("accept_on", "maintain_every", "shared_by"):
        tree["update"].pop(newer)
    tree["encoder"].pop("max_fallback")
    tree["critic"].pop("safety")
    tree["critic"].pop("sees_reward")
    tree["init"].pop("split")
    tree["budget"].pop("reserve_for_verdict")
    tree["validation"]["patience"] = 5  # the default of 0.1.0
    assert digest(tree) == "c299778ab31bbfbb854a0162e86cb9ae14f15abeb20cb16ac069df6e82b0c6dc"
