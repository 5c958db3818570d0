"""Controls of the simulated model and of our own operators, over two worlds in half of the updates;
`python -m bench.controls` runs twenty in all of them.

Every figure here is simulated. A broken loop must show as a lost gain, and a sound one as a gain.
"""

from __future__ import annotations

import pytest

from bench.controls import BROKEN, KEPT, LEAST_GAIN, MUST_LOSE, Done, Job, gain_of, run

WORLDS = (1, 2)
EPOCHS = 10


def made(extra: str = "", data: str = "", ours: str = "") -> list[Done]:
    return [run(Job(world, extra, data, ours, EPOCHS)) for world in WORLDS]


@pytest.fixture(scope="module")
def sound() -> list[Done]:
    """True rewards, in each world."""
    return made()


@pytest.mark.slow
def test_true_rewards_gain(sound: list[Done]) -> None:
    assert gain_of(sound).mean > LEAST_GAIN


@pytest.mark.slow
def test_what_is_broken_loses_four_fifths_of_the_gain(sound: list[Done]) -> None:
    """All in one test: what they are compared with is made once."""
    whole = gain_of(sound).mean
    kept = {
        name: gain_of(made(extra, "shuffled" if name == "shuffled rewards" else "")).mean / whole
        for name, extra in BROKEN.items()
    }
    kept[MUST_LOSE] = gain_of(made(ours=MUST_LOSE)).mean / whole
    assert max(kept.values()) <= KEPT, kept


@pytest.mark.slow
def test_a_world_is_told_from_its_noise(sound: list[Done]) -> None:
    """Another world has other inputs; another noise seed the same, with other outcomes."""
    first, other = sound
    again = run(Job(WORLDS[0], "&noise_seed=7", epochs=EPOCHS))
    assert first.rewards["present"] != again.rewards["present"]
    assert first.inputs == again.inputs
    assert first.inputs != other.inputs
