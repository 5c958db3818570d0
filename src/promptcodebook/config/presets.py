"""Table 6, and where `default` and `quick` depart from it."""

from __future__ import annotations

from typing import Any, Literal

from promptcodebook.config.groups import RoleSettings
from promptcodebook.errors import ConfigError, did_you_mean

__all__ = ["Preset", "default_roles", "preset"]

Preset = Literal["default", "paper", "quick"]

_SAMPLING: dict[str, dict[str, Any]] = {
    "encoder": {"temperature": 0.0, "top_p": 1.0, "max_tokens": 1024},
    "generator": {"temperature": 0.7, "top_p": 0.9, "max_tokens": 512},
    "executor": {"temperature": 0.6, "top_p": 0.95, "max_tokens": 4096},
    "critic": {"temperature": 0.3, "top_p": 1.0, "max_tokens": 1024},
    "attribution": {"temperature": 0.0, "top_p": 1.0, "max_tokens": 1024},
    "updater": {"temperature": 0.7, "top_p": 0.9, "max_tokens": 1024},
    "judge": {"temperature": 0.0, "top_p": 1.0, "max_tokens": 512},
    "untrusted": {"temperature": 0.6, "top_p": 0.95, "max_tokens": 4096},
}


def _paper_roles() -> dict[str, RoleSettings]:
    return {role: RoleSettings(**fields) for role, fields in _SAMPLING.items()}


def default_roles() -> dict[str, RoleSettings]:
    """The `default` preset's roles: the critic at 0.0 and the generator at 0.6."""
    roles = _paper_roles()
    roles["critic"] = roles["critic"].model_copy(update={"temperature": 0.0})
    roles["generator"] = roles["generator"].model_copy(update={"temperature": 0.6})
    return roles


_PRESETS: dict[str, dict[str, Any]] = {
    "default": {"preset": "default"},
    "paper": {
        "preset": "paper",
        "roles": _SAMPLING,
        "templates": "paper",
        "explore": {"gamma": 0.96},
        "update": {"accept": "always", "encoder_on_explored": True, "steps_per_epoch": 1},
        "validation": {"every": 0},
        "keep": "last",
    },
    "quick": {
        "preset": "quick",
        "update": {"epochs": 8, "batch_size": 12},
        "validation": {"every": 4, "subset": 24, "finalists": 2},
    },
}


def preset(name: str) -> dict[str, Any]:
    """The named preset as a plain tree to merge over the defaults."""
    if name not in _PRESETS:
        raise ConfigError(
            f"unknown preset {name!r}{did_you_mean(name, _PRESETS)}",
            hint=f"choose one of: {', '.join(_PRESETS)}",
        )
    return dict(_PRESETS[name])
