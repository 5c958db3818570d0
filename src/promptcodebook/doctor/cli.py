"""`pco doctor`: what works and what does not, printed section by section as it is found out."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from promptcodebook.cli import command
from promptcodebook.cli.command import Json, note, options, show, wrap_text
from promptcodebook.doctor.checkup import checkup
from promptcodebook.doctor.probe import Section
from promptcodebook.paths import runs_dir
from promptcodebook.sync import run_sync
from promptcodebook.text import printable


@dataclass(frozen=True)
class _Examined(command.Wanted):
    """What is examined is not run: it takes no budget and no seed."""

    budget: None = None
    seed: None = None


@options
def doctor(wanted: _Examined, as_json: Json = False) -> int:
    """Check settings, data, reward, every endpoint, prices and disk; exit 1 if something fails.

    It makes about fifteen short calls to each model.
    """
    settings, base = wanted.gather()
    note("each model is asked about fifteen short things")
    sections: list[Section] = []

    async def look() -> None:
        async for section in checkup(settings, base, runs_dir()):
            sections.append(section)
            if as_json:
                continue
            lines = [wrap_text(section.title, "")]
            for each in section.findings:
                lines.append(wrap_text(f"{each.name}: {each.what}", f"  {each.level:<5} "))
                if each.next_step:  # a command, which is not broken up: it is there to be copied
                    lines.append(f"        next: {printable(each.next_step)}")
            print("\n".join(lines), flush=True)

    run_sync(look())
    ok = all(section.ok for section in sections)
    text = "\nall is well; next: pco estimate" if ok else "\nfix what failed, then: pco doctor"
    tree = {"ok": ok, "sections": [asdict(section) for section in sections]}
    show(lambda: tree, lambda: text, as_json=as_json)
    return 0 if ok else 1
