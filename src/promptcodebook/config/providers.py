"""Who offers models (providers.toml): addresses, keys, and how the names of their models begin."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from promptcodebook.base.text import shipped_table


def providers() -> Mapping[str, Any]:
    """The tables of providers.toml, by their names in it."""
    return shipped_table(__file__, "providers.toml")


@cache
def key_names() -> frozenset[str]:
    """The variables in which the keys of providers are usually kept."""
    known = providers()
    named = (its["keys"] for its in known["providers"].values())
    return frozenset(known["keys"]).union(*named, *known["litellm_keys"].values())
