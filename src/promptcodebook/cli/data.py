"""`pco data`: a data file looked over before anything is paid for; a benchmark's data fetched."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from promptcodebook.cli.console import columns, emit
from promptcodebook.cli.options import Json

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="Look at a data file before training on it; fetch a benchmark's data.",
)


@app.command()
def check(
    path: Annotated[Path, typer.Argument(help="jsonl, json, csv, tsv, parquet, or a folder.")],
    input: Annotated[str, typer.Option(help="A column, or '{title}\\n{body}'.")] = "input",
    target: Annotated[str, typer.Option(help="The reference column; '' = none.")] = "target",
    messages: Annotated[str, typer.Option(help="A column of chat messages.")] = "",
    id: Annotated[str, typer.Option(help="A column of ids.")] = "",
    split: Annotated[str, typer.Option(help="A column that names each row's split.")] = "",
    as_json: Json = False,
) -> int:
    """Columns, sizes, duplicates, and inputs that stand in two splits (exit 1)."""
    from promptcodebook.data import examine, load

    dataset = load(
        path,
        input=input,
        target=target or None,
        messages=messages or None,
        id=id or None,
        split=split or None,
        allow_overlap=True,
    )
    found = examine(dataset)
    if as_json:
        emit({**asdict(found), "clean": found.clean, "warnings": list(found.warnings())})
    else:
        print(_text(found))
    return 0 if found.clean else 1


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A benchmark, such as ifbench.")],
    cache: Annotated[
        Path | None, typer.Option(help="Where copies are kept; default: the user's cache folder.")
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Take files that changed at their public home.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Takes a benchmark from its public home; its task then reads the copy without --data."""
    from promptcodebook.tasks.home import default_data_cache, public_rows
    from promptcodebook.tasks.public_sources import source_of

    source = source_of(name)
    got = public_rows(source, cache or default_data_cache(), accept=accept)
    if as_json:
        counts, files = dict(got.counts), dict(got.files)
        emit({"name": name, "folder": str(got.folder), "rows": counts, "sha256": files})
        return 0
    print(f"{name}: in {got.folder}\n")
    print(columns([{"file": f"{file}.jsonl", "rows": str(n)} for file, n in got.counts.items()]))
    print(f"\nnote  {source.note}" if source.note else "")
    kept = f" --data {cache}" if cache else ""
    print(f"next: pco train --task {name}{kept}")
    return 0


def _text(found: Any) -> str:
    lines = [f"{found.name}: {sum(found.counts.values())} examples", ""]
    lines += [columns([_split_row(found, split) for split in found.counts]), ""]
    lines += [columns([_column_row(column) for column in found.columns]), ""]
    lines += [f"warn  {said}" for said in found.warnings()]
    for leak in found.overlaps:
        lines.append(
            f"fail  {leak.ids[0]} ({leak.splits[0]}) and {leak.ids[1]} ({leak.splits[1]}) "
            "have the same input"
        )
    if found.clean:
        lines.append("ok    no input stands in two splits")
        lines.append("next: pco estimate, then pco train")
    else:
        lines.append("next: remove them from one split, or let the splits be drawn")
    return "\n".join(lines)


def _split_row(found: Any, split: str) -> dict[str, str]:
    words = found.lengths.get(split)
    return {
        "split": split,
        "examples": str(found.counts[split]),
        "without target": str(found.missing_targets[split]),
        "words": f"{words.shortest}..{words.longest}, median {words.median:g}" if words else "-",
    }


def _column_row(column: Any) -> dict[str, str]:
    return {"column": column.name, "types": ", ".join(column.types), "missing": str(column.missing)}
