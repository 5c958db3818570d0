"""`pco data`: check a data file before anything is paid for, or fetch a benchmark's data."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcodebook.cli.console import columns, emit
from promptcodebook.cli.settings import Json, command_group
from promptcodebook.text import printable

if TYPE_CHECKING:
    from promptcodebook.data.check import DataCheck

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

    with _no_collector():
        dataset = load(
            path,
            input=input,
            target=target or None,
            messages=messages or None,
            id=id or None,
            split=split or None,
            allow_overlap=True,
        )
        checked = examine(dataset)
    if as_json:
        facts = {"clean": checked.clean, "warnings": list(checked.warnings())}
        emit({**asdict(checked), **facts})
    else:
        print(_check_text(checked))
    return 0 if checked.clean else 1


@contextmanager
def _no_collector() -> Generator[None]:
    """Rows hold no circles; looking for some among millions of values took a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


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
    from promptcodebook.cli.app import COMMAND_GROUP
    from promptcodebook.errors import import_part
    from promptcodebook.tasks.home import default_data_cache
    from promptcodebook.tasks.public import public_rows

    source_of = import_part(COMMAND_GROUP, "data.fetch", "pco data fetch", "bench")
    source = source_of(name)
    rows = public_rows(source, cache or default_data_cache(), accept=accept)
    if as_json:
        counts, files = dict(rows.counts), dict(rows.files)
        emit({"name": name, "folder": str(rows.folder), "rows": counts, "sha256": files})
        return
    print(f"{name}: in {rows.folder}\n")
    print(columns([{"file": f"{file}.jsonl", "rows": str(n)} for file, n in rows.counts.items()]))
    print(f"\nnote  {source.note}" if source.note else "")
    option = f" --data {cache}" if cache else ""
    print(f"next: pco train --task {name}{option}")


def _check_text(checked: DataCheck) -> str:
    lines = [f"{checked.name}: {sum(checked.counts.values())} examples", ""]
    lines += [columns([_split_cells(checked, split) for split in checked.counts]), ""]
    lines += [
        columns(
            [
                {"column": c.name, "types": ", ".join(c.types), "missing": str(c.missing)}
                for c in checked.columns
            ]
        ),
        "",
    ]
    lines += [f"warn  {printable(warning)}" for warning in checked.warnings()]
    for leak in checked.overlaps[:_SHOWN]:
        lines.append(
            f"fail  {leak.ids[0]} ({leak.splits[0]}) and {leak.ids[1]} ({leak.splits[1]}) "
            "have the same input"
        )
    if len(checked.overlaps) > _SHOWN:
        lines.append(f"fail  and {len(checked.overlaps) - _SHOWN} more (--json shows all)")
    if checked.clean:
        lines.append("ok    no input appears in two splits")
        lines.append("next: pco estimate, then pco train")
    else:
        lines.append("next: remove them from one split, or let the splits be drawn")
    return "\n".join(lines)


def _split_cells(checked: DataCheck, split: str) -> dict[str, str]:
    words = checked.lengths.get(split)
    return {
        "split": split,
        "examples": str(checked.counts[split]),
        "without target": str(checked.missing_targets[split]),
        "words": f"{words.shortest}..{words.longest}, median {words.median:g}" if words else "-",
    }
