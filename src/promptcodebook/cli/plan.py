"""Before anything is spent: `pco data` looks at the data, `pco doctor` at all else, and
`pco estimate` says what a run will take."""

from __future__ import annotations

import gc
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcodebook.cli.app import COMMAND_GROUP
from promptcodebook.cli.console import columns, emit, note, show, wrap_text
from promptcodebook.cli.settings import Json, Wanted, command_group, options
from promptcodebook.errors import ConfigError, import_part
from promptcodebook.paths import runs_dir
from promptcodebook.text import printable
from promptcodebook.units import duration

if TYPE_CHECKING:
    from promptcodebook.config import Config
    from promptcodebook.data.check import DataCheck
    from promptcodebook.doctor.probe import Section
    from promptcodebook.estimation.estimate import Estimate, Share

_SHOWN = 10
"""Inputs in two splits that are listed; the rest is counted."""

app = command_group()
data = command_group("Look at a data file before training on it; fetch a benchmark's data.")
app.add_typer(data, name="data")


@data.command()
def check(
    path: Annotated[Path, typer.Argument(help="jsonl, json, csv, tsv, parquet, or a folder.")],
    input: Annotated[str, typer.Option(help="A column, or '{title}\\n{body}'.")] = "input",
    target: Annotated[str, typer.Option(help="The reference column; '' = none.")] = "target",
    messages: Annotated[str, typer.Option(help="A column of chat messages.")] = "",
    id: Annotated[str, typer.Option(help="A column of ids.")] = "",
    split: Annotated[str, typer.Option(help="A column that names each row's split.")] = "",
    as_json: Json = False,
) -> int:
    """Columns, sizes, repeats, conflicting targets, and inputs in two splits (exit 1)."""
    from promptcodebook.data import examine, load

    named = {"target": target, "messages": messages, "id": id, "split": split}
    # Rows hold no circles; looking for some among millions of values took a tenth of the time.
    was_on = gc.isenabled()
    gc.disable()
    try:
        given: dict[str, Any] = {key: column or None for key, column in named.items()}
        checked = examine(load(path, input=input, allow_overlap=True, **given))
    finally:
        if was_on:
            gc.enable()
    facts = {"clean": checked.clean, "warnings": list(checked.warnings())}
    show(lambda: asdict(checked) | facts, lambda: _check_text(checked), as_json=as_json)
    return 0 if checked.clean else 1


