"""Controls of the simulated model, over a few worlds; `python -m bench.controls` runs twenty.

Every figure here is simulated. A broken loop must show as a lost gain, and a sound one as a gain.
"""

from __future__ import annotations

from functools import cache

import pytest

from bench.controls import BROKEN, KEPT, LEAST_GAIN, Done, Job, gain_of, run

pytestmark = pytest.mark.slow

WORLDS = (1, 2)


@cache
def made(extra: str = "", data: str = "") -> list[Done]:
    return [run(Job(world, extra, data)) for world in WORLDS]


def test_true_rewards_gain() -> None:
    assert gain_of(made()).mean > LEAST_GAIN


@pytest.mark.parametrize("name", list(BROKEN))
def test_what_is_broken_loses_four_fifths_of_the_gain(name: str) -> None:
    broken = made(BROKEN[name], "shuffled" if name == "shuffled rewards" else "")
    assert gain_of(broken).mean <= KEPT * gain_of(made()).mean


def test_a_world_is_told_from_its_noise() -> None:
    """Another world has other inputs; another noise seed the same, with other outcomes."""
    first, other = made()
    again = run(Job(WORLDS[0], "&noise_seed=7"))
    assert first.rewards["present"] != again.rewards["present"]
    assert first.inputs == again.inputs
    assert first.inputs != other.inputs
