"""What doctor and estimate say of the preset `small`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from promptcodebook.assemble import plan_run
from promptcodebook.config import load_config
from promptcodebook.doctor.checkup import checkup
from promptcodebook.doctor.probe import Section
from promptcodebook.estimation.estimate import estimate

STRONG = "simulated?capacity=9"
SMALL = {"task": "houserules", "preset": "small", "lm": "simulated"}


async def sections(folder: Path, **more: Any) -> dict[str, Section]:
    config = load_config(SMALL, more)
    return {s.title: s async for s in checkup(config, folder, folder / "runs", {})}


async def test_doctor_says_that_no_text_is_rewritten_and_no_model_routes(tmp_path: Path) -> None:
    found = await sections(tmp_path)
    assert "texts stay as they are" in found["task"]["settings"].what
    rehearsed = found["one example, from route to gradients"]
    assert "learned from outcomes" in rehearsed["router"].what
    assert rehearsed["generator"].what.endswith("the instincts as they are")
    assert rehearsed["critic"].what == "not asked, since no text is rewritten"


@pytest.mark.slow
def test_the_estimate_says_who_rewrites() -> None:
    roles = {role: {"model": STRONG} for role in ("critic", "attribution", "updater")}
    short = {**SMALL, "update": {"epochs": 2}, "verdict_examples": 8}
    alone, helped = (
        estimate(plan_run(load_config(short, more))) for more in ({}, {"roles": roles})
    )
    assert any("texts stay as they are" in line for line in alone.assumptions)
    assert {share.role for share in alone.roles} == {"executor"}
    assert f"preset small: texts are rewritten by {STRONG}" in helped.assumptions
    assert {"critic", "attribution", "updater"} <= {share.role for share in helped.roles}
