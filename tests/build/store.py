"""What a run has on record, and its header as its owner or somebody else would have written it."""

import contextlib
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from promptcodebook import types
from promptcodebook.base.paths import make_secret
from promptcodebook.calls import Usage
from promptcodebook.store.header import Header, seal
from promptcodebook.store.run import RunStore


def edit_header(file: Path, change: Callable[[str], str], *, sealed: bool = True) -> None:
    """The header's text in `run.sqlite` changed; `sealed` = by its owner, who has the secret."""
    with contextlib.closing(sqlite3.connect(file)) as db, db:
        (text,) = db.execute("SELECT json FROM header").fetchone()
        edited = change(text)
        written = seal(edited, make_secret()) if sealed else edited
        db.execute("UPDATE header SET json = ?", (written,))


def steps_of(run: Path) -> list[types.Step]:
    """The steps of the run in this folder, with their traces."""
    with contextlib.closing(RunStore.open(run)) as store:
        return list(store.steps(traces=True))


def judged_in(run: Path) -> list[str]:
    """The rows of the verdict that it has on record."""
    with contextlib.closing(RunStore.open(run)) as store:
        return [evaluation.name for evaluation in store.test_evaluations()]


def header(settings: Mapping[str, Any], **more: Any) -> Header:
    return Header(id="r1", created="2026-01-31T15:45:02", version="0.2", config=settings, **more)


def parameters(word: str = "zero") -> types.Parameters:
    instincts = (types.Instinct(f"Answer {word}."), types.Instinct("Cite.", frozen=True))
    return types.Parameters(f"route {word}", "compose", types.Codebook(instincts), "judge")


def step(index: int) -> types.Step:
    rollout = types.Rollout(
        f"x{index}",
        route=types.Route((0,), analysis="because"),
        prompt="Be brief.",
        output="y" * 100,
        reward=0.5,
        usage=Usage(2, 10, 5, 0, None, 0.1),
    )
    trace = types.Trace(
        rollout,
        0.5,
        types.Critique(0.4, "too long"),
        0.6,
        types.Gradients(codebook={0: "shorter"}, severity={"codebook": 0.6}),
    )
    return types.Step(
        index=index,
        epoch=index,
        epsilon=0.9**index,
        traces=(trace,),
        rewrites=(types.Rewrite(0, "a", "b", "shorter", kept=True),),
        parameters=parameters(str(index)),
        ema=(0.1 * index, 0.0),
        success=(0.2, 0.3),
        selected=(index + 1, 0),
    )
