"""`pco doctor`: what works, what does not, and what to type next."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from promptcodebook.cli.console import emit, note, wrap_text
from promptcodebook.cli.settings import (
    ConfigPath,
    DataDir,
    Json,
    Model,
    Preset,
    Sets,
    TaskName,
    command_group,
    flag_layer,
    gather_settings,
)
from promptcodebook.paths import runs_dir
from promptcodebook.text import printable

if TYPE_CHECKING:
    from promptcodebook.config import Config
    from promptcodebook.doctor.probe import Finding, Section

app = command_group()


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
    """Check settings, data, reward, every endpoint, prices and disk; exit 1 if something fails.

    It makes about fifteen short calls to each model.
    """
    from promptcodebook.sync import run_sync

    flags = flag_layer(task, data, lm, preset)
    settings, base = gather_settings(config, flags, sets)
    note("each model is asked about fifteen short things")
    sections = run_sync(_sections(settings, base, quiet=as_json))
    ok = all(section.ok for section in sections)
    if as_json:
        emit({"ok": ok, "sections": [asdict(section) for section in sections]})
    else:
        print("\nall is well; next: pco estimate" if ok else "\nfix what failed, then: pco doctor")
    return 0 if ok else 1


async def _sections(settings: Config, base: Path, *, quiet: bool) -> list[Section]:
    """All sections; each is printed as soon as it is done, unless `quiet`."""
    from promptcodebook.doctor.checkup import checkup

    sections: list[Section] = []
    async for section in checkup(settings, base, runs_dir()):
        sections.append(section)
        if not quiet:
            print(_text(section), flush=True)
    return sections


def _text(section: Section) -> str:
    return "\n".join([wrap_text(section.title, ""), *map(_line, section.findings)])


def _line(finding: Finding) -> str:
    line = wrap_text(f"{finding.name}: {finding.what}", f"  {finding.level:<5} ")
    # A command is not broken up: it is there to be copied.
    return f"{line}\n        next: {printable(finding.next_step)}" if finding.next_step else line
