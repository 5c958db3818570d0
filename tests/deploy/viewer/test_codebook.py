"""What an instinct is said to have earned, by its versions and as it was measured."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from promptcodebook.base.intervals import Interval
from promptcodebook.base.units import number
from promptcodebook.calls import Usage
from promptcodebook.deploy.viewer.following import FollowedRun
from promptcodebook.deploy.viewer.screens import (
    codebook_screen,
    unpaired_interval,
)
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.references import POLICY
from promptcodebook.store.effects import Effect, EffectStore
from promptcodebook.store.events import Event, Stepped
from promptcodebook.types import Rollout, Route, Step, Trace
from tests.build.cli import pco
from tests.build.project import PROJECT
from tests.build.scripted_run import ScriptedRun, events_of
from tests.build.viewer import shown

_RUN = ScriptedRun(steps=8, size=6, select=2, batch=2, hostile="", verdict=False)


def changed(change: Callable[[Step], Step]) -> Iterator[Event]:
    """The scripted run's events, its steps changed."""
    for event in events_of(_RUN):
        yield Stepped(change(event.step)) if isinstance(event, Stepped) else event


def test_an_example_that_comes_again_counts_once(follow: Callable[..., FollowedRun]) -> None:
    rewards = [0.1 * i for i in range(1, 11)]

    def same(step: Step) -> Step:
        """Ten examples, the same in every step, five of them with instincts 0 and 1."""
        routes = [Route((0, 1) if i < 5 else (2, 3)) for i in range(10)]
        later = 0.02 * step.index
        rollouts = [
            Rollout(f"ex{i}", route=route, prompt="p", output="o", reward=reward - later)
            for i, (route, reward) in enumerate(zip(routes, rewards, strict=True))
        ]
        return replace(step, traces=tuple(Trace(rollout, rollout.reward) for rollout in rollouts))

    followed = follow(_RUN, changed(same))
    means = [reward - 0.07 for reward in rewards]
    found = unpaired_interval(means[:5], means[5:])
    low, high = (number(x, signed=True) for x in (found.low, found.high))
    said = f"-0.500 ({low} to {high}, n = 5 and 5 examples, 40 and 40 rollouts)"
    assert said in shown(codebook_screen(followed))


_EFFECT = Effect(
    instinct=0,
    text="a text",
    split="val",
    examples=3,
    unrouted=0,
    rewards={"a": (1.0, 0.8), "b": (0.5, 0.5)},
    difference=Interval(0.1, 0.0, 0.2, 2),
    means=(0.75, 0.65),
    models={"executor": "m"},
    simulated=False,
    scored_by="exact",
    usage=Usage(),
    policy="digest",
    at=datetime(2026, 1, 1, tzinfo=UTC).isoformat(),
)
_QUICK = ("--preset", "quick", "--set", "update.epochs=2", "--set", "validation.every=1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the small project."""
    folder = Path(shutil.copytree(PROJECT, tmp_path_factory.mktemp("measured") / "mytask"))
    result = pco("train", *_QUICK, cwd=folder)
    assert result.code == 0, result.err
    [run] = (folder / "runs").iterdir()
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(trained, tmp_path / "runs" / trained.name))


@pytest.fixture
def followed(run: Path) -> Iterator[FollowedRun]:
    followed = FollowedRun(run, run.name)
    yield followed
    followed.close()


def keep(run: Path, effect: Effect) -> None:
    store = EffectStore(run, "pco")
    try:
        store.add(effect)
    finally:
        store.close()


def test_a_card_shows_the_effect_of_its_own_instinct_and_whether_it_is_simulated(
    run: Path, followed: FollowedRun
) -> None:
    context = followed.look().context
    texts, data = context.codebook.texts, context.header.fingerprints["val"]
    policy = read_policy_file(run / POLICY).digest
    own = replace(_EFFECT, text=texts[0], policy=policy, data=data, simulated=True)
    other = replace(own, difference=Interval(0.3, 0.0, 0.9, 2))
    for each in (
        own,
        replace(own, instinct=1),
        replace(other, policy="of another"),
        replace(other, data="another"),
    ):
        keep(run, each)
    cards = shown(codebook_screen(followed))
    assert cards.count("+0.100 (95 % +0.000 to +0.200)") == 1 and "+0.300 (95" not in cards
    assert re.search(r"\+0.200\), n = 2, val, simulated", cards)
