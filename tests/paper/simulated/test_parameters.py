"""The parameters a spec can set, and the refusals of what it cannot."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from promptcodebook.calls import Message, Request, Sampling
from promptcodebook.errors import ConfigError
from promptcodebook.paper.simulated.model import FaultPlan, SimulatedLM
from promptcodebook.paper.simulated.world import FAULTS, Latency, SimulatedSettings
from promptcodebook.types import Example
from tests.build.paper_tasks import cases
from tests.build.simulated import examples, world


def test_a_spec_sets_every_kind_of_parameter() -> None:
    found = SimulatedSettings.from_params(
        {
            "load": "0.05",
            "world": "7",
            "heeds_tools": "1",
            "latency": "uniform:0.05-0.3",
            "latency_seed": "3",
            "faults": "429:0.1,500:0.05,drop:0.05,json:0.05,truncate:0.02,routes:0.05",
        }
    )
    assert (found.load, found.world, found.heeds_tools) == (0.05, 7, True)
    assert found.latency == Latency("uniform", 0.05, 0.3, 3)
    assert found.faults == dict(zip(FAULTS, (0.1, 0.05, 0.05, 0.05, 0.02, 0.05), strict=True))


@pytest.mark.parametrize(
    ("params", "message"), cases("parameters-what-it-cannot-read-is-refused-with-a-hint")
)
def test_what_it_cannot_read_is_refused_with_a_hint(params: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
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


def test_every_parameter_can_be_set_and_is_listed_with_what_it_means() -> None:
    """The page renders the settings, and leaves out a field without a line of its own."""
    page = Path(__file__).parents[3].joinpath("docs", "simulated.md").read_text("utf-8")
    assert "\n::: promptcodebook.paper.simulated.world.SimulatedSettings\n" in page
    assert all(f"`{fault}`" in page for fault in FAULTS)
    _, _, listed = (SimulatedSettings.__doc__ or "").partition("Args:\n")
    described = re.findall(r"^        (\w+): ", listed, re.MULTILINE)
    assert described == [field.name for field in fields(SimulatedSettings)]
    for name in described[:-2]:
        assert float(getattr(SimulatedSettings.from_params({name: "1"}), name)) == 1.0


# Faults on demand: seeded, one at a time, mended by a retry, and counted.


ALL = SimulatedSettings(faults=dict.fromkeys(FAULTS, 0.1))
ROUTING = (
    "Choose exactly 2 different instincts by index.\n\nCodebook:\n[0] Be kind.\n[1] Stay calm.\n"
    '[2] Smile.\n\nAnswer with JSON: {"constraints": [], "selected_indices": [], "analysis": ""}'
)


def routing(example: Example, sample: int = 0) -> Request:
    messages = (Message("system", ROUTING), Message("user", example.input))
    return Request("encoder", messages, sample=sample, sampling=Sampling(temperature=0.5))


def test_at_most_one_fault_strikes_and_each_at_its_share() -> None:
    plan = FaultPlan(1, ALL.faults)
    struck = Counter(plan.strike(str(k).encode(), is_json=True, is_route=True) for k in range(5000))
    for fault in ("429", "500", "drop", "json", "truncate", "routes"):
        assert 0.085 < struck[fault] / 5000 < 0.115, fault
    plain = {plan.strike(f"p{k}".encode(), is_json=False, is_route=False) for k in range(500)}
    assert plain == {None, "429", "500", "drop", "truncate"}


def test_a_fault_depends_on_how_often_the_request_came_and_on_no_other_request() -> None:
    keys = [str(k).encode() for k in range(40)]

    def fates(plan: FaultPlan, order: list[bytes]) -> dict[bytes, list[object]]:
        found: dict[bytes, list[object]] = {k: [] for k in keys}
        for key in order:
            found[key].append(plan.strike(key, is_json=True, is_route=True))
        return found

    straight = fates(FaultPlan(1, ALL.faults), keys * 5)
    assert straight == fates(FaultPlan(1, ALL.faults), [k for k in keys[::-1] for _ in range(5)])
    assert straight != fates(FaultPlan(2, ALL.faults), keys * 5)
    assert all(None in fate for fate in straight.values())
    assert any(fate[0] is not None for fate in straight.values())


async def test_repeated_counts_finished_replies_asked_for_again() -> None:
    lm = SimulatedLM(world)
    for example in (*examples[:5], *examples[:2]):
        await lm(routing(example))
    await lm(routing(examples[0], sample=9))
    assert (lm.stats.replies, lm.stats.repeated) == (8, 2)
    assert lm.stats.as_dict()["kinds"] == {"route": 8}
    lm.stats.reset()
    assert lm.stats.as_dict()["requests"] == 0
