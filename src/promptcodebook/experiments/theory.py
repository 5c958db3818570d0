"""`theory` (Theorems 1-3 and 5, Proposition 4): what the statements say in numbers, and what of
them can be seen. Counting and exploring need no model; the reward gap is also tried on one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from promptcodebook.assemble import Assembled
from promptcodebook.config import load_config
from promptcodebook.config.schema import Explore
from promptcodebook.experiments.experiment import (
    Experiment,
    Measured,
    Order,
    about,
    base,
    missing,
    runs_of,
    said,
    scale_of,
    score,
    stopped,
    variants,
)
from promptcodebook.experiments.lab import Cell, Lab, Result, row_json
from promptcodebook.experiments.page import Block, Page, Table, shown
from promptcodebook.method.executor import Evaluator
from promptcodebook.method.policy import FixedPrompt, Prompter, epsilon_at, explored_route
from promptcodebook.method.state import utilisation_bound
from promptcodebook.optimizers.fixed import OraclePrompt
from promptcodebook.randomness import keyed_random
from promptcodebook.types import Evaluation

_FEW = 20
"""Traces below which the residual of Theorem 5 has no figure."""

PAPER = "ifbench"
GAP = "houserules_six"
"""Six topics, each with a rule of its own that no message names: M = 6 distinct optima."""
WORLDS = 100
"""Repetitions of what is drawn."""


def _cells(order: Order, spec: str) -> Sequence[Cell]:
    settings: dict[str, Any] = {
        "task": GAP,
        "lm": spec,
        "roles": {"executor": {"temperature": 0.0, "max_tokens": 64}},
        "verdict_examples": scale_of(order.preset).test,
    }
    return [
        Cell("reward-gap", settings, lambda lab: _gap(lab, settings)),
        *variants(order, base(order, spec, PAPER), {"pco": {}}),
    ]


def _gap(lab: Lab, settings: Mapping[str, Any]) -> Result:
    """Every single rule for all messages, all rules in one prompt, and each message its own."""
    config = load_config(settings, where="the experiment")

    async def work(assembled: Assembled) -> list[tuple[str, Evaluation]]:
        task = assembled.task
        assert task.oracle is not None, "the task knows its rules"
        own = [task.oracle(example).splitlines() for example in assembled.plan.judged]
        pairs = zip(assembled.plan.judged, own, strict=True)
        examples = [example for example, lines in pairs if len(lines) == 1]
        every = {
            line for example in task.dataset.test for line in task.oracle(example).splitlines()
        }
        rules = [text for text in task.seeds if text in every]
        ways: dict[str, Prompter] = {
            f"rule {k + 1} for all": FixedPrompt(rule) for k, rule in enumerate(rules)
        }
        ways["all rules in one prompt"] = FixedPrompt("\n".join(rules))
        ways["each message its own rule"] = OraclePrompt(task.oracle, "")
        evaluator = Evaluator(assembled.trial(greedy=True), config.randomness)
        return [(n, await evaluator.evaluate(n, w, examples, "test")) for n, w in ways.items()]

    return {"rows": {name: row_json(row) for name, row in lab.work(config, work)}}


def active_after(
    explore: Explore, select: int, ema: Sequence[float], steps: Sequence[float], world: int
) -> set[int]:
    """Which entries were ever drawn: of exploration alone, with a fixed r̄ and ε by step."""
    draw = keyed_random("theory", world)
    active: set[int] = set()
    for epsilon in steps:
        if draw.random() < epsilon:
            active.update(explored_route(ema, select, explore, draw).indices)
    return active


def collapse(size: int, select: int, steps: Sequence[float], world: int) -> int:
    """Entries ever selected where routes go to the S of highest r̄, rewards are coins, and ε is as
    given: Proposition 4's reinforcement, without a model."""
    explore, draw = Explore(), keyed_random("collapse", world)
    ema, active = [0.0] * size, set[int]()
    for epsilon in steps:
        if draw.random() < epsilon:
            chosen = explored_route(ema, select, explore, draw).indices
        else:
            chosen = tuple(sorted(range(size), key=lambda k: (-ema[k], k))[:select])
        reward = float(draw.random() < 0.5)
        for k in chosen:
            ema[k] += explore.alpha * (reward - ema[k])
        active.update(chosen)
    return len(active)


def _page(measured: Measured) -> Page:
    blocks = about(measured, PAPER, "The paper's formal statements in numbers, after")
    blocks += [*_expressivity(), *_reward_gap(measured), *_utilisation(), *_collapse()]
    return Page("What the theorems say", [*blocks, *_additivity(measured), *missing(measured)])