@data.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A benchmark, such as ifbench.")],
    cache: Annotated[
        Path | None, typer.Option(help="Where copies are kept; default: the user's cache folder.")
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept files that have changed at their public home.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Fetch a benchmark from its public home; its task then reads the copy without --data."""
    from promptcodebook.tasks.home import default_data_cache

    source = import_part(COMMAND_GROUP, "data.fetch", "pco data fetch", "bench")(name)
    rows = source.fetch(cache or default_data_cache(), accept=accept)
    if as_json:
        counts, files = dict(rows.counts), dict(rows.files)
        emit({"name": name, "folder": str(rows.folder), "rows": counts, "sha256": files})
        return
    print(f"{name}: in {rows.folder}\n")
    print(columns([{"file": f"{file}.jsonl", "rows": str(n)} for file, n in rows.counts.items()]))
    print(f"\nnote  {source.note}" if source.note else "")
    print(f"next: pco train --task {name}{f' --data {cache}' if cache else ''}")


def _check_text(checked: DataCheck) -> str:
    splits: list[dict[str, str]] = []
    for split, count in checked.counts.items():
        of = checked.lengths.get(split)
        words = f"{of.shortest}..{of.longest}, median {of.median:g}" if of else "-"
        missing = str(checked.missing_targets[split])
        splits.append(
            {"split": split, "examples": str(count), "without target": missing, "words": words}
        )
    found = [
        {"column": c.name, "types": ", ".join(c.types), "missing": str(c.missing)}
        for c in checked.columns
    ]
    lines = [f"{checked.name}: {sum(checked.counts.values())} examples", ""]
    lines += [columns(splits), "", columns(found), ""]
    lines += [f"warn  {printable(warning)}" for warning in checked.warnings()]
    lines += [
        f"fail  {a} ({in_a}) and {b} ({in_b}) have the same input"
        for (a, b), (in_a, in_b) in ((o.ids, o.splits) for o in checked.overlaps[:_SHOWN])
    ]
    if len(checked.overlaps) > _SHOWN:
        lines.append(f"fail  and {len(checked.overlaps) - _SHOWN} more (--json shows all)")
    if checked.clean:
        lines += ["ok    no input appears in two splits", "next: pco estimate, then pco train"]
    else:
        lines.append("next: remove them from one split, or let the splits be drawn")
    return "\n".join(lines)


@dataclass(frozen=True)
class _Examined(Wanted):
    """What is examined is not run: it takes no budget and no seed."""

    budget: None = None
    seed: None = None


@app.command()
@options
def doctor(wanted: _Examined, as_json: Json = False) -> int:
    """Check settings, data, reward, every endpoint, prices and disk; exit 1 if something fails.

    It makes about fifteen short calls to each model.
    """
    from promptcodebook.sync import run_sync

    settings, base = wanted.gather()
    note("each model is asked about fifteen short things")
    sections = run_sync(_sections(settings, base, quiet=as_json))
    ok = all(section.ok for section in sections)
    text = "\nall is well; next: pco estimate" if ok else "\nfix what failed, then: pco doctor"
    tree = {"ok": ok, "sections": [asdict(section) for section in sections]}
    show(lambda: tree, lambda: text, as_json=as_json)
    return 0 if ok else 1


async def _sections(settings: Config, base: Path, *, quiet: bool) -> list[Section]:
    """All sections; each is printed as soon as it is done, unless `quiet`."""
    from promptcodebook.doctor.checkup import checkup

    sections: list[Section] = []
    async for section in checkup(settings, base, runs_dir()):
        sections.append(section)
        if quiet:
            continue
        lines = [wrap_text(section.title, "")]
        for each in section.findings:
            lines.append(wrap_text(f"{each.name}: {each.what}", f"  {each.level:<5} "))
            if each.next_step:  # a command, which is not broken up: it is there to be copied
                lines.append(f"        next: {printable(each.next_step)}")
        print("\n".join(lines), flush=True)
    return sections


@app.command()
@options
def estimate(
    wanted: Wanted,
    seconds_per_call: Annotated[
        float | None, typer.Option("--seconds-per-call", min=0.0, help="How long a call takes.")
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Measure it: three short calls to each model.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Low, expected and high, from a dry run of the plan; no model is asked, unless by --probe.

    An unknown price is shown as unknown, not as 0. The time needs to know how long a call takes.
    """
    from promptcodebook.assemble import Sources, plan_run
    from promptcodebook.estimation.estimate import estimate_plan, measure
    from promptcodebook.lm.stack import specs_of
    from promptcodebook.sync import run_sync

    if probe and seconds_per_call is not None:
        raise ConfigError("--probe measures what --seconds-per-call gives", hint="leave one out")
    settings, base = wanted.gather()
    plan = plan_run(settings, Sources(base)).require_training()
    seconds = run_sync(measure(plan)) if probe else {}
    if seconds_per_call:
        seconds = dict.fromkeys(specs_of(plan.config), seconds_per_call)
    made = estimate_plan(plan, seconds)
    show(lambda: _estimate_json(made), lambda: _estimate_text(made), as_json=as_json)


def _estimate_json(made: Estimate) -> dict[str, Any]:
    roles = [asdict(share) | {"tokens": asdict(share.tokens)} for share in made.roles]
    total = asdict(made.total) | {"tokens": asdict(made.total.tokens)}
    del total["role"], total["model"]
    facts = {"updates": made.updates, "simulated": made.simulated}
    return {"roles": roles, "total": total, **facts, "assumptions": list(made.assumptions)}


def _estimate_text(made: Estimate) -> str:
    roles, total = made.roles, made.total
    models = {share.model for share in roles}
    one = f"model {total.model}" if len(models) == 1 else "models by role"
    lines = [wrap_text(f"{made.updates} updates; {one}; low / expected / high", ""), ""]
    if len(models) > 1:
        lines += [columns([{"role": r.role, "model": r.model} for r in roles]), ""]
    lines += [columns([_share_cells(share) for share in (*roles, total)]), ""]
    lines += [wrap_text(assumption, "- ") for assumption in made.assumptions]
    if total.seconds is None:
        lines.append("- the time needs that of a call: --seconds-per-call 2, or --probe")
    return "\n".join([*lines, "next: pco train, with --budget to be sure"])


def _share_cells(share: Share) -> dict[str, str]:
    role, _, calls, tokens, cost = share.cells()
    time = {} if share.seconds is None else {"time": share.seconds.text(duration)}
    return {"role": role, "calls": calls, "tokens": tokens, "cost": cost, **time}
