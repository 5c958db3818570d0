"""What an instinct is said to have earned, by its versions and as it was measured."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from promptcodebook.base.intervals import Interval
from promptcodebook.calls import Usage
from promptcodebook.deploy.viewer.following import FollowedRun
from promptcodebook.deploy.viewer.screens import (
    codebook_screen,
)
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.references import POLICY
from promptcodebook.store.effects import Effect, EffectStore
from tests.build.cli import pco
from tests.build.project import PROJECT
from tests.build.viewer import shown

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


def test_a_card_shows_what_was_measured_of_its_own_instinct_or_what_measures_it(
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
    assert "0.750 with it, 0.650 without: +0.100 (95" in cards
    unmeasured = re.findall(rf"not measured: pco codebook effect {run.name} (\d+)", cards)
    assert unmeasured == [str(k) for k in range(1, len(texts))]
