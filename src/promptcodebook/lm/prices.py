"""What calls cost: prices by model, the user's own before the built-in ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from promptcodebook.calls import Usage
from promptcodebook.config import Price
from promptcodebook.errors import ConfigError, PcoError
from promptcodebook.lm.spec import parse_spec

# USD per million tokens: prompt, completion, cached prompt.
_LISTED: Mapping[str, tuple[float, float, float]] = {
    "gpt-4o": (2.50, 10.00, 1.25),
    "gpt-4o-mini": (0.15, 0.60, 0.075),
    "gpt-4.1": (2.00, 8.00, 0.50),
    "gpt-4.1-mini": (0.40, 1.60, 0.10),
    "gpt-4.1-nano": (0.10, 0.40, 0.025),
    "gpt-5": (1.25, 10.00, 0.125),
    "gpt-5-mini": (0.25, 2.00, 0.025),
    "gpt-5-nano": (0.05, 0.40, 0.005),
    "o3": (2.00, 8.00, 0.50),
    "o4-mini": (1.10, 4.40, 0.275),
}
_DATED = re.compile(r"-\d{4}-\d{2}-\d{2}$")
_FREE = Price(prompt=0.0, completion=0.0)


class PriceTable:
    """Prices by full spec or by model name; the user's own come before the built-in ones."""

    def __init__(self, extra: Mapping[str, Price] | None = None) -> None:
        self._extra = dict(extra or {})
        self._known: dict[str, Price | None] = {}

    def price(self, model: str) -> Price | None:
        """The price of a model spec; None = unknown."""
        if model not in self._known:
            self._known[model] = self._look_up(model)
        return self._known[model]

    def cost(self, model: str, usage: Usage) -> float | None:
        """USD for the usage's tokens; None = unknown price. Cached tokens cost as listed."""
        price = self.price(model)
        if price is None:
            return None
        cached = min(usage.cached_prompt_tokens, usage.prompt_tokens)
        per_cached = price.prompt if price.cached is None else price.cached
        fresh = usage.prompt_tokens - cached
        total = fresh * price.prompt + cached * per_cached
        return (total + usage.completion_tokens * price.completion) / 1e6

    def bound(self, model: str, prompt: int, completion: int) -> float | None:
        """USD for so many tokens at the most, whatever of the prompt is cached; None = unknown."""
        price = self.price(model)
        if price is None:
            return None
        per_prompt = max(price.prompt, price.cached or 0.0)
        return (prompt * per_prompt + completion * price.completion) / 1e6

    def require(self, models: Iterable[str]) -> None:
        """Raises ConfigError for the first model without a price."""
        for model in models:
            if self.price(model) is None:
                raise ConfigError(
                    f"a money budget needs a price, and none is known for {model!r}",
                    hint=f"in pco.toml: {price_lines(model)}",
                )

    def _look_up(self, model: str) -> Price | None:
        if model in self._extra:
            return self._extra[model]
        try:
            spec = parse_spec(model, {})
        except PcoError:
            return None
        if spec.kind == "simulated":
            return self._extra.get("simulated", _FREE)
        if spec.kind == "local":
            return self._extra.get(spec.model, _FREE)
        if spec.model in self._extra:
            return self._extra[spec.model]
        listed = spec.base_url.startswith("https://api.openai.com/")
        row = _LISTED.get(_DATED.sub("", spec.model)) if listed else None
        return Price(prompt=row[0], completion=row[1], cached=row[2]) if row else None


def price_lines(model: str) -> str:
    """What to write into pco.toml for a model without a price."""
    return (
        f'[prices."{model}"] and below it the lines prompt = ... and completion = ... '
        "(USD per million tokens)"
    )
