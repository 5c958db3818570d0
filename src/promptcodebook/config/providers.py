"""Who offers models (providers.toml): addresses, keys, and how the names of their models begin."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


@cache
def providers() -> Mapping[str, Any]:
    """The tables of providers.toml, by their names in it."""
    return tomllib.loads(Path(__file__).with_name("providers.toml").read_text("utf-8"))


@cache
def key_names() -> frozenset[str]:
    """The variables in which the keys of providers are usually kept."""
    known = providers()
    named = (its["keys"] for its in known["providers"].values())
    return frozenset(known["keys"]).union(*named, *known["litellm_keys"].values())
