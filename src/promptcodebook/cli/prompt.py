"""`pco prompt`: the text of what the verdict compares, alone on stdout, to use elsewhere."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcodebook.cli.console import emit, note
from promptcodebook.cli.settings import (
    ConfigOption,
    DataDir,
    Json,
    Model,
    Ref,
    Sets,
    TaskName,
    Trust,
    command_group,
)
from promptcodebook.errors import ConfigError, did_you_mean
from promptcodebook.paths import runs_dir

if TYPE_CHECKING:
    from promptcodebook.cli.settings import Typed
    from promptcodebook.policy.references import Reference

app = command_group()

_LEARNED = "learned"
_UNTRAINED = "untrained"
_ROWS = ("present", "none", "concat", "best_fixed", "best_single", _UNTRAINED, _LEARNED)

Input = Annotated[
    str | None,
    typer.Argument(metavar="[INPUT]", help="What a composed prompt is for; '-' reads stdin."),
]
RowName = Annotated[
    str,
    typer.Option(
        "--row",
        metavar="ROW",
        help="present, none, concat, best_fixed, best_single, untrained or learned: as the "
        "verdict; or the row of another optimizer, such as gepa.",
    ),
]


@app.command()
def prompt(
    ref: Ref,
    text: Input = None,
    row: RowName = _LEARNED,
    config: ConfigOption = None,
    task: TaskName = None,
    data: DataDir = None,
    lm: Model = None,
    sets: Sets = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """The prompt of a row of the verdict, and nothing else on stdout.

    present is what you had, concat all learned instincts in one prompt, best_fixed the learned
    prompt that did best for all inputs, best_single the instinct that did, none what comes before
    every prompt: each is one text, and needs no model. The learned policy, and the untrained one
    that it came from, compose a prompt for each input: name the input.
    """
    from promptcodebook.cli.settings import Typed
    from promptcodebook.policy.references import resolve

    if (found := _of_another_optimizer(ref, row)) is not None:
        _say(ref, row, found, as_json=as_json)
        return
    if row not in _ROWS:
        raise ConfigError(
            f"unknown row {row!r}{did_you_mean(row, _ROWS)}", hint=f"--row {' | '.join(_ROWS)}"
        )
    reference = resolve(runs_dir(), ref, trust=trust)
    if row == _UNTRAINED:
        reference = _first(ref, reference)
    if row in (_UNTRAINED, _LEARNED):
        typed = Typed(config, task, data, lm, None, sets or (), trust)
        made = _composed(ref, row, reference, text, typed)
    elif text is not None:
        raise ConfigError(
            f"the row {row} has one prompt for every input",
            hint=f"pco prompt {ref} --row {row}",
        )
    else:
        made = reference.file.fixed_prompt(row).text
    _say(reference.name, row, made, as_json=as_json)


def _say(name: str, row: str, made: str, *, as_json: bool) -> None:
    if as_json:
        emit({"ref": name, "row": row, "prompt": made})
        return
    if not made:
        note(f"the row {row} is zero-shot: no prompt at all")
    print(made)


def _of_another_optimizer(ref: str, row: str) -> str | None:
    """The one prompt of a row that only another optimizer's run has, or of a run without a
    codebook."""
    from promptcodebook.store.run import RunStore
    from promptcodebook.store.runs import find_run

    if Path(ref).suffix == ".json":
        return None
    store = RunStore.open(find_run(runs_dir(), ref))
    try:
        outline = store.outline()
    finally:
        store.close()
    if outline.conclusion is None or (row in _ROWS and outline.parameters is not None):
        return None
    return {r["name"]: r.get("prompt") for r in outline.conclusion.rows}.get(row)


def _first(ref: str, reference: Reference) -> Reference:
    """The same run, with the policy that it began with."""
    from promptcodebook.policy.references import first_policy

    if reference.header is None:
        raise ConfigError(
            f"{ref} is a policy file, and only its run knows what it began with",
            hint='pco prompt RUN --row untrained "an input"',
        )
    return replace(reference, file=first_policy(runs_dir(), ref))


def _composed(ref: str, row: str, reference: Reference, text: str | None, typed: Typed) -> str:
    """What the policy composes for the input."""
    from promptcodebook.assemble import Sources
    from promptcodebook.cli.settings import settings_for
    from promptcodebook.policy.policy import deploy

    given = sys.stdin.read().rstrip("\n") if text == "-" else text
    if given is None or not given.strip():
        raise ConfigError(
            f"the {row} policy composes a prompt for each input, and none was given",
            hint=f'pco prompt {ref}{_flag(row)} "an input", or one prompt for all: '
            f"pco prompt {ref} --row concat",
        )
    if given in _ROWS:
        note(f"{given!r} is taken as the input; for that row: pco prompt {ref} --row {given}")
    settings, base = settings_for(reference, typed)
    return deploy(reference.file, settings, Sources(base)).prompt(given)


def _flag(row: str) -> str:
    return "" if row == _LEARNED else f" --row {row}"
