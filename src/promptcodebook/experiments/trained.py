"""The cell that most tables are made of: one run, trained and judged, as plain values.

Experiments that need the same run share it: the lab finds it by its configuration. What a table
shows of a run is read here, so that every table means the same by usage, entropy or tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from promptcodebook.calls import Usage
from promptcodebook.config import load_config
from promptcodebook.errors import TooManyFailures
from promptcodebook.experiments.lab import Cell, Lab, Result, row_json
from promptcodebook.experiments.rewards import Rewards
from promptcodebook.store.events import Concluded
from promptcodebook.store.run import RunStore
from promptcodebook.types import Evaluation

LEARNED = "learned"
"""The row of a codebook's policy in its verdict."""
SHOWN = 6
"""Deployed prompts that are kept of a run."""
FORM = 4
"""Counts what `read_run` gives: where a cell is of an earlier form, its run is read once more."""


def trained(name: str, settings: Mapping[str, Any]) -> Cell:
    """The run of these settings to its verdict: rows on the test split, what training and a query
    took, routes, and how the codebook changed. A run that too many failures stopped is a result
    without a learned row, and says why in `stopped`."""

    def measure(lab: Lab) -> Result:
        config = load_config(settings, where=f"the experiment's cell {name}")
        try:
            training = lab.train(config, counted=True)
        except TooManyFailures as failures:
            if failures.run is None:
                raise
            return read_run(failures.run.path, stopped=str(failures))
        return read_run(training.path)

    return Cell(name, {**settings, "form": FORM}, measure)


def read_run(path: Path, stopped: str = "") -> Result:
    """What the tables show of a run. `whole` and `training` are what was paid; `lost` are attempts
    that brought no answer, be it for a kill or for a failure, at the most they can have cost."""
    store = RunStore.open(path)
    try:
        outline = store.outline()
        rows = {each.name: each for each in store.test_evaluations()}
        spent, lost = (sum(b.values(), Usage()) for b in (store.usage(), store.lost()))
        training = store.trained() or spent  # a run that was stopped had no row judged
        steps = list(store.steps(traces=True))
        # Another optimizer has no codebook.
        first = store.started().parameters.codebook.texts if outline.parameters else ()
        return {
            "run": store.header.id,
            "ended": outline.ended or "",
            "stopped": stopped,
            "search": _search(outline.conclusion),
            "verdict": outline.conclusion.text if outline.conclusion is not None else "",
            "rows": {name: row_json(row) for name, row in rows.items()},
            "whole": {"calls": spent.calls, "tokens": spent.tokens},
            "training": {"calls": training.calls, "tokens": training.tokens},
            "lost": {"calls": lost.calls, "tokens": lost.tokens},
            "by_role": {role: [u.calls, u.tokens] for role, u in store.usage().items()},
            "steps": [
                {"epoch": s.epoch, "epsilon": s.epsilon, "selected": list(s.selected)}
                for s in steps
            ],
            "residuals": [
                {"delta": t.residual, "critic": "critic" in t.gradients.severity}
                for s in steps
                for t in s.traces
                if t.residual is not None
            ],
            "success": list(outline.success),
            "first": list(first),
            "instincts": list(outline.parameters.codebook.texts if outline.parameters else first),
            "rewrites": [
                {"step": s.index, "variable": str(r.variable), "text": r.after}
                for s in steps
                for r in s.rewrites
                if r.kept
            ],
            **_deployed(rows.get(LEARNED), private=store.header.private),
        }
    finally:
        store.close()


def _search(concluded: Concluded | None) -> dict[str, int]:
    """What an optimizer of others tried, and what became of the replies that it asked for."""
    if concluded is None:
        return {}
    replies, cut = (concluded.settings.get(what, 0) for what in ("replies", "replies_cut"))
    return {"tried": len(concluded.candidates), "replies": replies, "cut": cut}


def _deployed(learned: Evaluation | None, *, private: bool) -> dict[str, Any]:
    """The routes of the test examples, and some of the prompts, unless they are private."""
    if learned is None:
        return {"routes": [], "prompts": []}
    routed = [r for r in learned.rollouts if r.route is not None]
    shown = [] if private else routed[:SHOWN]
    return {
        "routes": [list(r.route.indices) for r in routed if r.route is not None],
        "prompts": [
            {
                "example": r.example_id,
                "route": list(r.route.indices) if r.route is not None else [],
                "why": r.route.analysis if r.route is not None else "",
                "prompt": r.prompt,
                "reward": r.reward,
            }
            for r in shown
        ],
    }


def runs_of(results: Mapping[str, Result], name: str) -> list[Result]:
    """The finished runs of a setting: `NAME/0`, `NAME/1` and so on, one a seed."""
    found = [key for key in results if key.rpartition("/")[0] == name]
    return [results[key] for key in sorted(found, key=lambda key: int(key.rpartition("/")[2]))]


def rewards(runs: Sequence[Result], row: str = LEARNED) -> Rewards:
    """Of one row, by run and example; runs that were stopped before it are left out."""
    return [run["rows"][row]["rewards"] for run in runs if row in run["rows"]]


def counts(run: Result) -> list[int]:
    """How often each instinct was chosen for the test examples."""
    chosen = Counter(k for route in run["routes"] for k in route)
    return [chosen[k] for k in range(len(run["instincts"]))]


def tokens(run: Result, row: str = LEARNED) -> float:
    """Tokens of a deployed query, all its calls together."""
    own = run["rows"][row]
    return own["prompt_tokens"] + own["completion_tokens"]
