"""What models cost: by litellm's own list where it is installed, else by ours, which has a date."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from promptcodebook.base.paths import read_bytes
from promptcodebook.base.text import shipped_table
from promptcodebook.config.schema import Price
from promptcodebook.lm.spec import Spec

_LIST = "model_prices_and_context_window_backup.json"
# Our words, in the order of our list, and litellm's.
_FIELDS = {
    "prompt": "input_cost_per_token",
    "completion": "output_cost_per_token",
    "cached": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
}
_DATED = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2})$")


def listed_price(spec: Spec) -> Price | None:
    """The list price of a model at its provider's own address; None = unknown."""
    provider, name = spec.provider, spec.model
    if not provider:  # an address of the user's own
        return None
    if provider == "litellm":
        provider, _, name = spec.model.rpartition("/") if "/" not in name else name.partition("/")
    names = (name, _DATED.sub("", name))
    found = (
        price for each in names for price in (_litellms(provider, each), _ours(provider, each))
    )
    return next((price for price in found if price is not None), None)


def _ours(provider: str, name: str) -> Price | None:
    row = shipped_table(__file__, "prices.toml").get(provider, {}).get(name)
    return None if row is None else Price.model_validate(dict(zip(_FIELDS, row, strict=False)))


def _litellms(provider: str, name: str) -> Price | None:
    """litellm lists some models by name alone, with their provider inside; '' = it knows whose."""
    for key in (f"{provider}/{name}", name):
        row = _litellms_list().get(key, {})
        costs = [row.get(word) for word in _FIELDS.values()]
        if str(row.get("litellm_provider", "")).startswith(provider) and None not in costs[:2]:
            millions = [None if each is None else round(each * 1e6, 6) for each in costs]
            return Price.model_validate(dict(zip(_FIELDS, millions, strict=True)))
    return None


def _litellms_list() -> Mapping[str, Any]:
    """Read as a file: litellm takes seconds to import."""
    try:
        found = find_spec("litellm")
    except ValueError:  # a module that was put in its place
        found = None
    return _read(Path(found.origin or "litellm").with_name(_LIST)) if found else {}


@cache
def _read(path: Path) -> Mapping[str, Any]:
    try:
        return json.loads(read_bytes(path))
    except (OSError, ValueError):
        return {}
