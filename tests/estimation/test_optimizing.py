"""`pco.estimate`: what `optimize` with the same keywords would take; nothing is asked for it."""

from __future__ import annotations

from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.errors import ConfigError, DataError
from promptcodebook.lm.scripted import ScriptedLM
from tests.run.test_optimize import QUICK, data, reward

PRICED: dict[str, Any] = {
    **QUICK, "prices": {"openai/small": {"prompt": 1.0, "completion": 2.0}}
}  # fmt: skip


def test_nobody_is_asked_and_all_roles_are_counted() -> None:
    lm = ScriptedLM()
    estimated = pco.estimate(data(), reward, lm, config=QUICK, size=8, select=3)
    assert lm.history == []
    assert {"encoder", "generator", "executor", "critic"} <= {r.role for r in estimated.roles}
    calls = estimated.total.calls
    assert 0 < calls.low <= calls.expected <= calls.high
    assert estimated.total.usd is None and "cost unknown" in repr(estimated)
    assert "low / expected / high" in estimated._repr_html_()


def test_a_price_and_a_time_make_money_and_seconds() -> None:
    estimated = pco.estimate(data(), "exact", "openai/small", config=PRICED, seconds_per_call=2.0)
    usd, seconds = estimated.total.usd, estimated.total.seconds
    assert usd is not None and 0.0 < usd.low <= usd.high
    assert seconds is not None and seconds.expected > 0.0
    assert "USD" in repr(estimated)
    smaller = pco.estimate(
        data(), "exact", "openai/small", config=PRICED | {"update": {"epochs": 1}}
    )
    assert smaller.total.usd is not None and smaller.total.usd.expected < usd.expected


def test_what_optimize_would_refuse_is_refused() -> None:
    for wrong in ({"lm": 3}, {"reward": 3}, {"budget": 5}, {"roles": []}):
        given: Any = {"data": data(), "reward": reward, "lm": "simulated", **wrong}
        with pytest.raises(ConfigError, match=r"estimate\(\): "):
            pco.estimate(**given)
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=r"estimate\(\): a call cannot take"):
            pco.estimate(data(), reward, "simulated", seconds_per_call=seconds)
    empty = pco.Dataset((), (), ())
    with pytest.raises(DataError, match="training split"):
        pco.estimate(empty, reward, "simulated")
