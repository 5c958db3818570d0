"""The preset `small`: whether its weak model has stronger ones beside it that can rewrite texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from promptcodebook.config.schema import Config

REWRITING = ("critic", "attribution", "updater")
"""Roles that a rewrite of a text takes."""


def text_updates_layer(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What follows for `update.text_updates` from the models that are named, as a layer below what
    was given: on where each of the rewriting roles has another model than the executor. {} in other
    presets, and where one of them has not."""
    if tree.get("preset") != "small":
        return {}
    executor = _model(tree, "executor")
    stronger = all(_model(tree, role) not in ("", executor) for role in REWRITING)
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


def _model(tree: Mapping[str, Any], role: str) -> str:
    roles = tree.get("roles")
    own: Any = cast("Mapping[str, Any]", roles).get(role) if isinstance(roles, Mapping) else None
    spec = cast("Mapping[str, Any]", own).get("model") if isinstance(own, Mapping) else None
    return str(spec or tree.get("lm") or "")
