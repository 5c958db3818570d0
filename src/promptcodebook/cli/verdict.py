"""The verdict on stdout: a table, the sentence, where the policy lies."""

from __future__ import annotations

from typing import Any

from promptcodebook.cli.console import columns, money, number
from promptcodebook.session.optimize import Run
from promptcodebook.session.verdict import Row

__all__ = ["row_cells", "verdict_json", "verdict_text"]


def row_cells(row: Row) -> dict[str, str]:
    """One row of the table."""
    gain = row.gain
    usage = row.per_query
    return {
        "prompt": row.name,
        "reward": number(row.score.mean),
        "95 %": f"{row.score.low:.3f}..{row.score.high:.3f}",
        "gain": "-" if gain is None else f"{gain.mean:+.3f}",
        "gain 95 %": "-" if gain is None else f"{gain.low:+.3f}..{gain.high:+.3f}",
        "calls": f"{row.calls_per_query:.1f}",
        "tokens": str(usage.tokens),
        "seconds": f"{usage.latency_s:.2f}",
        "USD": "unknown" if usage.cost is None else f"{usage.cost:.6f}",
        "failed": str(row.failed),
    }


def verdict_text(run: Run) -> str:
    """What `pco train` prints at its end."""
    lines: list[str] = []
    if run.conclusion is not None and run.conclusion.rows:
        n = run.conclusion.rows[0].score.n
        lines += [f"test split, n = {n}, per query:", ""]
        lines += [columns([row_cells(row) for row in run.conclusion.rows]), ""]
    if run.verdict:
        lines += [run.verdict, ""]
    spent = sum((u.calls for u in run.usage.values()), 0)
    tokens = sum((u.tokens for u in run.usage.values()), 0)
    cost = "cost unknown" if run.cost is None else money(run.cost)
    lines.append(f"run {run.id}: {spent} calls, {tokens} tokens, {cost}")
    if run.conclusion is not None:
        lines.append(f"policy: {run.path / 'policy.json'}")
        lines.append(f'next: pco explain {run.id} "an input"   or: pco report {run.id}')
    return "\n".join(lines)


def verdict_json(run: Run) -> dict[str, Any]:
    """The same for machines."""
    from dataclasses import asdict

    conclusion = run.conclusion
    return {
        "run": run.id,
        "path": str(run.path),
        "ended": run.ended,
        "worth": run.worth,
        "verdict": run.verdict,
        "best": asdict(run.best),
        "rows": list(conclusion.rows_as_json()) if conclusion else [],
        "usage": {role: asdict(u) for role, u in run.usage.items()},
        "cost": run.cost,
        "tallies": dict(run.tallies),
        "policy": str(run.path / "policy.json") if conclusion else None,
    }
