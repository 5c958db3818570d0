"""`pco feedback` and `pco learn`."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated

import typer

from promptcodebook.assemble import plan_data
from promptcodebook.cli import command
from promptcodebook.data.load import read_source
from promptcodebook.data.table import Record, Table, plain
from promptcodebook.errors import ConfigError, DataError
from promptcodebook.online import learning
from promptcodebook.online.log import (
    BadFeedback,
    Feedback,
    SqliteLog,
    feedback_of,
    is_request_id,
    logged_name,
    open_log,
    records_path,
    seconds_of,
)
from promptcodebook.paths import runs_dir
from promptcodebook.policy.references import REF, resolve, run_behind
from promptcodebook.registry.log import LATEST, version_of
from promptcodebook.registry.registry import open_registry
from promptcodebook.sync import run_sync
from promptcodebook.units import plural


def feedback(
    words: Annotated[
        list[str], typer.Argument(metavar="FILE | erase REQUEST_ID...", help="Rows of feedback.")
    ],
    as_json: command.Json = False,
) -> None:
    """Add late feedback from a file, or erase what is kept of requests.

    FILE has the columns request_id and reward, and may have feedback and key. A row that is there
    already is not added twice."""
    if words[0] == "erase":
        if wrong := [each for each in words[1:] if not is_request_id(each)]:
            raise ConfigError(f"{wrong[0]} is no whole id of a request", hint="req- and 24 digits")
        with closing(open_log()) as log:
            erased = log.erase(words[1:])
        if records_path().is_file():  # `pco explain REQUEST_ID` reads it, whatever keeps feedback
            with closing(SqliteLog(records_path())) as explained:
                explained.erase(words[1:])
        said = f"erased {erased} of {plural(len(words) - 1, 'request')}"
        command.show(lambda: {"erased": erased}, lambda: said, as_json=as_json)
        return
    if len(words) > 1:
        raise ConfigError("one file at a time", hint=f"pco feedback {words[0]}")
    table = read_source(Path(words[0]))
    if not isinstance(table, Table):
        raise DataError(f"{words[0]} is a folder", hint="name one file of rows")
    rows = [_row(record) for record in table.rows]
    became = Counter[str]()

    async def add() -> None:
        with closing(open_log()) as log:
            # Together: one of an unknown request waits a second for it.
            for at in range(0, len(rows), 1000):
                some = rows[at : at + 1000]
                became.update(await asyncio.gather(*(log.give(each, None) for each in some)))

    run_sync(add())
    kept = {name: became[name] for name in ("kept", "unknown", "erased")}
    said = f"kept {plural(kept['kept'], 'row')}; {kept['unknown']} of unknown requests, "
    said += f"{kept['erased']} of erased ones"
    command.show(lambda: kept, lambda: said, as_json=as_json)


def _row(record: Record) -> Feedback:
    cells: dict[str, object] = {name: plain(value) for name, value in record.values.items()}
    if isinstance(reward := cells.get("reward"), str):  # as in a CSV file
        with suppress(ValueError):
            cells["reward"] = float(reward)
    try:
        return feedback_of({name: value for name, value in cells.items() if value is not None})
    except BadFeedback as error:
        raise DataError(f"{record.where}: {error}", hint=error.hint) from None


def learn(
    ref: command.Ref,
    since: str = typer.Option("", help="Learn from requests of this time alone, e.g. 7d."),
    half_life: str = typer.Option("14d", help="After which a logged request weighs half."),
    run: str = typer.Option("", help="The run that made the policy, where REF does not say it."),
    output: Path | None = typer.Option(
        None, "--output", "-o", help="The new policy file; else NAME@latest of the registry."
    ),
    config: command.ConfigOption = None,
    trust: command.Trust = False,
    who: command.Who = "",
    as_json: command.Json = False,
) -> None:
    """Refit a served policy's router to what its users said; its texts stay.

    It learns from the training of the policy's run and from logged requests with feedback. It says
    what the new version is worth by the last third of the log. No ref that is served moves.
    `--config` names the training data where the run itself does not."""
    half, lasts = seconds_of(half_life), seconds_of(since) if since else None
    if not half:
        raise ConfigError("--half-life 0 forgets all", hint="write e.g. 14d")
    reference = resolve(runs_dir(), ref, trust=trust)
    named = REF.fullmatch(ref)
    if output is None and not (named and reference.version):
        said = f"{ref} is no NAME@REF of the registry: it is not said where to write"
        raise ConfigError(said, hint=f"pco learn {ref} -o learned.pco.json")
    learning.require_router(reference.file)
    data = None if config is None else plan_data(*command.gather_settings(config, {}))
    behind = run_behind(runs_dir(), run or ref)
    trained = learning.read_training(behind, reference.file, data, trust=trust)
    with closing(open_log()) as log:
        start = 0.0 if lasts is None else time.time() - lasts
        logged = log.logged(logged_name(ref, reference), start)
    versions = learning.versions_of(reference, {each.served.version for each in logged})
    made = learning.learn(reference.file, trained, logged, versions, half)
    found = made.as_json()
    file = made.file.with_about(learned={**found, "versions": [*sorted(versions)]})
    if output is not None:
        file.save(output)
        place, version, then = str(output), version_of(output.read_bytes()), f"pco serve {output}"
    else:
        assert named is not None
        name, text = named[1], file.text()
        place, version = f"{name}@{LATEST}", version_of(text.encode())
        with open_registry(who=who) as registry:
            facts = registry.version(reference.version).facts
            facts = {**facts, "parent": reference.version, "score": None, "learned": found}
            registry.store(text, place, "freeze", facts, f"pco learn {ref}")
        then = f"pco codebook audit {place} --lm MODEL, then promote it"
    said = f"{made.text()}\n\n{version[:19]} is in {place}\nnext: {then}"
    command.show(
        lambda: {"version": version, "place": place, **found}, lambda: said, as_json=as_json
    )
