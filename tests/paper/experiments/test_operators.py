"""Broken operators: each breaks what it says, in a short training on the simulated model."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from promptcodebook.assemble import Sources
from promptcodebook.config import load_config
from promptcodebook.paper.experiments.lab import run_once
from promptcodebook.paper.experiments.operators import OPERATORS, run_broken
from promptcodebook.run.opening import Where
from promptcodebook.store.run import RunStore
from promptcodebook.types import Rewrite, Trace

CONFIG = load_config(
    {
        **{"task": "constraints", "lm": "simulated?attribution_error=0.5", "keep": "last"},
        "update": {"epochs": 2, "batch_size": 12, "shared_by": 1},
        "explore": {"epsilon": 0.5},
        "validation": {"every": 0, "subset": 2},
        "verdict_examples": 2,
    }
)


def made(folder: Path, operator: str = "") -> tuple[list[Trace], list[Rewrite]]:
    where = Where(folder)
    if operator:
        path = run_broken(operator, CONFIG, Sources(), where)
    else:
        path, _ = run_once(CONFIG, Sources(), where)
    with closing(RunStore.open(path)) as store:
        steps = list(store.steps(traces=True))
    return [t for s in steps for t in s.traces], [r for s in steps for r in s.rewrites]


def as_told(operator: str, traces: list[Trace], rewrites: list[Rewrite]) -> bool:
    """Whether a training looks as one with this operator must."""
    blamed = [(t.rollout.route.indices, t.gradients) for t in traces if t.rollout.route]
    fixed = {"codebook": "0123456789", "theta": "e", "phi": "g", "psi": "c"}
    part = fixed.get(operator.partition("-")[0], "")
    if part and operator.endswith("-fixed"):
        return not any(str(r.variable)[0] in part for r in rewrites)
    match operator:
        case "updater-identity":
            return not rewrites
        case "updater-blind":
            return all(r.gradient == "- Something in this text can be better." for r in rewrites)
        case "critic-silent":
            return not any(t.verdict and t.verdict.feedback for t in traces)
        case "scores-random":
            scores = [t.verdict.score for t in traces if t.verdict]
            return len(set(scores)) == len(scores) > 9
        case "blame-constant":
            return all(
                not (g.encoder or g.generator) and {*g.codebook} <= {z[0]} for z, g in blamed
            )
        case "blame-all":
            return all({*g.codebook} in (set(), {*z}) for z, g in blamed)
        case "channels-rotated":
            return all({*g.codebook} <= {z[0]} for z, g in blamed)
        case "no-exploration":
            return not any(t.rollout.route and t.rollout.route.explored for t in traces)
        case _:  # by what feedback says of it alone: it differs from what is sound
            return True


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Trace], list[Rewrite]]:
    return made(tmp_path_factory.mktemp("sound"))


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_breaks_what_it_says(
    operator: str, sound: tuple[list[Trace], list[Rewrite]], tmp_path: Path
) -> None:
    told = ["blame-random", "blame-lowest", "feedback-swapped", "gradients-swapped"]
    told += ["ema-frozen", "success-frozen"]
    assert (operator in told) == as_told(operator, *sound), "only a broken loop looks like that"
    broken = made(tmp_path, operator)
    assert as_told(operator, *broken)
    assert broken != sound
