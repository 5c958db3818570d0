from __future__ import annotations

import pytest

from promptcodebook.config import Price
from promptcodebook.errors import ConfigError
from promptcodebook.lm.prices import PriceTable
from promptcodebook.types import Usage

MILLION = Usage(calls=1, prompt_tokens=1_000_000, completion_tokens=1_000_000)


def test_a_listed_model_has_a_price_dated_names_too():
    table = PriceTable()
    assert table.cost("openai/gpt-4o-mini", MILLION) == pytest.approx(0.75)
    assert table.cost("openai/gpt-4o-mini-2024-07-18", MILLION) == pytest.approx(0.75)


def test_the_users_prices_come_first_by_spec_or_by_name():
    spec = "http://localhost:8000/v1#Qwen/Qwen3-8B"
    price = Price(prompt=1.0, completion=2.0)
    assert PriceTable({spec: price}).cost(spec, MILLION) == 3.0
    assert PriceTable({"Qwen/Qwen3-8B": price}).cost(spec, MILLION) == 3.0
    assert PriceTable({"openai/gpt-4o": price}).cost("openai/gpt-4o", MILLION) == 3.0


def test_unknown_is_unknown_and_simulated_is_free():
    table = PriceTable()
    assert table.cost("http://localhost/v1#gpt-4o", MILLION) is None
    assert table.cost("openai/gpt-unheard-of", MILLION) is None
    assert table.cost("no spec at all", MILLION) is None
    assert table.cost("simulated?dilution=0.1", MILLION) == 0.0


def test_cached_tokens_cost_as_listed_or_as_fresh_ones():
    usage = Usage(calls=1, prompt_tokens=1_000_000, cached_prompt_tokens=400_000)
    listed = PriceTable({"m": Price(prompt=10.0, completion=0.0, cached=1.0)})
    unlisted = PriceTable({"m": Price(prompt=10.0, completion=0.0)})
    assert listed.cost("m", usage) == pytest.approx(6.4)
    assert unlisted.cost("m", usage) == pytest.approx(10.0)


def test_the_missing_price_is_named_with_the_way_to_add_it():
    with pytest.raises(ConfigError, match="localhost") as caught:
        PriceTable().require(["openai/gpt-4o", "http://localhost/v1#m"])
    assert '[prices."http://localhost/v1#m"]' in caught.value.hint
