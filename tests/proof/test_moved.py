"""A run goes on at another address: what was paid for at the first is not asked for again."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptcodebook.store.run import RunStore
from tests.cli.invoked import pco
from tests.proof.served import served

pytestmark = pytest.mark.slow

# Nothing is kept for the verdict: a stop then brings no figures of its own, which cost calls.
TYPED = (
    *("--task", "constraints", "--preset", "quick", "--set", "update.epochs=3"),
    *("--set", "budget.reserve_for_verdict=0"),
)


def policy_of(folder: Path) -> bytes:
    [run] = (folder / "runs").iterdir()
    return (run / "policy.json").read_bytes()


def test_a_run_that_moves_twice_is_the_run_that_stayed(tmp_path: Path) -> None:
    """Byte by byte, and it paid for as many calls."""
    stayed, moved = tmp_path / "stayed", tmp_path / "moved"
    stayed.mkdir()
    moved.mkdir()
    with served() as one, served() as two, served() as three:
        whole = pco("train", *TYPED, "--lm", one.lm, "--set", "cache=false", cwd=stayed)
        assert whole.code == 0, whole.err
        begun = pco(
            *("train", *TYPED, "--lm", one.lm, "--set", "cache=false", "--budget", "150calls"),
            cwd=moved,
        )
        assert begun.code == 3, begun.err
        again = ("train", "--resume", "last", "--set", "cache=false")
        second = pco(*again, "--lm", two.lm, "--budget", "300calls", cwd=moved)
        assert second.code == 3, second.err
        assert f"is called at {two.lm} now" in second.err
        last = pco(*again, "--lm", three.lm, "--budget", "9999calls", cwd=moved)
        assert last.code == 0, last.err
    assert policy_of(moved) == policy_of(stayed)
    [run] = (moved / "runs").iterdir()
    store = RunStore.open(run)
    paid = sum(usage.calls for usage in store.usage().values())
    assert store.ours and store.header.config["lm"] == three.lm
    store.close()
    [run] = (stayed / "runs").iterdir()
    store = RunStore.open(run)
    assert paid == sum(usage.calls for usage in store.usage().values())
    store.close()
