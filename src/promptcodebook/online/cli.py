"""`pco feedback` and `pco learn`."""

from __future__ import annotations

from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated

import typer

from promptcodebook.cli import command
from promptcodebook.data.load import read_source
from promptcodebook.data.table import Record, Table, plain
from promptcodebook.errors import ConfigError, DataError
from promptcodebook.online.log import BadFeedback, Feedback, feedback_of, is_request_id, open_log
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
    already is not added twice.
    """
    if words[0] == "erase":
        if wrong := [each for each in words[1:] if not is_request_id(each)]:
            raise ConfigError(f"{wrong[0]} is no whole id of a request", hint="req- and 24 digits")
        with closing(open_log()) as log:
            erased = log.erase(words[1:])
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
            for each in rows:
                became[await log.give(each, None)] += 1

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
