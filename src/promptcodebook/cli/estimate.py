"""`pco estimate`: calls, tokens and money by role, before anything is spent."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from promptcodebook.cli.console import columns, emit, wrapped
from promptcodebook.cli.options import (
    Budget,
    ConfigPath,
    DataDir,
    Json,
    Model,
    Preset,
    Seed,
    Sets,
    TaskName,
    task_flags,
)
from promptcodebook.cli.settings import gathered

if TYPE_CHECKING:
    from promptcodebook.session.estimate import Estimate, RoleEstimate
    from promptcodebook.session.span import Span

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def estimate(
    config: ConfigPath = None,
    task: TaskName = None,
    data: DataDir = None,
    lm: Model = None,
    preset: Preset = None,
    budget: Budget = None,
    seed: Seed = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Low, expected and high, from the plan and the data; no model is asked.

    An unknown price is shown as unknown, not as 0.
    """
    from promptcodebook.config import parse_budget
    from promptcodebook.session.foresee import foreseen

    flags: dict[str, Any] = {
        **task_flags(task, data, lm),
        "preset": preset,
        "seed": seed,
        "budget": parse_budget(budget).model_dump() if budget else None,
    }
    settings, base = gathered(config, flags, sets or [])
    found = foreseen(settings, base)
    if as_json:
        emit(_plain(found))
    else:
        print(_text(found))


def _plain(found: Estimate) -> dict[str, Any]:
    usd = found.usd
    return {
        "roles": [{**asdict(r), "tokens": asdict(r.tokens)} for r in found.roles],
        "total": {
            "calls": asdict(found.calls),
            "tokens": asdict(found.tokens),
            "usd": asdict(usd) if usd is not None else None,
        },
        "updates": found.updates,
        "simulated": found.simulated,
        "assumptions": list(found.assumptions),
    }


def _text(found: Estimate) -> str:
    rows = [_row(each) for each in found.roles]
    total = _figures("total", found.calls, found.tokens, found.usd)
    models = {r.model for r in found.roles}
    one = f"model {next(iter(models))}" if len(models) == 1 else "models by role:"
    lines = [f"{found.updates} updates; {one}; low / expected / high", ""]
    if len(models) > 1:
        lines += [columns([{"role": r.role, "model": r.model} for r in found.roles]), ""]
    lines += [columns([*rows, total]), ""]
    lines += [wrapped(said, "- ") for said in found.assumptions]
    return "\n".join([*lines, "next: pco train, with --budget to be sure"])


def _row(each: RoleEstimate) -> dict[str, str]:
    return _figures(each.role, each.calls, each.tokens, each.usd)


def _figures(name: str, calls: Span, tokens: Span, usd: Span | None) -> dict[str, str]:
    return {
        "role": name,
        "calls": " / ".join(f"{v:,.0f}" for v in calls.values),
        "tokens": " / ".join(_short(v) for v in tokens.values),
        "USD": "unknown" if usd is None else " / ".join(f"{v:.2f}" for v in usd.values),
    }


def _short(count: float) -> str:
    if count >= 1e6:
        return f"{count / 1e6:.2f}M"
    return f"{count / 1e3:.1f}k" if count >= 1e3 else f"{count:.0f}"
