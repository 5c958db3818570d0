"""`pco estimate`: calls, tokens, money and time by role, before anything is spent."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcodebook.cli.console import columns, emit, wrap_text
from promptcodebook.cli.settings import (
    Budget,
    ConfigPath,
    DataDir,
    Json,
    Model,
    Preset,
    Seed,
    Sets,
    TaskName,
    command_group,
    flag_layer,
    gather_settings,
)
from promptcodebook.errors import ConfigError
from promptcodebook.units import duration

if TYPE_CHECKING:
    from promptcodebook.estimation.estimate import Estimate, Share

app = command_group()

Seconds = Annotated[
    float | None, typer.Option("--seconds-per-call", min=0.0, help="How long a call takes.")
]
Probe = Annotated[
    bool, typer.Option("--probe", help="Measure it: three short calls to each model.")
]


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
    seconds_per_call: Seconds = None,
    probe: Probe = False,
    as_json: Json = False,
) -> None:
    """Low, expected and high, from a dry run of the plan; no model is asked, unless by --probe.

    An unknown price is shown as unknown, not as 0. The time needs to know how long a call takes.
    """
    from promptcodebook.assemble import Sources, plan_run
    from promptcodebook.estimation.estimate import estimate as estimate_plan
    from promptcodebook.estimation.estimate import measure
    from promptcodebook.lm.stack import specs_of
    from promptcodebook.sync import run_sync

    if probe and seconds_per_call is not None:
        raise ConfigError("--probe measures what --seconds-per-call gives", hint="leave one out")
    settings, base = gather_settings(config, flag_layer(task, data, lm, preset, seed, budget), sets)
    plan = plan_run(settings, Sources(base)).require_training()
    specs = specs_of(plan.config)
    seconds = run_sync(measure(plan)) if probe else {}
    if seconds_per_call:
        seconds = dict.fromkeys(specs, seconds_per_call)
    estimated = estimate_plan(plan, seconds)
    if as_json:
        emit(_plain(estimated))
    else:
        print(_text(estimated))


def _plain(estimated: Estimate) -> dict[str, Any]:
    total = asdict(estimated.total) | {"tokens": asdict(estimated.total.tokens)}
    return {
        "roles": [{**asdict(r), "tokens": asdict(r.tokens)} for r in estimated.roles],
        "total": {key: value for key, value in total.items() if key not in ("role", "model")},
        "updates": estimated.updates,
        "simulated": estimated.simulated,
        "assumptions": list(estimated.assumptions),
    }


def _text(estimated: Estimate) -> str:
    roles, total = estimated.roles, estimated.total
    models = {share.model for share in roles}
    one = f"model {total.model}" if len(models) == 1 else "models by role"
    lines = [wrap_text(f"{estimated.updates} updates; {one}; low / expected / high", ""), ""]
    if len(models) > 1:
        lines += [columns([{"role": r.role, "model": r.model} for r in roles]), ""]
    lines += [columns([_row(share) for share in (*roles, total)]), ""]
    lines += [wrap_text(assumption, "- ") for assumption in estimated.assumptions]
    if total.seconds is None:
        lines.append("- the time needs that of a call: --seconds-per-call 2, or --probe")
    return "\n".join([*lines, "next: pco train, with --budget to be sure"])


def _row(share: Share) -> dict[str, str]:
    role, _, calls, tokens, cost = share.cells()
    row = {"role": role, "calls": calls, "tokens": tokens, "cost": cost}
    if share.seconds is not None:
        row["time"] = share.seconds.text(duration)
    return row