def _expressivity() -> list[Block]:
    rows: list[list[str]] = []
    for k, s in ((4, 1), (16, 1), (16, 4), (32, 4), (16, 6)):
        up_to = sum(math.comb(k, n) for n in range(1, s + 1))
        rows.append([str(k), str(s), f"{math.comb(k, s):,}", f"{up_to:,}"])
    return [
        "## Theorem 1: how many prompts a codebook can make",
        Table("expressivity", ["K", "S", "routes of exactly S", "routes of 1 to S"], rows),
        said("theory", "expressivity"),
    ]


def _reward_gap(measured: Measured) -> list[Block]:
    result = measured.results.get("reward-gap")
    blocks: list[Block] = ["## Theorem 2: the reward gap"]
    if result is not None:
        rewards = {name: row["rewards"] for name, row in result["rows"].items()}
        rows = [[name, shown(score([each]))] for name, each in rewards.items()]
        blocks.append(said("theory", "gap", task=GAP, n=len(next(iter(rewards.values())))))
        blocks.append(Table("reward-gap", ["prompt", "reward (95 %)"], rows))
    return [*blocks, said("theory", "fixed")]


def _steps(size: int, explore: Explore, epochs: int = 50) -> list[float]:
    return [epsilon_at(epoch, explore, epochs) for epoch in range(epochs) for _ in range(size)]


def _utilisation() -> list[Block]:
    explore, rows = Explore(), list[list[str]]()
    for size, select, batch in ((16, 4, 1), (16, 4, 4), (32, 4, 1), (16, 1, 1)):
        steps = _steps(batch, explore)
        explored = sum(steps)
        cells = [str(size), str(select), f"{explored:.0f}"]
        for low, wide in ((0.0, False), (-1.0, True)):
            ema = [low, *([1.0] * (size - 1))]
            made = [active_after(explore, select, ema, steps, world) for world in range(WORLDS)]
            bound = utilisation_bound(size, select, round(explored), explore.tau, wide=wide)
            cells += [f"{bound:.1f}", f"{fmean(map(len, made)):.1f}"]
            cells += [f"{bound / size:.2f}", f"{fmean(0 in active for active in made):.2f}"]
        rows.append(cells)
    ranges = ("r̄ in [0, 1]", "r̄ in [-1, 1]")
    parts = ("at least", "active", "worst entry at least", "worst entry")
    head = ["K", "S", "Σ ε N", *(f"{part}, {r}" for r in ranges for part in parts)]
    return [
        "## Theorem 3: exploration reaches every entry",
        said("theory", "utilisation", worlds=WORLDS),
        Table("utilisation", head, rows),
        said("theory", "ranges"),
    ]


def _collapse() -> list[Block]:
    rows: list[list[str]] = []
    for size, select in ((16, 4), (32, 4)):
        without = [collapse(size, select, [0.0] * 500, world) for world in range(WORLDS)]
        with_ = [collapse(size, select, _steps(10, Explore()), world) for world in range(WORLDS)]
        rows.append([str(size), str(select), f"{fmean(without):.1f}", f"{fmean(with_):.1f}"])
    head = ["K", "S", "ever selected, ε = 0", "with ε-greedy"]
    title = "## Proposition 4: collapse without exploration"
    return [title, Table("collapse", head, rows), said("theory", "collapse")]


def residual_rows(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Traces with a severity of g_ψ and without: how many, mean δ, mean size and largest size."""
    named = {"g_θ, g_φ, g_C and g_ψ": True, "g_θ, g_φ and g_C (no severity of g_ψ)": False}
    rows: list[list[str]] = []
    for over, whole in named.items():
        deltas = [each["delta"] for each in found if each["critic"] == whole]
        figures = ["too few"] * 3
        if len(deltas) >= _FEW:
            sizes = [abs(delta) for delta in deltas]
            figures = [f"{fmean(deltas):+.3f}", f"{fmean(sizes):.3f}", f"{max(sizes):.3f}"]
        rows += [[over, str(len(deltas)), *figures]] if deltas else []
    return rows


def _additivity(measured: Measured) -> list[Block]:
    runs = runs_of(measured.results, "pco")
    rows = residual_rows([each for run in runs for each in run["residuals"]])
    blocks: list[Block] = ["## Theorem 5: does the blame add up?", *stopped({"pco": runs})]
    if not rows:
        return [*blocks, said("theory", "no_residual")]
    head = ["Σ over", "traces", "mean δ", "mean size", "largest size"]
    blocks += [said("theory", "residual"), Table("additivity", head, rows)]
    return [*blocks, said("theory", "few", few=_FEW), said("theory", "rho")]


EXPERIMENT = Experiment("theory", "Theorems 1-3, 5 and Proposition 4", _cells, _page, seeds=1)
