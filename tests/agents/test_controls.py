"""Controls of credit in agents, over two simulated worlds; `python -m bench.agent_controls` runs
twelve. Every figure here is simulated."""

from __future__ import annotations

from statistics import fmean

import pytest

from bench.agent_controls import (
    AT_FAULT,
    CONSTANT,
    ELSEWHERE,
    LEAST_GAIN,
    NO_WORSE,
    Done,
    Job,
    Kind,
    gains,
    run,
    share_at_fault,
)
from bench.controls import KEPT

WORLDS = (25, 26)


def made(kind: Kind, broken: str = "") -> list[Done]:
    return [run(Job(kind, world, broken)) for world in WORLDS]


def gain(done: list[Done], over: str = "untrained") -> float:
    return fmean(map(fmean, gains(done, over)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stages", "tools"])
def test_rewrites_go_where_the_fault_is_and_gain_unless_blame_is_constant(kind: Kind) -> None:
    sound, constant = made(kind), made(kind, CONSTANT)
    assert share_at_fault(sound) >= AT_FAULT and gain(sound) > LEAST_GAIN
    assert share_at_fault(constant) <= ELSEWHERE and gain(constant) <= KEPT * gain(sound)
    if kind == "tools":
        assert gain(sound, "without_tools") > LEAST_GAIN


@pytest.mark.slow
def test_where_no_tool_is_at_fault_none_is_rewritten_unless_it_is_always_blamed() -> None:
    sound = made("sound")
    assert not sum(done.right for done in sound)
    assert gain(sound, "without_tools") <= NO_WORSE
    assert sum(done.right for done in made("sound", CONSTANT))
