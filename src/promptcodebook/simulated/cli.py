"""`pco demo`: on a small real model (`experiments/demo.py`), or the tour on the simulated one."""

from __future__ import annotations

from typing import Annotated

import typer

from promptcodebook.cli.command import Plain, emit, note
from promptcodebook.errors import MissingExtra, import_part

_WORLDS = 5


def demo(
    simulated: Annotated[
        bool, typer.Option("--simulated", help="The tour on the simulated model instead.")
    ] = False,
    worlds: Annotated[
        int | None, typer.Option(min=1, help="Number of simulated worlds; 5 unless given.")
    ] = None,
    world: Annotated[
        int | None, typer.Option(help="Only the world with this seed, as raw JSON.")
    ] = None,
    plain: Plain = False,
    as_json: Annotated[bool, typer.Option("--json", help="The tables as JSON.")] = False,
) -> int | None:
    """Learn which instruction helps which message, on a small real model, in minutes.

    SmolLM2-135M runs in this process, offline; seven ways of prompting it are judged on messages
    that nothing was learned from. A stopped demo resumes where it was. Where the model is not
    installed, and with --simulated, --worlds or --world, it is a tour on the simulated model, which
    shows that the machinery works, not that the method beats another.
    """
    if world is None and not simulated and worlds is None:
        from promptcodebook.cli.app import COMMAND_GROUP

        try:
            demonstrate = import_part(COMMAND_GROUP, "demo.real", "the demo", "bench")
            return demonstrate(plain=plain, as_json=as_json)
        except MissingExtra as missing:
            next_step = f"  next: {missing.hint}\nthe simulated tour instead:"
            note(f"no real model here: {missing}\n{next_step}")
    from promptcodebook.simulated.tour import raw_world, show_tour

    if world is not None:
        emit(raw_world(world))
    else:
        show_tour(worlds or _WORLDS, plain=plain, as_json=as_json)
    return None
