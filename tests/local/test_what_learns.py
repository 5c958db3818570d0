"""The two-sided control on real weights: the loop learns from a sound teacher alone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from statistics import fmean

import pytest

from promptcodebook.config import merge
from promptcodebook.experiments.lab import open_lab
from promptcodebook.experiments.what_learns import cell_of, settings_of, worlds

pytestmark = pytest.mark.local

SIZES = (4, 3)


def test_smollm2_learns_from_a_sound_teacher_alone(tmp_path: Path) -> None:
    world = next(world for world in worlds() if world.name == "control")
    settings = merge(settings_of(world, "smollm2"), {"update": {"epochs": 12}})
    earned: dict[str, float] = {}
    with closing(open_lab(tmp_path, "smollm2")) as lab:
        for arm in ("sound", "updater-identity", "critic-silent"):
            result = cell_of(world, arm, 0, settings, SIZES).measure(lab)
            earned[arm] = fmean(result["rewards"])
    assert earned["sound"] >= 0.2
    assert earned["updater-identity"] <= 0.06
    assert earned["critic-silent"] <= 0.06
