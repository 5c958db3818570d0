"""Controls of the simulated model and of our own operators, over two worlds in half of the updates;
`python -m bench.controls` runs twenty in all of them.

Every figure here is simulated. A broken loop must show as a lost gain, and a sound one as a gain.
That each broken operator breaks what it says is held by a scripted model, fast.
"""

from __future__ import annotations

from typing import Any

import pytest

from bench.controls import BROKEN, KEPT, LEAST_GAIN, MUST_LOSE, OURS, Done, Job, gain_of, run
from promptcodebook.calls import Request
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.method.state import Schedule, State
from promptcodebook.method.train import train
from promptcodebook.types import Step
from tests.method.build import World, examples, one_batch, parameters, routed, said, talkative
from tests.method.build import verdict as judged

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


def blaming(request: Request) -> Scripted:
    """Complains of each example in words of its own; φ is a little to blame, the rest more."""
    about = next((f"input {i}" for i in range(5) if f"input {i}" in said(request)), "")
    match request.role:
        case "encoder":
            return routed(1, 3)
        case "critic":
            return judged(0.6, f"a complaint of {about}")
        case "attribution":
            heard = said(request).partition("a complaint of ")[2][:7]
            return (
                f'{{"rendering_errors": "p {heard}", "routing_errors": "t {heard}",'
                f' "instinct_errors": {{"1": "c {heard}"}},'
                ' "severity": {"rendering": 0.1, "instinct": 0.5, "routing": 0.9}}'
            )
        case _:
            return talkative(request)


async def broken(name: str = "", **tree: Any) -> Step:
    """One update over five examples with one of our operators broken."""
    world = World(one_batch(**tree), ScriptedLM().reply_with(blaming))
    learner = OURS[name](world.learner) if name else world.learner
    schedule = Schedule(examples(5), world.config.update, world.config.randomness)
    [step] = [step async for step in train(learner, schedule, State.first(parameters()))]
    return step


ENCODED = {"explore": {"policy": "none"}}


async def test_a_part_that_is_fixed_is_the_only_one_that_is_not_rewritten() -> None:
    every = {"encoder", "generator", 1, "critic"}
    parts = {"codebook": 1, "ψ": "critic", "θ": "encoder", "φ": "generator"}
    for name, part in parts.items():
        step = await broken(f"{name} fixed", **ENCODED)
        assert {r.variable for r in step.rewrites} == every - {part}
    assert {r.variable for r in (await broken(**ENCODED)).rewrites} == every


async def test_what_is_broken_breaks_what_it_says_and_nothing_else() -> None:
    sound, frozen = await broken(**ENCODED), await broken("r̄ frozen", **ENCODED)
    assert frozen.ema == (0.0,) * 4 != sound.ema
    assert (frozen.success, frozen.selected) == (sound.success, sound.selected)
    steps = await broken(), await broken("ε = 0")
    explored = [[t.rollout.route.explored for t in s.traces if t.rollout.route] for s in steps]
    assert explored == [[True] * 5, [False] * 5]
    scored = await broken("random critic scores", **ENCODED)
    assert {t.penalty for t in sound.traces} == {0.4}
    assert len({t.penalty for t in scored.traces}) == 5
    assert [t.gradients.codebook for t in scored.traces] == [
        t.gradients.codebook for t in sound.traces
    ]


async def test_misplaced_blame_has_the_same_words_in_other_places() -> None:
    def laid(step: Step) -> list[dict[str, str]]:
        parts = [t.gradients for t in step.traces]
        named = [{"θ": g.encoder, "φ": g.generator, **{str(k): v for k, v in g.codebook.items()}}
                 for g in parts]  # fmt: skip
        return [{k: text for k, text in each.items() if text} for each in named]

    sound, drawn, lowest = [laid(await broken(name, **ENCODED)) for name in (
        "", "blame at random", "blame where it was rated lowest")]  # fmt: skip
    assert all(list(each) == ["θ", "φ", "1"] for each in sound)
    assert all(list(each) == ["φ"] for each in lowest)
    assert len({tuple(each) for each in drawn}) > 1 and "3" in {k for each in drawn for k in each}
    for before, *others in zip(sound, drawn, lowest, strict=True):
        words = sorted(" ".join(before.values()).split())
        assert all(sorted(" ".join(each.values()).split()) == words for each in others)


async def test_another_example_s_feedback_is_that_of_the_one_before() -> None:
    sound, broke = await broken(**ENCODED), await broken("another example's feedback", **ENCODED)
    own, heard = [[t.gradients.encoder for t in s.traces] for s in (sound, broke)]
    assert sorted(own) == [f"t input {i}" for i in range(5)]
    assert sum(a != b for a, b in zip(own, heard, strict=True)) == 4
