"""Budgets as people write them."""

from __future__ import annotations

import re
from typing import Any

from promptcodebook.config.groups import Budget
from promptcodebook.errors import ConfigError

__all__ = ["parse_budget"]

_BUDGET = re.compile(
    r"^\s*([0-9]*\.?[0-9]+)\s*(usd|\$|calls?|k?tok|mtok|tokens?|s|min|h)\s*$", re.I
)


def parse_budget(text: str) -> Budget:
    """'5usd', '2Mtok', '300ktok', '1000calls', '30min'; several joined by '+' or ','."""
    fields: dict[str, Any] = {}
    for part in re.split(r"[+,]", text):
        match = _BUDGET.match(part)
        if match is None:
            raise ConfigError(
                f"cannot read the budget {part.strip()!r}",
                hint="write e.g. 5usd, 2Mtok, 1000calls, 30min, or several joined by '+'",
            )
        number, unit = float(match[1]), match[2].lower()
        fields.update(_budget_field(number, unit))
    return Budget(**fields)


def _budget_field(number: float, unit: str) -> dict[str, Any]:
    if unit in ("usd", "$"):
        return {"usd": number}
    if unit.startswith("call"):
        return {"calls": int(number)}
    if unit in ("s", "min", "h"):
        return {"seconds": number * {"s": 1, "min": 60, "h": 3600}[unit]}
    scale = {"mtok": 1_000_000, "ktok": 1_000}.get(unit, 1)
    return {"tokens": int(number * scale)}
