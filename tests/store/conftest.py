from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from promptcodebook.calls import Usage
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.types import (
    Codebook,
    Critique,
    Gradients,
    Instinct,
    Parameters,
    Rewrite,
    Rollout,
    Route,
    Step,
    Trace,
)

HEADER = Header(
    id="",
    created="2026-01-31T15:45:02+00:00",
    version="0.1.0",
    task="constraints",
    command="pco train",
    config={"seed": 0, "update": {"batch_size": 15}},
    fingerprints={"train": "aa", "val": "bb"},
)


def parameters(word: str = "zero") -> Parameters:
    instincts = (Instinct(f"Answer {word}."), Instinct("Cite.", frozen=True))
    return Parameters(f"route {word}", "compose", Codebook(instincts), "judge")


def step(index: int) -> Step:
    rollout = Rollout(
        f"x{index}",
        route=Route((0,), analysis="because"),
        prompt="Be brief.",
        output="y" * 100,
        reward=0.5,
        usage=Usage(2, 10, 5, 0, None, 0.1),
    )
    trace = Trace(
        rollout,
        0.5,
        Critique(0.4, "too long"),
        0.6,
        Gradients(codebook={0: "shorter"}, severity={"codebook": 0.6}),
    )
    return Step(
        index=index,
        epoch=index,
        epsilon=0.9**index,
        traces=(trace,),
        rewrites=(Rewrite(0, "a", "b", "shorter", kept=True),),
        parameters=parameters(str(index)),
        ema=(0.1 * index, 0.0),
        success=(0.2, 0.3),
        selected=(index + 1, 0),
    )


@pytest.fixture
def make_step() -> Callable[[int], Step]:
    return step


@pytest.fixture
def make_parameters() -> Callable[[str], Parameters]:
    return parameters


@pytest.fixture
def header() -> Header:
    return HEADER


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunStore]:
    store = RunStore.create(tmp_path / "runs", HEADER)
    yield store
    store.close()
