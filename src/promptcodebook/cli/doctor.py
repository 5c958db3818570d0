"""`pco doctor`: what works, what does not, and what to type next."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from promptcodebook.cli.console import emit, note, printable
from promptcodebook.cli.options import (
    ConfigPath,
    DataDir,
    Json,
    Model,
    Preset,
    Sets,
    TaskName,
    task_flags,
)
from promptcodebook.cli.settings import gathered, runs_dir

if TYPE_CHECKING:
    from promptcodebook.config import Config
    from promptcodebook.lm.probe import Finding
    from promptcodebook.session.checkup import Section

__all__ = ["app"]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def doctor(
    config: ConfigPath = None,
    task: TaskName = None,
    data: DataDir = None,
    lm: Model = None,
    preset: Preset = None,
    sets: Sets = None,
    as_json: Json = False,
) -> int:
    """Look at settings, data, reward, every endpoint, prices and disk; exit 1 if something fails.

    It makes about fifteen short calls to each model.
    """
    from promptcodebook.session.sync import run_sync

    flags = {**task_flags(task, data, lm), "preset": preset}
    settings, base = gathered(config, flags, sets or [])
    note("looking; each model is asked about fifteen short things")
    sections = run_sync(_looked(settings, base, as_json))
    ok = all(section.ok for section in sections)
    if as_json:
        emit({"ok": ok, "sections": [asdict(section) for section in sections]})
    else:
        print("\nall is well; next: pco estimate" if ok else "\nmend what failed, then: pco doctor")
    return 0 if ok else 1


async def _looked(settings: Config, base: Path, quiet: bool) -> list[Section]:
    from promptcodebook.session.checkup import checkup

    found: list[Section] = []
    async for section in checkup(settings, base, runs_dir()):
        found.append(section)
        if not quiet:
            print(_text(section), flush=True)
    return found


def _text(section: Section) -> str:
    return "\n".join([printable(section.title), *map(_line, section.findings)])


def _line(found: Finding) -> str:
    line = f"  {found.level:<5} {found.name}: {printable(found.what)}"
    if not found.next_step:
        return line
    return f"{line}\n        next: {printable(found.next_step)}"
