"""The parameters a spec can set, and the refusals of what it cannot."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from promptcodebook.errors import ConfigError
from promptcodebook.simulated.parameters import FAULTS, Latency, SimulatedSettings

_PLAIN = [f.name for f in fields(SimulatedSettings) if f.name not in ("faults", "latency")]


def test_a_spec_sets_every_kind_of_parameter() -> None:
    found = SimulatedSettings.from_params(
        {
            "load": "0.05",
            "world": "7",
            "prefix_cache": "1",
            "latency": "uniform:0.05-0.3",
            "latency_seed": "3",
            "faults": "429:0.1,500:0.05,drop:0.05,json:0.05,truncate:0.02,routes:0.05",
        }
    )
    assert (found.load, found.world, found.prefix_cache) == (0.05, 7, True)
    assert found.latency == Latency("uniform", 0.05, 0.3, 3)
    assert found.faults == dict(zip(FAULTS, (0.1, 0.05, 0.05, 0.05, 0.02, 0.05), strict=True))


@pytest.mark.parametrize("name", _PLAIN)
def test_every_plain_parameter_can_be_set(name: str) -> None:
    assert float(getattr(SimulatedSettings.from_params({name: "1"}), name)) == 1.0


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"laod": "0.1"}, "did you mean 'load'"),
        ({"load": "much"}, "must be a number"),
        ({"load": "-1"}, "must be a number"),
        ({"world": "1.5"}, "must be a number"),
        ({"capacity": "nan"}, "must be a number"),
        ({"faults": "404:0.1"}, "unknown fault"),
        ({"faults": "429:0.9,500:0.2"}, "more than 1"),
        ({"latency": "uniform:0.3"}, "cannot read the latency"),
        ({"latency": "gamma:1,2"}, "cannot read the latency"),
    ],
)
def test_what_it_cannot_read_is_refused_with_a_hint(params: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        SimulatedSettings.from_params(params)
    assert caught.value.hint


def test_latencies_follow_their_distribution_and_their_own_seed() -> None:
    keys = [str(k).encode() for k in range(2000)]
    uniform = [Latency("uniform", 0.1, 0.3).seconds(k) for k in keys]
    assert 0.1 <= min(uniform) < 0.11
    assert 0.29 < max(uniform) <= 0.3
    skewed = sorted(Latency("lognormal", 0.1, 0.5).seconds(k) for k in keys)
    assert skewed[1000] == pytest.approx(0.1, rel=0.1)
    assert skewed[1682] == pytest.approx(0.1 * 2.718281828**0.5, rel=0.1)
    shuffled = [Latency("uniform", 0.1, 0.3, seed=1).seconds(k) for k in keys]
    assert sorted(range(50), key=uniform.__getitem__) != sorted(range(50), key=shuffled.__getitem__)


def test_the_documentation_lists_every_parameter_with_its_default() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "simulated.md").read_text("utf-8")
    defaults = SimulatedSettings()
    for name in _PLAIN:
        assert f"| `{name}` | {getattr(defaults, name)} |" in page, name
    for fault in FAULTS:
        assert f"`{fault}`" in page
