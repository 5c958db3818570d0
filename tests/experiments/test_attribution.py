"""The attribution experiment: it finds who knows, and is not fooled by who always says the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from promptcodebook.assemble import Assembled
from promptcodebook.config import load_config
from promptcodebook.experiments.attribution import (
    HARMFUL,
    LOCI,
    Fault,
    blamed,
    measure_blame,
    scores,
)
from promptcodebook.experiments.experiment import Order, base
from promptcodebook.experiments.lab import open_lab
from promptcodebook.experiments.reproduce import experiment_named, measure
from promptcodebook.method.critic import History
from promptcodebook.randomness import Draws
from promptcodebook.types import Channel, Gradients

ORDER = Order(experiment_named("attribution"), "quick", 1)
SPEC = "simulated"
Found = list[tuple[Fault, Channel | None]]


def _found(tmp_path: Path, judge: object) -> Found:
    lab = open_lab(tmp_path, SPEC)

    async def work(assembled: Assembled) -> Found:
        return await measure_blame(assembled, 4, judge)  # type: ignore[arg-type]

    try:
        return lab.work(load_config(base(ORDER, SPEC, "hotpotqa"), where="a test"), work)
    finally:
        lab.close()


async def _who_knows(history: History, draws: Draws) -> Gradients:
    """Sees what a reader of the trace can see: a harmful text, a prompt without its instincts."""
    chosen = [history.codebook[k].text for k in history.route.indices]
    if HARMFUL in chosen:
        return Gradients(severity={"codebook": 1.0})
    if not all(text in history.rollout.prompt for text in chosen):
        return Gradients(severity={"generator": 1.0})
    return Gradients(severity={"encoder": 1.0})


async def _one_answer(history: History, draws: Draws) -> Gradients:
    return Gradients(encoder="The route was wrong.")


def test_who_knows_has_1_and_who_always_says_the_same_is_at_chance(tmp_path: Path) -> None:
    known = _found(tmp_path / "known", _who_knows)
    made = Counter(fault for fault, _ in known)
    assert made.keys() == LOCI.keys() and max(made.values()) == 4
    assert set(scores(known).values()) == {(1.0, 1.0, 1.0)}
    same = scores(_found(tmp_path / "same", _one_answer))
    assert same["routing"][:2] == pytest.approx((made["routing"] / made.total(), 1.0))
    assert same["composition"] == same["instinct"] == (0.0, 0.0, 0.0)
    assert same["macro"][1] == pytest.approx(1 / 3)


def test_the_greatest_severity_is_blamed_else_the_only_complaint() -> None:
    both = Gradients(encoder="a", generator="b")
    assert blamed(both) is None
    assert blamed(Gradients(encoder="a", generator="b", severity={"generator": 0.6})) == "generator"
    tied = {"encoder": 0.5, "generator": 0.5}
    assert blamed(Gradients(encoder="a", generator="b", severity=tied)) is None  # type: ignore[arg-type]
    assert blamed(Gradients(codebook={3: "c"}, severity={"encoder": 0.0})) == "codebook"
    assert blamed(Gradients()) is None


def test_the_cell_asks_the_real_critic_and_attribution(tmp_path: Path) -> None:
    # One that errs often: it lays some at nobody, some at somebody.
    lab = open_lab(tmp_path, "simulated?attribution_error=0.6")
    try:
        measured = measure(ORDER, lab, lambda _: None)
        page = ORDER.experiment.page(measured)
    finally:
        lab.close()
    assert not measured.missing
    made = Counter(fault for fault, _ in measured.results["attribution"]["blamed"])
    confusion, table = page.tables
    assert [row[1] for row in confusion.rows] == [str(made[fault]) for fault in LOCI]
    assert {channel for _, channel in measured.results["attribution"]["blamed"]} > {""}
    assert table.rows[-1][0] == "macro" and table.rows[-1][-3:] == ["0.84", "0.83", "0.84"]
