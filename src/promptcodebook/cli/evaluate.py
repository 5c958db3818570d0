"""`pco eval`: how good a run's policy, or a policy file, is on a split."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from promptcodebook.cli.assess import Asked, assessed
from promptcodebook.cli.console import columns, emit, number
from promptcodebook.cli.options import (
    Budget,
    ConfigPath,
    Count,
    DataDir,
    Json,
    Model,
    Ref,
    Runs,
    Sets,
    SplitName,
    TaskName,
)
from promptcodebook.cli.settings import runs_dir

if TYPE_CHECKING:
    from promptcodebook.session.evaluation import Assessment

__all__ = ["app", "row"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command("eval")
def evaluate(
    ref: Ref,
    config: ConfigPath = None,
    task: TaskName = None,
    data: DataDir = None,
    split: SplitName = "test",
    lm: Model = None,
    count: Count = None,
    samples: Runs = 1,
    budget: Budget = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Reward with its 95 % interval, failures, and what a query costs.

    Greedy, or with --samples N the mean of N sampled runs an example (AIME's published metric is
    that of five). A run is evaluated under its own settings, unless a task or a pco.toml is named.
    Save `--json` to compare with another later: pco compare A.json B.json
    """
    from promptcodebook.session.evaluation import Sample
    from promptcodebook.session.references import referred

    asked = Asked(config, task, data, lm, budget, sets or ())
    found = assessed(referred(runs_dir(), ref), Sample(split, count, samples), asked)
    if as_json:
        emit(found.as_json())
    else:
        print(_text(found))


def row(found: Assessment) -> dict[str, str]:
    """One evaluation as a row of a table."""
    usage = found.row.per_query
    score = found.row.score
    return {
        "policy": found.name,
        "reward": number(score.mean),
        "95 %": f"{score.low:.3f}..{score.high:.3f}",
        "answered only": number(found.row.answered),
        "failed": str(found.row.failed),
        "truncated": str(found.row.truncated),
        "calls": f"{found.row.calls_per_query:.1f}",
        "tokens": str(usage.tokens),
        "seconds": f"{usage.latency_s:.2f}",
        "USD": "unknown" if usage.cost is None else f"{usage.cost:.6f}",
    }


def _text(found: Assessment) -> str:
    marked = "simulated model, " if found.simulated else ""
    n = len(found.evaluation.rollouts)
    per = "query" if found.runs == 1 else f"example, all {found.runs} sampled runs of it"
    head = f"{marked}{found.evaluation.split} split, n = {n}; calls to USD are per {per}:"
    lines = [head, "", columns([row(found)])]
    first = next((r for r in found.evaluation.rollouts if r.failure is not None), None)
    if first is not None and first.failure is not None:
        failure = first.failure
        said = f"{failure.kind} at {failure.stage}: {failure.message}"
        lines += ["", f"{found.row.failed} failed; the first, {first.example_id}: {said}"]
    return "\n".join(lines)
